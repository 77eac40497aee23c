// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/world/problem.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lab {

[[nodiscard]] std::string_view trim(std::string_view text);
[[nodiscard]] std::vector<std::string_view> lines_of(std::string_view text);
[[nodiscard]] std::vector<std::string_view> words_of(std::string_view text);
// Decimal digits only, no sign, at most `limit`.
[[nodiscard]] std::optional<std::uint64_t> parse_unsigned(std::string_view text, std::uint64_t limit);
[[nodiscard]] result<std::string> read_text_file(const std::string& path);

} // namespace lab
