// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "tests/support/child.hpp"
#include "tests/support/test_lab.hpp"

#include <chrono>
#include <cstdlib>
#include <fmt/format.h>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

namespace testing_support {

inline std::vector<std::string> words(const std::string& text) {
    std::istringstream in(text);
    std::vector<std::string> all;
    for (std::string word; in >> word;)
        all.push_back(word);
    return all;
}

// Whether somebody on this host listens on a TCP port. A connection to find out would be taken for the
// client.
inline bool listening(unsigned port, const std::string& tables = "/proc/net") {
    for (const auto* table : {"/tcp", "/tcp6"}) {
        std::ifstream file(tables + table);
        const auto wanted = fmt::format(":{:04X} ", port);
        for (std::string line; std::getline(file, line);)
            if (const auto at = line.find(wanted); at != line.npos && line.find(" 0A ", at) != line.npos)
                return true;
    }
    return false;
}

// UCX patches the program's code at its start and waits 0.4 s for other threads to leave it, which there are
// none of.
inline void hurry_ucx() {
    ::setenv("UCX_MEM_MMAP_HOOK_MODE", "reloc", 0);
}

// Below the range that the kernel takes for connections of its own choice. A test program has a network of
// its own (own_network.cpp), where nothing else listens; without the right to that it begins where others
// hardly do.
inline unsigned free_port() {
    static unsigned next = static_cast<unsigned>(::getpid()) * 23;
    do
        ++next;
    while (listening(21000 + next % 11000));
    return 21000 + next % 11000;
}

struct both_results {
    program_result server, client;
};

// Somebody else's programs in pairs, in the lab: the server first, the client when it listens.
class judge : public test_lab {
protected:
    static std::vector<std::string> in_lab(const std::string& options, const std::string& command) {
        auto all = words(fmt::format("{} lab run {} --", GAUDI_DIRECT_TOOL, options));
        for (const auto& word : words(command))
            all.push_back(word);
        return all;
    }

    static both_results run_both(const std::vector<std::string>& server,
                                 const std::vector<std::string>& client, unsigned port,
                                 const std::string& tables = "/proc/net",
                                 std::chrono::seconds limit = std::chrono::seconds(120)) {
        running_program serving(server, without_hlthunk);
        (void)wait_until_listening(serving, port, tables);
        both_results both;
        both.client = run_program(client, without_hlthunk, limit);
        both.server = serving.wait(limit);
        return both;
    }
    // False: the server ended without.
    static bool wait_until_listening(running_program& server, unsigned port,
                                     const std::string& tables = "/proc/net") {
        while (!listening(port, tables)) {
            if (server.ended())
                return false;
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
        return true;
    }
    // Programs choose their library themselves.
    static inline const std::vector<std::string> without_hlthunk{"GAUDI_DIRECT_HLTHUNK"};
};

} // namespace testing_support
