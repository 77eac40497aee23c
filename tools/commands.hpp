// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <CLI/CLI.hpp>

namespace tools {

// Each adds its command to the program; `outcome` receives the exit status.
void add_info(CLI::App& program, int& outcome);
void add_lab(CLI::App& program, int& outcome);

} // namespace tools
