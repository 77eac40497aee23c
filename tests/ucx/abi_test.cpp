// SPDX-License-Identifier: BSD-3-Clause
// Our statement of UCX's private structures against the debug information of the stock library.
#include "tests/support/child.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <map>
#include <regex>
#include <sstream>

namespace {

using namespace testing_support;

struct place {
    std::size_t offset = 0, size = 0;
};
struct layout {
    std::size_t size = 0;
    std::map<std::string, place> members;
};

// As gdb tells it ("/* offset | size */ type name;"), which knows unnamed structures by their typedef. Nested
// members are indented further and left out.
layout in_library(const std::string& type) {
    layout found;
    const auto shown =
        run_program({"gdb", "-batch", "-nx", "-ex", "ptype /o " + type, UCX_1_22 "/lib/libuct.so.0"});
    const std::regex member(R"(^/\* *(\d+)[^|]*\| *(\d+) \*/    (\S.*);$)");
    const std::regex nested(R"(^ {30,}    \} (\w+);$)");
    const std::regex total(R"(total size \(bytes\): +(\d+))");
    const std::regex last_name(R"((\w+)(\[[^\]]*\])*$|\(\*(\w+)\)\()");
    std::istringstream lines(shown.output);
    for (std::string line; std::getline(lines, line);) {
        std::smatch match, name;
        if (std::regex_search(line, match, total)) {
            found.size = std::stoul(match[1]); // the last is the whole
            continue;
        }
        if (!std::regex_match(line, match, member))
            continue;
        const auto declared = match[3].str();
        if (const auto pointer = declared.find("(*"); pointer != declared.npos)
            found.members[declared.substr(pointer + 2, declared.find(')', pointer) - pointer - 2)] = {
                std::stoul(match[1]), std::stoul(match[2])};
        else if (std::regex_search(declared, name, last_name))
            found.members[name[1]] = {std::stoul(match[1]), std::stoul(match[2])};
    }
    return found;
}

TEST(abi_test, every_member_lies_where_the_stock_library_has_it) {
    const auto report = run_program({UCX_ABI_REPORT});
    ASSERT_EQ(report.status, 0);
    std::map<std::string, layout> known;
    std::istringstream lines(report.output);
    std::size_t compared = 0, structures = 0;
    std::string type, member;
    for (std::string line; std::getline(lines, line);) {
        std::istringstream words(line);
        std::size_t offset = 0, size = 0;
        words >> type >> member >> offset >> size;
        const bool named = type.ends_with("_t");
        if (!known.contains(type)) {
            known[type] = in_library(named ? type : "struct " + type);
            ASSERT_FALSE(known[type].members.empty()) << type;
        }
        if (member == "-") {
            EXPECT_EQ(known[type].size, offset) << type;
            ++structures;
            continue;
        }
        const auto found = known[type].members.find(member);
        // Structures within structures have no line of their own with their name.
        if (found == known[type].members.end() && (member == "config" || member == "prog"))
            continue;
        ASSERT_NE(found, known[type].members.end()) << type << " has no " << member;
        EXPECT_EQ(found->second.offset, offset) << type << "." << member;
        EXPECT_EQ(found->second.size, size) << type << "." << member;
        ++compared;
    }
    EXPECT_GT(compared, 80U);
    EXPECT_GT(structures, 15U);
}

} // namespace
