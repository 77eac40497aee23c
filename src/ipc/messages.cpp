// SPDX-License-Identifier: BSD-3-Clause
#include "src/ipc/messages.hpp"

#include <fmt/format.h>
#include <unistd.h>

namespace gaudi {

std::string broker_name(const process_identity& owner) {
    return fmt::format("gaudi-direct/{:016x}{:016x}", owner.random[0], owner.random[1]);
}

std::string device_name(std::uint64_t node) {
    return fmt::format("gaudi-direct/device/{:016x}/{}", node, ::geteuid());
}

} // namespace gaudi
