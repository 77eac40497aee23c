// SPDX-License-Identifier: BSD-3-Clause
#include "tools/commands.hpp"
#include "tools/self.hpp"

#include <gaudi/version.hpp>

#include <exception>
#include <fmt/format.h>

int main(int argc, char** argv) {
    CLI::App program{"Zero-copy data movement for Intel Gaudi memory", "gaudi-direct"};
    program.set_version_flag("--version", std::string(gaudi::version()));
    program.require_subcommand(1);
    int outcome = tools::ok;
    tools::add_info(program, outcome);
    tools::add_lab(program, outcome);
    try {
        program.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        return program.exit(error) == 0 ? tools::ok : tools::usage;
    } catch (const std::exception& error) {
        fmt::print(stderr, "gaudi-direct: {}\n", error.what());
        return tools::failed;
    }
    return outcome;
}
