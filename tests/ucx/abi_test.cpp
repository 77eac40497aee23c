// SPDX-License-Identifier: BSD-3-Clause
// Compares our declarations of UCX's private structures with the debug information of the stock library.
#include "tests/support/child.hpp"

#include <fmt/format.h>
#include <fstream>
#include <gtest/gtest.h>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <utility>

namespace {

using namespace testing_support;

struct place {
    std::size_t offset = 0, size = 0;
};
struct layout {
    std::size_t size = 0;
    std::map<std::string, place> members;
};

std::string library_of(const std::string& type) {
    return UCX_1_22 + std::string(type == "ucx_perf_allocator" ? "/bin/ucx_perftest" : "/lib/libuct.so.0");
}

// The name that "type name", "type name[4]" or "type (*name)(arguments)" declares.
std::string declared_name(const std::string& declaration) {
    if (const auto pointer = declaration.find("(*"); pointer != declaration.npos)
        return declaration.substr(pointer + 2, declaration.find(')', pointer) - pointer - 2);
    std::smatch name;
    return std::regex_search(declaration, name, std::regex(R"((\w+)(\[[^\]]*\])*$)")) ? name[1].str() : "";
}

// The layout that gdb prints ("/* offset | size */ type name;"). gdb finds unnamed structures by their
// typedef; the name of a nested unnamed structure follows its members: these become "structure.member".
layout in_library(const std::string& type) {
    layout found;
    const auto shown =
        run_program({"gdb", "-batch", "-nx", "-ex",
                     "ptype /o " + (type.ends_with("_t") ? type : "struct " + type), library_of(type)});
    const std::regex member(R"(^/\* *(\d+)[^|]*\| *(\d+) \*/(    |        )(\S.*);$)");
    const std::regex opens(R"(^/\* *(\d+)[^|]*\| *(\d+) \*/    struct \{$)");
    const std::regex closes(R"(^ {20,}\} (\w+);$)");
    const std::regex total(R"(total size \(bytes\): +(\d+))");
    std::map<std::string, place> inner;
    place whole;
    std::istringstream lines(shown.output);
    for (std::string line; std::getline(lines, line);) {
        std::smatch match;
        if (std::regex_search(line, match, total))
            found.size = std::stoul(match[1]); // the last total is that of the whole structure
        else if (std::regex_match(line, match, opens))
            whole = {std::stoul(match[1]), std::stoul(match[2])};
        else if (std::regex_match(line, match, member))
            (match[3].length() == 4 ? found.members : inner)[declared_name(match[4])] = {
                std::stoul(match[1]), std::stoul(match[2])};
        else if (std::regex_match(line, match, closes)) {
            found.members[match[1]] = whole;
            for (const auto& [name, where] : std::exchange(inner, {}))
                found.members[match[1].str() + "." + name] = where;
        }
    }
    return found;
}

// Every structure with members in our header, without the _t of typedefs.
std::set<std::string> stated() {
    std::set<std::string> names;
    std::ifstream header(SOURCE_FOLDER "/ucx/abi/uct_private.h");
    const std::regex begins(R"(^(typedef )?struct (\w+) \{$)");
    std::smatch match;
    for (std::string line; std::getline(header, line);)
        if (std::regex_match(line, match, begins))
            names.insert(match[2]);
    return names;
}

TEST(abi_test, every_member_lies_where_the_stock_library_has_it) {
    const auto report = run_program({UCX_ABI_REPORT});
    ASSERT_EQ(report.status, 0);
    std::map<std::string, layout> known, reported;
    std::istringstream lines(report.output);
    std::string type, member;
    for (std::string line; std::getline(lines, line);) {
        std::istringstream words(line);
        std::size_t offset = 0, size = 0;
        words >> type >> member >> offset >> size;
        if (member == "-")
            reported[type].size = offset;
        else
            reported[type].members[member] = {offset, size};
    }
    for (const auto& name : stated())
        EXPECT_TRUE(reported.contains(name) || reported.contains(name + "_t")) << name << " is not reported";
    for (const auto& [name, own_layout] : reported) {
        SCOPED_TRACE(name);
        const auto library_layout = in_library(name);
        ASSERT_FALSE(library_layout.members.empty());
        EXPECT_TRUE(own_layout.size == 0 || own_layout.size == library_layout.size)
            << own_layout.size << ", not " << library_layout.size;
        for (const auto& [each, where] : own_layout.members) {
            const auto found = library_layout.members.find(each);
            ASSERT_NE(found, library_layout.members.end()) << "there is no " << each;
            EXPECT_EQ(where.offset, found->second.offset) << each;
            EXPECT_EQ(where.size, found->second.size) << each;
        }
        for (const auto& [each, where] : library_layout.members)
            EXPECT_TRUE(own_layout.members.contains(each) || each == "__dummy") << each << " is not reported";
    }
    EXPECT_GE(reported.size(), 22U);
}

} // namespace
