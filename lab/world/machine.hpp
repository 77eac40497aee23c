// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/world/description.hpp"

#include <string>
#include <vector>

namespace lab {

// What the kernel of the lab's machine says of it, as programs read it under GAUDI_DIRECT_FSROOT: files of
// /proc, /sys, /boot and /dev.
struct machine_file {
    std::string path; // relative to the lab's folder
    std::string text; // of a symbolic link: its target
    bool is_link = false;
};
[[nodiscard]] std::vector<machine_file> machine_files(const description& machine);

} // namespace lab
