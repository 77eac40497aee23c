// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <string_view>
#include <vector>

// A version number does not fix UCX's private tables: 1.23.0 is what its main branch is called, and functions
// are inserted there. What libuct exports does.
namespace gaudi_ucx {

// How the exported functions differ from those of the release that this plugin knows by that version, in
// words; empty: they do not.
[[nodiscard]] std::string unknown_exports(void* libuct, std::string_view version);
[[nodiscard]] std::string difference_of(std::vector<std::string_view> exported, std::string_view version);

} // namespace gaudi_ucx
