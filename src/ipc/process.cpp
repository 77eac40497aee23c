// SPDX-License-Identifier: BSD-3-Clause
// Functions for the process as a whole, owner and importer alike.
#include <gaudi/ipc.hpp>

#include "src/ipc/broker.hpp"
#include "src/ipc/importer.hpp"

namespace gaudi {

process_name own_process() {
    const auto& self = own_identity();
    return {self.machine, self.random, self.start_time, self.pid_namespace, self.pid};
}

bool has_ended(const process_name& process) {
    if (importer::self().lost(process.random))
        return true;
    const auto self = own_process();
    return process.machine == self.machine && process.pid_namespace == self.pid_namespace &&
           start_time_of(static_cast<std::uint32_t>(process.pid)) != process.start_time;
}

} // namespace gaudi
