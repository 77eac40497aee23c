// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace gaudi {

// A file of the kernel, in /proc or /sys. GAUDI_DIRECT_FSROOT names a folder that has other ones in their
// place, as HWLOC_FSROOT does for hwloc.
[[nodiscard]] std::string machine_path(std::string_view absolute);
// The first line; nullopt: there is no such file.
[[nodiscard]] std::optional<std::string> read_machine_file(std::string_view absolute);

} // namespace gaudi
