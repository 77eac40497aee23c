// SPDX-License-Identifier: BSD-3-Clause
#include "lab/world/text.hpp"

#include <cerrno>
#include <charconv>
#include <cstring>
#include <fmt/format.h>
#include <fstream>
#include <sstream>

namespace lab {

std::string_view trim(std::string_view text) {
    constexpr std::string_view blank = " \t\r";
    const auto first = text.find_first_not_of(blank);
    if (first == text.npos)
        return {};
    return text.substr(first, text.find_last_not_of(blank) - first + 1);
}

std::vector<std::string_view> lines_of(std::string_view text) {
    std::vector<std::string_view> lines;
    while (!text.empty()) {
        const auto end = text.find('\n');
        lines.push_back(text.substr(0, end));
        text.remove_prefix(end == text.npos ? text.size() : end + 1);
    }
    return lines;
}

std::vector<std::string_view> words_of(std::string_view text) {
    std::vector<std::string_view> words;
    for (text = trim(text); !text.empty(); text = trim(text)) {
        const auto end = text.find_first_of(" \t");
        words.push_back(text.substr(0, end));
        text.remove_prefix(end == text.npos ? text.size() : end);
    }
    return words;
}

std::optional<std::uint64_t> parse_unsigned(std::string_view text, std::uint64_t limit) {
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (text.empty() || error != std::errc{} || end != text.data() + text.size() || value > limit)
        return std::nullopt;
    return value;
}

result<std::string> read_text_file(const std::string& path) {
    std::ifstream file(path);
    std::ostringstream text;
    if (!file || !(text << file.rdbuf()).good()) {
        // Reading an empty file sets failbit on the target but is no error.
        if (file.is_open() && file.peek() == std::ifstream::traits_type::eof() && text.str().empty() &&
            !file.bad())
            return std::string{};
        return tl::unexpected(problem{fmt::format("{}: cannot be read: {}", path, std::strerror(errno))});
    }
    return text.str();
}

} // namespace lab
