/* SPDX-License-Identifier: BSD-3-Clause */
/* As libucp.so.0 and libuct.so.0: a UCX of the version in FAKE_UCX, without components. */
#include <stdlib.h>

const char* ucp_get_version_string(void);
int uct_query_components(void*** components, unsigned* count);
int uct_component_query(void* component, void* attributes);

const char* ucp_get_version_string(void) {
    const char* version = getenv("FAKE_UCX");
    return version != NULL ? version : "0.0.0";
}

int uct_query_components(void*** components, unsigned* count) {
    *components = NULL;
    *count = 0;
    return 0;
}

int uct_component_query(void* component, void* attributes) {
    (void)component;
    (void)attributes;
    return -1;
}
