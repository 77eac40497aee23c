// SPDX-License-Identifier: BSD-3-Clause
#include "lab/gaudi/call.hpp"

namespace lab::gaudi {

bool& short_result_wanted() {
    thread_local bool wanted = false;
    return wanted;
}

int apply_fault(const fault& chosen, int fd) {
    if (chosen.action == fault_action::short_result)
        short_result_wanted() = true;
    if (chosen.action == fault_action::reset)
        if (auto* device = fd >= 0 ? process::self().find(fd) : nullptr; device != nullptr)
            raise_reset(*device, HL_NOTIFIER_EVENT_GENERAL_HW_ERR);
    return carry_out(chosen);
}

} // namespace lab::gaudi
