// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>
#include <string>

namespace lab {

// Why there is no storage in this folder and what helps, for an errno: the tmpfs is full (ENOSPC), or the lab
// would take the machine's last memory (ENOMEM).
[[nodiscard]] std::string explain_no_storage(const std::filesystem::path& folder, int error);

} // namespace lab
