// SPDX-License-Identifier: BSD-3-Clause
// Preloaded before libucp: reports a future version of UCX.
#include <ucs/type/status.h>

extern "C" __attribute__((visibility("default"))) void ucp_get_version(unsigned* major, unsigned* minor,
                                                                       unsigned* release) {
    *major = 1;
    *minor = 99;
    *release = 0;
}

// Uses libucs, so that this library depends on a libucs as libucp does.
extern "C" __attribute__((visibility("default"))) const char* other_version_status() {
    return ucs_status_string(UCS_OK);
}
