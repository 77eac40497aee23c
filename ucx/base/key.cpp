// SPDX-License-Identifier: BSD-3-Clause
#include "ucx/base/key.hpp"

#include <cstddef>
#include <cstring>
#include <fcntl.h>
#include <pthread.h>
#include <sys/random.h>
#include <unistd.h>

namespace gaudi_ucx {
namespace {

std::uint64_t mix(const void* bytes, std::size_t count) {
    std::uint64_t hash = 0xcbf29ce484222325;
    const auto* at = static_cast<const unsigned char*>(bytes);
    for (; count >= 8; count -= 8, at += 8) {
        std::uint64_t word = 0;
        std::memcpy(&word, at, 8);
        hash = (hash ^ word) * 0x9e3779b97f4a7c15;
        hash ^= hash >> 29;
    }
    for (; count > 0; --count, ++at)
        hash = (hash ^ *at) * 0x100000001b3;
    return hash;
}

struct identity {
    std::uint64_t machine = 0, process = 0;
    std::uint32_t pid = 0;

    identity() {
        char boot_id[64] = {};
        if (const int fd = ::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC); fd >= 0) {
            const auto got = ::read(fd, boot_id, sizeof(boot_id));
            ::close(fd);
            machine = mix(boot_id, got > 0 ? static_cast<std::size_t>(got) : 0);
        }
        renew();
        ::pthread_atfork(nullptr, nullptr, [] { own().renew(); });
    }
    void renew() {
        pid = static_cast<std::uint32_t>(::getpid());
        if (::getrandom(&process, sizeof(process), GRND_NONBLOCK) != sizeof(process))
            process = mix(&pid, sizeof(pid)) ^ machine;
    }
    static identity& own() {
        static identity self;
        return self;
    }
};

} // namespace

memory_key memory_key::make(std::uint16_t kind, std::uint64_t base, std::uint64_t length) {
    const auto& self = identity::own();
    memory_key made;
    made.kind = kind;
    made.machine = self.machine;
    made.process = self.process;
    made.pid = self.pid;
    made.base = base;
    made.length = length;
    return made;
}

void memory_key::seal() {
    checksum = mix(this, offsetof(memory_key, checksum));
}

std::string_view memory_key::fault() const {
    if (magic != magic_value)
        return "no key of Gaudi memory";
    if (version != current_version)
        return "a key of another version";
    if (checksum != mix(this, offsetof(memory_key, checksum)) || length == 0 || base + length < base ||
        kind > device)
        return "a corrupted key";
    return {};
}

bool memory_key::ours() const {
    const auto& self = identity::own();
    return machine == self.machine && process == self.process;
}

} // namespace gaudi_ucx
