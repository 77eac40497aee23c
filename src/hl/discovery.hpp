// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/device_info.hpp>
#include <gaudi/error.hpp>

#include "src/hl/hl_device.hpp"

#include <vector>

namespace gaudi {

// All Gaudis that the driver knows, queried through their control nodes: no device is opened for compute.
// errc::descriptors_exhausted.
[[nodiscard]] result<std::vector<device_info>> discover(const hlthunk_api& api);
// The processes that have the compute node open, this one included, as far as /proc may be read.
[[nodiscard]] std::vector<device_holder> find_holders(const hlthunk_api& api, unsigned index);
// Opens the device for compute. Retries for two seconds while the driver returns EAGAIN, because it resets a
// device after its last user. errc::device_busy names the processes that have it open, as far as they can be
// found.
[[nodiscard]] result<std::shared_ptr<hl_device>>
open_for_compute(const std::shared_ptr<const hlthunk_api>& api, const device_info& info);
// Wraps a descriptor that another owner opened. If it came from another process, the result takes it over and
// closes it.
[[nodiscard]] result<std::shared_ptr<hl_device>> attach(const std::shared_ptr<const hlthunk_api>& api, int fd,
                                                        const device_info& info, context_owner owner);
// The number that identifies the device in every process; 0: its node cannot be read.
[[nodiscard]] std::uint64_t node_of_device(const hlthunk_api& api, const device_info& info);
[[nodiscard]] std::string bus_id_of(const hlthunk_api& api, int fd);

} // namespace gaudi
