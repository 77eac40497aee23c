// SPDX-License-Identifier: BSD-3-Clause
#include "lab/hca/api_post.hpp"
#include "lab/hca/exported.hpp"

namespace lab::hca {

bool watching() {
    return tracing() || faults().armed();
}

int watch(const char* name, int (*body)(void*), void* state) {
    return call<int>(name, answers::with_errno, [&] { return body(state); });
}

} // namespace lab::hca
