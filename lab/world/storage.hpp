// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>
#include <string>

namespace lab {

// Why this folder has no storage left and what helps, for an errno: the tmpfs is full (ENOSPC), or the lab
// would take the machine's last memory (ENOMEM).
[[nodiscard]] std::string explain_no_storage(const std::filesystem::path& folder, int error);

} // namespace lab
