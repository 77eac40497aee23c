// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>
#include <string>

namespace tools {

// Where the lab's libraries lie: beside this program's own folder, in the build tree as in the installed one.
[[nodiscard]] std::filesystem::path lab_folder();
[[nodiscard]] std::filesystem::path lab_hlthunk();
// 1.5 GiB and the like.
[[nodiscard]] std::string human_bytes(std::uint64_t bytes);
// The library that was loaded is the lab's.
[[nodiscard]] bool is_virtual(const std::string& library_path);

enum exit_code { ok = 0, failed = 1, usage = 2, not_executable = 126, not_found = 127 };

} // namespace tools
