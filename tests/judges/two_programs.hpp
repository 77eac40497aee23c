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

// Whether a process listens on a TCP port. Reads /proc: a server would take a test connection for its client.
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

// By default UCX patches the program's code at start, and waits 0.4 s for other threads to leave it.
inline void shorten_ucx_timeouts() {
    ::setenv("UCX_MEM_MMAP_HOOK_MODE", "reloc", 0);
}

// A port below the kernel's ephemeral range. A test program has its own network namespace (own_network.cpp),
// where nothing else listens; without permission for that, the first port depends on the pid.
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

// Runs pairs of third-party programs in the lab: the server first, the client once the server listens.
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
        (void)wait_until_listening(serving, port, tables, limit);
        both_results both;
        both.client = run_program(client, without_hlthunk, limit);
        both.server = serving.wait(limit);
        return both;
    }
    // False: the server ended without listening, or fails the test because it does not listen in time.
    static bool wait_until_listening(running_program& server, unsigned port,
                                     const std::string& tables = "/proc/net",
                                     std::chrono::seconds limit = std::chrono::seconds(120)) {
        const auto deadline = std::chrono::steady_clock::now() + limit;
        while (!listening(port, tables)) {
            if (server.ended())
                return false;
            if (std::chrono::steady_clock::now() > deadline) {
                ADD_FAILURE() << "the server does not listen on port " << port << " after " << limit.count()
                              << " s; its output so far:\n"
                              << server.output();
                return false;
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
        return true;
    }
    // Unset, so that programs choose the library themselves.
    static inline const std::vector<std::string> without_hlthunk{"GAUDI_DIRECT_HLTHUNK"};
};

} // namespace testing_support
