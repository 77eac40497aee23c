// SPDX-License-Identifier: BSD-3-Clause
#include "tools/doctor/child_output.hpp"

#include <csignal>
#include <cstdio>
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace tools::doctor {

child_end run_child(const std::function<void()>& body, std::chrono::milliseconds silence,
                    const std::function<void(std::string_view line)>& on_line) {
    using clock = std::chrono::steady_clock;
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0)
        return {};
    std::fflush(nullptr);
    const auto child = ::fork();
    if (child == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        ::dup2(ends[1], STDOUT_FILENO);
        body();
        std::fflush(stdout);
        ::_exit(0);
    }
    ::close(ends[1]);
    std::string text;
    bool ended = child < 0;
    for (auto deadline = clock::now() + silence; !ended && clock::now() < deadline;) {
        pollfd readable{ends[0], POLLIN, 0};
        if (::poll(&readable, 1, 100) <= 0)
            continue;
        char bytes[4096];
        const auto count = ::read(ends[0], bytes, sizeof(bytes));
        ended = count <= 0;
        if (ended)
            break;
        deadline = clock::now() + silence;
        text.append(bytes, static_cast<std::size_t>(count));
        for (auto end = text.find('\n'); end != text.npos; end = text.find('\n')) {
            on_line(std::string_view(text).substr(0, end));
            text.erase(0, end + 1);
        }
    }
    ::close(ends[0]);
    if (!text.empty())
        on_line(text);
    if (child < 0)
        return {};
    if (!ended)
        ::kill(child, SIGKILL);
    // A call that hangs in the kernel keeps even a killed process.
    int status = 0;
    for (int tries = 0; ::waitpid(child, &status, ended ? 0 : WNOHANG) == 0 && tries < 500; ++tries)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return {ended, ended && WIFSIGNALED(status) ? WTERMSIG(status) : 0};
}

std::optional<std::string> child_output(const std::function<void()>& body,
                                        std::chrono::milliseconds silence) {
    std::string text;
    const auto end = run_child(
        [&] {
            const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
            ::dup2(nothing, STDIN_FILENO);
            ::dup2(nothing, STDERR_FILENO);
            body();
        },
        silence, [&](std::string_view line) { text.append(line).append("\n"); });
    return end.in_time ? std::optional(text) : std::nullopt;
}

} // namespace tools::doctor
