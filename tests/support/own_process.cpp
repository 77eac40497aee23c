// SPDX-License-Identifier: BSD-3-Clause
#include "tests/support/own_process.hpp"

#include <fmt/format.h>
#include <fstream>
#include <map>
#include <sys/stat.h>

namespace testing_support {

namespace fs = std::filesystem;

std::string text_of(const std::filesystem::path& file) {
    std::ifstream stream(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
}

std::size_t open_descriptors() {
    std::size_t count = 0;
    for ([[maybe_unused]] const auto& entry : fs::directory_iterator("/proc/self/fd"))
        ++count;
    return count - 1; // minus the descriptor of the iterator
}

std::size_t mapped_regions() {
    std::ifstream maps("/proc/self/maps");
    std::size_t count = 0;
    const auto has = [](const std::string& line, const char* part) {
        return line.find(part) != std::string::npos;
    };
    // The thread sanitizer maps every library's constants anew, which splits each library's mapping, at any
    // time.
    for (std::string line; std::getline(maps, line);)
        if (!under_a_sanitizer ||
            (has(line, "/") && !has(line, "/tsan.rodata.") && !has(line, ".so") && !has(line, "/bin/")))
            ++count;
    return count;
}

std::string mappings_by_file() {
    std::ifstream maps("/proc/self/maps");
    std::map<std::string, unsigned> counts;
    for (std::string line; std::getline(maps, line);) {
        const auto at = line.find('/');
        ++counts[at == std::string::npos ? "" : line.substr(at)];
    }
    std::string text;
    for (const auto& [file, count] : counts)
        text += fmt::format("{} {}\n", count, file.empty() ? "anonymous" : file);
    return text;
}

std::uint64_t stored_bytes(const fs::path& folder) {
    std::uint64_t sum = 0;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
        struct stat status {};
        if (::stat(entry.path().c_str(), &status) == 0)
            sum += static_cast<std::uint64_t>(status.st_blocks) * 512;
    }
    return sum;
}

} // namespace testing_support
