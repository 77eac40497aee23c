// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>
#include <string>

namespace tools {

// Where the lab's libraries are: in a folder next to this program's own, in the build tree as when installed.
[[nodiscard]] std::filesystem::path lab_folder();
[[nodiscard]] std::filesystem::path lab_hlthunk();
// Such as "1.5 GiB".
[[nodiscard]] std::string human_bytes(std::uint64_t bytes);
// Whether the loaded library is the lab's.
[[nodiscard]] bool is_virtual(const std::string& library_path);

// Enters the lab: runs the same program with the same arguments again, in a fresh process image, because a
// driver's library that is loaded stays loaded. Returns only if that is impossible.
void enter_lab(const std::string& reason);
// Why this process was moved to the lab; nullptr if it was not.
[[nodiscard]] const char* lab_reason_of_environment();
// For programs that need a nic: enters the lab if there is neither a device nor a nic, unless the user chose
// the libraries. Returns the reason, once in the lab.
[[nodiscard]] const char* go_to_lab_without_hardware(bool forbidden);

// Lets this process see the lab's machine, as `lab run` does where several nics or NUMA nodes make a
// difference.
void believe_in_the_lab();

// warned: a check of doctor warns, and none failed.
enum exit_code { ok = 0, failed = 1, usage = 2, warned = 3, not_executable = 126, not_found = 127 };

} // namespace tools
