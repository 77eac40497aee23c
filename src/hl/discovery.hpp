// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/device_info.hpp>
#include <gaudi/error.hpp>

#include "src/hl/hl_device.hpp"

#include <vector>

namespace gaudi {

// All Gaudis the driver knows, asked through their control nodes: no device is opened for compute.
// errc::descriptors_exhausted.
[[nodiscard]] result<std::vector<device_info>> discover(const hlthunk_api& api);
// Processes that have the compute node open, this one included. Needs the rights to look into them.
[[nodiscard]] std::vector<device_holder> find_holders(const hlthunk_api& api, unsigned index);
// Opens the device for compute. Waits a bounded time while the driver says "try again" (it resets a device
// after its last user). errc::device_busy names the holders it can find.
[[nodiscard]] result<std::shared_ptr<hl_device>>
open_for_compute(const std::shared_ptr<const hlthunk_api>& api, const device_info& info);
// Wraps a descriptor that somebody else opened; one of a guest is taken over where this succeeds.
[[nodiscard]] result<std::shared_ptr<hl_device>> attach(const std::shared_ptr<const hlthunk_api>& api, int fd,
                                                        const device_info& info, context_owner whose);
// The number that every process knows the device by; 0: it cannot be seen.
[[nodiscard]] std::uint64_t node_of_device(const hlthunk_api& api, const device_info& info);
[[nodiscard]] std::string bus_id_of(const hlthunk_api& api, int fd);

} // namespace gaudi
