// SPDX-License-Identifier: BSD-3-Clause
#include "tests/support/test_lab.hpp"

#include "tests/support/hlthunk_functions.h"

#include <cstdlib>
#include <fmt/format.h>
#include <fstream>
#include <map>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

namespace testing_support {

namespace fs = std::filesystem;

test_lab::test_lab() {
    char pattern[] = "/dev/shm/gaudi-test-XXXXXX";
    root_ = ::mkdtemp(pattern);
    ::setenv("GAUDI_LAB_ROOT", root_.c_str(), 1);
    ::setenv("GAUDI_DIRECT_HLTHUNK", LAB_HLTHUNK, 1);
    for (const char* variable : {"GAUDI_LAB", "GAUDI_LAB_FAULTS", "HLS_MODULE_ID", "HABANA_VISIBLE_DEVICES",
                                 "HABANA_VISIBLE_MODULES"})
        ::unsetenv(variable);
    descriptors_ = open_descriptors();
}

test_lab::~test_lab() {
    fs::remove_all(root_);
}

void test_lab::describe(std::string_view text) {
    gaudi_lab_leave();
    const auto parsed = lab::parse_description(text, "description");
    ASSERT_TRUE(parsed) << parsed.error().text;
    const auto entered = lab::folder::enter("default", *parsed);
    ASSERT_TRUE(entered) << entered.error().text;
}

small_tmpfs::small_tmpfs(const fs::path& under, const std::string& size) : at_(under / "small") {
    fs::create_directory(at_);
    mounted_ = ::mount("none", at_.c_str(), "tmpfs", 0, ("mode=0700,size=" + size).c_str()) == 0;
    if (mounted_)
        ::setenv("GAUDI_LAB_ROOT", at_.c_str(), 1);
}

small_tmpfs::~small_tmpfs() {
    if (mounted_)
        ::umount2(at_.c_str(), MNT_DETACH);
}

void test_lab::TearDown() {
    gaudi_lab_arm_faults("");
    gaudi_lab_leave();
    EXPECT_EQ(open_descriptors(), descriptors_) << "the test left descriptors open";
}

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
