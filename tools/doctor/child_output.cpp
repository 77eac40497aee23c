// SPDX-License-Identifier: BSD-3-Clause
#include "tools/doctor/child_output.hpp"

#include <csignal>
#include <cstdio>
#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tools::doctor {

std::optional<std::string> child_output(const std::function<void()>& body, std::chrono::milliseconds limit) {
    using clock = std::chrono::steady_clock;
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0)
        return std::nullopt;
    std::fflush(nullptr);
    const auto child = ::fork();
    if (child == 0) {
        const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
        ::dup2(nothing, STDIN_FILENO);
        ::dup2(ends[1], STDOUT_FILENO);
        ::dup2(nothing, STDERR_FILENO);
        body();
        std::fflush(stdout);
        ::_exit(0);
    }
    ::close(ends[1]);
    std::string text;
    bool ended = child < 0;
    for (const auto deadline = clock::now() + limit; !ended && clock::now() < deadline;) {
        pollfd readable{ends[0], POLLIN, 0};
        if (::poll(&readable, 1, 100) <= 0)
            continue;
        char bytes[4096];
        const auto count = ::read(ends[0], bytes, sizeof(bytes));
        ended = count <= 0;
        if (!ended)
            text.append(bytes, static_cast<std::size_t>(count));
    }
    ::close(ends[0]);
    if (child > 0) {
        if (!ended)
            ::kill(child, SIGKILL);
        ::waitpid(child, nullptr, 0);
    }
    return ended && child > 0 ? std::optional(text) : std::nullopt;
}

} // namespace tools::doctor
