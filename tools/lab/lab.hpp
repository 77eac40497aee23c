// SPDX-License-Identifier: BSD-3-Clause
// What the commands of `gaudi-direct lab` share.
#pragma once

#include "lab/world/folder.hpp"
#include "tools/commands.hpp"
#include "tools/self.hpp"

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace tools {

// Prints the problem; returns `status`.
int complain(const lab::problem& what, int status = usage);
[[nodiscard]] lab::problem no_such_lab(const std::string& name);
// Frees the memory of programs that ended without closing their devices, as every program does that enters
// the lab.
void reclaim_memory(const lab::folder& where, const std::string& name);
// A lab with its devices, their users and its storage, for `list` and `show`.
[[nodiscard]] nlohmann::ordered_json lab_json(const std::string& name);

} // namespace tools
