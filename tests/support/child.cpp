// SPDX-License-Identifier: BSD-3-Clause
#include "tests/support/child.hpp"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <poll.h>
#include <stdexcept>
#include <sys/socket.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace testing_support {
namespace {

using clock = std::chrono::steady_clock;

int status_of(int raw) {
    return WIFEXITED(raw) ? WEXITSTATUS(raw) : 128 + WTERMSIG(raw);
}

} // namespace

child::child(const std::function<int()>& body) {
    std::fflush(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
        int status = 99;
        try {
            status = body();
        } catch (const std::exception& error) {
            std::fprintf(stderr, "child: %s\n", error.what());
        }
        std::fflush(nullptr);
        ::_exit(status);
    }
}

child::~child() {
    if (!ended_) {
        kill_it();
        (void)wait();
    }
}

int child::wait(std::chrono::seconds limit) {
    const auto deadline = clock::now() + limit;
    int raw = 0;
    while (::waitpid(pid_, &raw, WNOHANG) == 0) {
        if (clock::now() > deadline)
            return -1;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ended_ = true;
    return status_of(raw);
}

void child::kill_it() {
    ::kill(pid_, SIGKILL);
}

gate::gate() {
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends_) != 0)
        throw std::runtime_error("socketpair");
}

gate::~gate() {
    ::close(ends_[0]);
    ::close(ends_[1]);
}

void gate::open() {
    if (::send(ends_[0], "x", 1, MSG_NOSIGNAL) != 1)
        throw std::runtime_error("gate");
}

bool gate::wait(std::chrono::seconds limit) {
    pollfd waited{ends_[1], POLLIN, 0};
    char byte;
    return ::poll(&waited, 1, static_cast<int>(std::chrono::milliseconds(limit).count())) == 1 &&
           ::recv(ends_[1], &byte, 1, 0) == 1;
}

void gate::send(int fd) {
    char byte = 'f';
    iovec data{&byte, 1};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    auto* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
    if (::sendmsg(ends_[0], &message, MSG_NOSIGNAL) != 1)
        throw std::runtime_error("send descriptor");
}

int gate::receive() {
    char byte;
    iovec data{&byte, 1};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    int fd = -1;
    if (::recvmsg(ends_[1], &message, MSG_CMSG_CLOEXEC) == 1)
        if (auto* header = CMSG_FIRSTHDR(&message); header != nullptr)
            std::memcpy(&fd, CMSG_DATA(header), sizeof(fd));
    return fd;
}

program_result run_program(const std::vector<std::string>& command,
                           const std::vector<std::string>& environment, std::chrono::seconds limit) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0)
        throw std::runtime_error("pipe");
    std::fflush(nullptr);
    const pid_t pid = ::fork();
    if (pid == 0) {
        ::setpgid(0, 0);
        ::dup2(ends[1], 1);
        ::dup2(ends[1], 2);
        for (const auto& setting : environment) {
            const auto at = setting.find('=');
            if (at == setting.npos)
                ::unsetenv(setting.c_str());
            else
                ::setenv(setting.substr(0, at).c_str(), setting.substr(at + 1).c_str(), 1);
        }
        std::vector<char*> arguments;
        for (const auto& word : command)
            arguments.push_back(const_cast<char*>(word.c_str()));
        arguments.push_back(nullptr);
        ::execvp(arguments[0], arguments.data());
        ::_exit(127);
    }
    ::close(ends[1]);
    program_result result{-1, {}};
    const auto deadline = clock::now() + limit;
    char block[4096];
    for (;;) {
        pollfd waited{ends[0], POLLIN, 0};
        const auto left =
            std::chrono::duration_cast<std::chrono::milliseconds>(deadline - clock::now()).count();
        if (left <= 0 || ::poll(&waited, 1, static_cast<int>(left)) <= 0)
            break;
        const auto got = ::read(ends[0], block, sizeof(block));
        if (got <= 0)
            break;
        result.output.append(block, static_cast<std::size_t>(got));
    }
    ::close(ends[0]);
    int raw = 0;
    while (::waitpid(pid, &raw, WNOHANG) == 0) {
        if (clock::now() > deadline) {
            ::kill(-pid, SIGKILL);
            ::waitpid(pid, &raw, 0);
            result.output += "\n(killed: it did not end in time)";
            return result;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    result.status = status_of(raw);
    return result;
}

program_result run_own_tests(const std::string& filter, const std::vector<std::string>& environment) {
    return run_program({std::filesystem::read_symlink("/proc/self/exe").string(), "--gtest_filter=" + filter},
                       environment);
}

} // namespace testing_support
