// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fmt/format.h>

namespace tools {

// Prints an error of the command line's parser in the style of our programs. An unknown argument is reported
// first, because it is often the cause of other missing ones. Returns the exit status.
inline int report_error(const CLI::App& program, const CLI::ParseError& error, int when_wrong) {
    if (error.get_exit_code() == 0) // --help, --version
        return program.exit(error);
    const auto left = program.remaining(true);
    const auto unknown =
        std::find_if(left.begin(), left.end(), [](const auto& each) { return each != "--"; });
    fmt::print(stderr, "{0}: {1}; {0} --help lists the options\n", program.get_name(),
               unknown != left.end() ? fmt::format("unknown argument '{}'", *unknown)
                                     : std::string(error.what()));
    return when_wrong;
}

} // namespace tools
