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

// Goes to the lab: the same program with the same arguments in a fresh process, because a driver's library
// that is loaded stays loaded. Returns only if that is impossible.
void enter_lab(const std::string& reason);
// Why this process was brought to the lab; nullptr where it was not.
[[nodiscard]] const char* lab_reason_of_environment();
// For programs that need a NIC: goes to the lab where there is neither a Gaudi nor a NIC, unless the user
// chose the libraries himself. The reason, once there.
[[nodiscard]] const char* go_to_lab_without_hardware(bool forbidden);

enum exit_code { ok = 0, failed = 1, usage = 2, not_executable = 126, not_found = 127 };

} // namespace tools
