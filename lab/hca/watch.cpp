// SPDX-License-Identifier: BSD-3-Clause
#include "lab/hca/api_post.hpp"
#include "lab/hca/exported.hpp"

namespace lab::hca {

void decide_watching() {
    watching = tracing() || faults().armed();
}

int watch(const char* name, const std::string& arguments, int (*body)(void*), void* state) {
    return call<int>(
        name, answers::with_errno, [&] { return body(state); }, plain_text{arguments.c_str()});
}

} // namespace lab::hca

// For tests: sets a script other than the environment's, and returns how many faults took effect.
extern "C" {

[[gnu::visibility("default")]] int gaudi_lab_hca_arm_faults(const char* script) {
    const int error = lab::arm_faults(script);
    lab::hca::decide_watching();
    return error;
}

[[gnu::visibility("default")]] unsigned long gaudi_lab_hca_faults_fired(void) {
    return lab::faults().fired();
}
}
