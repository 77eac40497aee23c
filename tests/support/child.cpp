// SPDX-License-Identifier: BSD-3-Clause
#include "tests/support/child.hpp"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
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

// A message of one byte with room for one descriptor.
class descriptor_message {
public:
    descriptor_message() {
        head.msg_iov = &data_;
        head.msg_iovlen = 1;
        head.msg_control = control_;
        head.msg_controllen = sizeof(control_);
    }
    descriptor_message(const descriptor_message&) = delete;
    descriptor_message& operator=(const descriptor_message&) = delete;

    msghdr head{};

private:
    char byte_ = 'f';
    iovec data_{&byte_, 1};
    alignas(cmsghdr) char control_[CMSG_SPACE(sizeof(int))] = {};
};

bool another_thread_runs() {
    const auto own = std::to_string(::gettid());
    for (const auto& each : std::filesystem::directory_iterator("/proc/self/task")) {
        std::ifstream file(each.path() / "stat");
        std::string line;
        std::getline(file, line);
        const auto end = line.rfind(')'); // end of the name; the state follows
        if (each.path().filename() != own && end != line.npos && line.find_first_of("RD", end) == end + 2)
            return true;
    }
    return false;
}

// A forked child inherits locks that other threads hold, for example inside an allocator, and locks of the
// sanitizers are never released in the child. So wait until the other threads sleep: a thread that has just
// started allocates. In a busy test they never sleep; the wait then ends after 2 s.
void let_other_threads_rest() {
    const auto deadline = clock::now() + std::chrono::seconds(2);
    for (int quiet = 0; quiet < 2 && clock::now() < deadline;) {
        quiet = another_thread_runs() ? 0 : quiet + 1;
        if (quiet == 0)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

} // namespace

child::child(const std::function<int()>& body) {
    let_other_threads_rest();
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
    for (;;) {
        const auto waited = ::waitpid(pid_, &raw, WNOHANG);
        if (waited == pid_) {
            ended_ = true;
            return status_of(raw);
        }
        if (clock::now() > deadline || (waited < 0 && errno != EINTR))
            return -1;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

void child::kill_it() {
    ::kill(pid_, SIGKILL);
}

void child::stop() {
    stop_process(pid_);
}

void child::go_on() {
    ::kill(pid_, SIGCONT);
}

void stop_process(pid_t pid) {
    ::kill(pid, SIGSTOP);
    siginfo_t info{};
    if (::waitid(P_PID, static_cast<id_t>(pid), &info, WSTOPPED | WNOWAIT) != 0)
        throw std::runtime_error("waitid");
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
    descriptor_message message;
    auto* header = CMSG_FIRSTHDR(&message.head);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
    if (::sendmsg(ends_[0], &message.head, MSG_NOSIGNAL) != 1)
        throw std::runtime_error("send descriptor");
}

int gate::receive() {
    descriptor_message message;
    int fd = -1;
    if (::recvmsg(ends_[1], &message.head, MSG_CMSG_CLOEXEC) == 1)
        if (auto* header = CMSG_FIRSTHDR(&message.head); header != nullptr)
            std::memcpy(&fd, CMSG_DATA(header), sizeof(fd));
    return fd;
}

running_program::running_program(const std::vector<std::string>& command,
                                 const std::vector<std::string>& environment) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0)
        throw std::runtime_error("pipe");
    std::fflush(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
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
    ::setpgid(pid_, pid_); // also in the parent: signal_group() may run before the child does
    ::close(ends[1]);
    stream_ = ends[0];
    reader_ = std::thread([this] { read_all(); });
}

running_program::~running_program() {
    if (reader_.joinable())
        (void)wait(std::chrono::seconds(0));
}

void running_program::read_all() {
    char block[4096];
    for (;;) {
        pollfd waited{stream_, POLLIN, 0};
        if (::poll(&waited, 1, 20) == 0) {
            if (stop_reading_)
                break;
            continue;
        }
        const auto got = ::read(stream_, block, sizeof(block));
        if (got <= 0)
            break;
        const std::lock_guard guard(mutex_);
        output_.append(block, static_cast<std::size_t>(got));
    }
    all_read_ = true;
}

std::string running_program::output() {
    const std::lock_guard guard(mutex_);
    return output_;
}

void running_program::reap() {
    int raw = 0;
    if (!status_ && ::waitpid(pid_, &raw, WNOHANG) == pid_)
        status_ = status_of(raw);
}

bool running_program::ended() {
    reap();
    return status_.has_value();
}

bool running_program::wait_for_output(const std::string& words, std::chrono::seconds limit) {
    for (const auto deadline = clock::now() + limit; clock::now() < deadline;
         std::this_thread::sleep_for(std::chrono::milliseconds(2))) {
        const bool last = ended(); // after the exit, all output is in the pipe
        if (output().find(words) != std::string::npos)
            return true;
        if (last && all_read_)
            return output().find(words) != std::string::npos;
    }
    return false;
}

void running_program::stop_it() const {
    stop_process(pid_);
}

void running_program::signal_group(int signal) const {
    ::kill(-pid_, signal);
}

program_result running_program::wait(std::chrono::seconds limit) {
    const auto deadline = clock::now() + limit;
    while (!ended() && clock::now() < deadline)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    program_result result{-1, {}};
    if (status_) {
        result.status = *status_;
    } else {
        ::kill(-pid_, SIGKILL);
        int raw = 0;
        ::waitpid(pid_, &raw, 0);
        status_ = status_of(raw);
    }
    if (reader_.joinable()) {
        while (!all_read_ && clock::now() < deadline) // a descendant may hold the pipe open
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        stop_reading_ = true;
        reader_.join();
        ::close(stream_);
    }
    result.output = output();
    if (result.status == -1)
        result.output += "\n(killed: it did not end in time)";
    return result;
}

program_result run_program(const std::vector<std::string>& command,
                           const std::vector<std::string>& environment, std::chrono::seconds limit) {
    running_program running(command, environment);
    return running.wait(limit);
}

program_result run_own_tests(const std::string& filter, const std::vector<std::string>& environment) {
    return run_program({std::filesystem::read_symlink("/proc/self/exe").string(), "--gtest_filter=" + filter},
                       environment);
}

} // namespace testing_support
