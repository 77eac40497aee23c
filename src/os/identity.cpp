// SPDX-License-Identifier: BSD-3-Clause
#include "src/os/identity.hpp"

#include "src/os/unique_fd.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <pthread.h>
#include <sys/random.h>
#include <sys/stat.h>

namespace gaudi {
namespace {

// The beginning of a small file in /proc; the rest of `text` is zero.
template <std::size_t size>
std::size_t read_text(const char* path, char (&text)[size]) {
    const unique_fd file(::open(path, O_RDONLY | O_CLOEXEC));
    const auto got = file ? ::read(file.get(), text, size - 1) : 0;
    return got > 0 ? static_cast<std::size_t>(got) : 0;
}

struct known_identity : process_identity {
    known_identity() {
        char boot_id[64] = {};
        machine = checksum64(boot_id, read_text("/proc/sys/kernel/random/boot_id", boot_id));
        renew();
        // A child is another process to its peers: with its parent's random number it would be taken for it.
        ::pthread_atfork(nullptr, nullptr, [] { self().renew(); });
    }
    void renew() {
        pid = static_cast<std::uint32_t>(::getpid());
        start_time = start_time_of(pid);
        struct stat status {};
        pid_namespace = ::stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
        if (::getrandom(random.data(), sizeof(random), GRND_NONBLOCK) != sizeof(random))
            random = {checksum64(&pid, sizeof(pid)), start_time ^ machine};
    }
    static known_identity& self() {
        static known_identity instance;
        return instance;
    }
};

} // namespace

const process_identity& own_identity() {
    return known_identity::self();
}

std::uint64_t start_time_of(std::uint32_t pid) {
    char path[32], text[1024] = {};
    std::snprintf(path, sizeof(path), "/proc/%u/stat", pid);
    read_text(path, text);
    // The command name may contain any character and ends at the last parenthesis; the start time is the 20th
    // field after it.
    const char* at = std::strrchr(text, ')');
    if (at == nullptr || at[1] == 0 || at[2] == 'Z')
        return 0;
    for (int field = 0; at != nullptr && field < 20; ++field)
        at = std::strchr(at + 1, ' ');
    return at != nullptr ? std::strtoull(at, nullptr, 10) : 0;
}

} // namespace gaudi
