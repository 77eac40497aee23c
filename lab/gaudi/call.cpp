// SPDX-License-Identifier: BSD-3-Clause
#include "lab/gaudi/call.hpp"

#include <csignal>
#include <thread>
#include <unistd.h>

namespace lab::gaudi {

bool& short_result_wanted() {
    thread_local bool wanted = false;
    return wanted;
}

int apply_fault(const fault& chosen, int fd) {
    switch (chosen.action) {
    case fault_action::fail:
        return chosen.error_number;
    case fault_action::delay:
        std::this_thread::sleep_for(chosen.pause);
        break;
    case fault_action::short_result:
        short_result_wanted() = true;
        break;
    case fault_action::reset:
        if (auto* device = fd >= 0 ? process::self().find(fd) : nullptr; device != nullptr)
            raise_reset(*device, HL_NOTIFIER_EVENT_GENERAL_HW_ERR);
        break;
    case fault_action::die:
        ::kill(::getpid(), SIGKILL);
        break;
    }
    return 0;
}

} // namespace lab::gaudi
