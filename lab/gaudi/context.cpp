// SPDX-License-Identifier: BSD-3-Clause
#include "lab/gaudi/context.hpp"

#include "abi/hlthunk.h"

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace lab::gaudi {

context_lock::context_lock(context& locked) : context_(locked) {
    if (pthread_mutex_lock(&context_.mutex) == EOWNERDEAD) {
        pthread_mutex_consistent(&context_.mutex);
        if (context_.mutating.exchange(0) != 0)
            context_.status = HL_DEVICE_STATUS_NEEDS_RESET;
    }
}

context_lock::~context_lock() {
    pthread_mutex_unlock(&context_.mutex);
}

void initialise(context& fresh) {
    if (fresh.magic == context::magic_value)
        return;
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&fresh.mutex, &attributes);
    pthread_mutexattr_destroy(&attributes);
    fresh.magic = context::magic_value;
}

void wipe(context& wiped) {
    const context_lock lock(wiped);
    // Frees the tables' pages, which also zeroes them; a plain memset would touch all of a mostly empty file.
    // The status is read without the lock, so it is set separately below.
    auto* const begin = reinterpret_cast<char*>(&wiped.status + 1);
    auto* const tables = reinterpret_cast<char*>(wiped.page_next);
    std::memset(begin, 0, static_cast<std::size_t>(tables - begin));
    ::madvise(tables, static_cast<std::size_t>(reinterpret_cast<char*>(&wiped + 1) - tables), MADV_REMOVE);
    ++wiped.epoch;
    wiped.resetting = 0;
    wiped.next_handle = 1;
    wiped.next_export = 1;
    wiped.next_import = 1;
    wiped.next_buffer_id = 1;
    wiped.next_sequence = 1;
    wiped.status = HL_DEVICE_STATUS_OPERATIONAL;
    wiped.notifier_fd = -1;
}

namespace {

std::uint64_t read_start_time(std::int32_t process) {
    char path[64], text[1024];
    std::snprintf(path, sizeof(path), "/proc/%d/stat", process);
    const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    const auto length = ::read(fd, text, sizeof(text) - 1);
    ::close(fd);
    if (length <= 0)
        return 0;
    text[length] = '\0';
    // The name in brackets may contain anything; field 22 is counted from the last closing bracket.
    const char* field = std::strrchr(text, ')');
    if (field == nullptr || field[1] == '\0' || field[2] == 'Z')
        return 0;
    for (int i = 2; i < 22 && field != nullptr; ++i)
        field = std::strchr(field + 1, ' ');
    return field != nullptr ? std::strtoull(field, nullptr, 10) : 0;
}

} // namespace

std::uint64_t process_start_time(std::int32_t process) {
    if (process != ::getpid())
        return read_start_time(process);
    // Called at every submission, so the value is cached; a child has another pid and reads its own.
    static std::atomic<std::int32_t> cached_process{0};
    static std::atomic<std::uint64_t> start{0};
    if (cached_process.load(std::memory_order_acquire) != process) {
        start.store(read_start_time(process), std::memory_order_relaxed);
        cached_process.store(process, std::memory_order_release);
    }
    return start.load(std::memory_order_relaxed);
}

} // namespace lab::gaudi
