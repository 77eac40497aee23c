// SPDX-License-Identifier: BSD-3-Clause
#include "ucx/base/key.hpp"

#include <gaudi/ipc.hpp>

#include <cstddef>
#include <cstring>

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

} // namespace

memory_key memory_key::make(std::uint16_t kind, std::uint64_t base, std::uint64_t length) {
    const auto self = gaudi::own_process();
    memory_key made;
    made.kind = kind;
    made.machine = self.machine;
    made.process = self.random[0];
    made.pid = static_cast<std::uint32_t>(self.pid);
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
    const auto self = gaudi::own_process();
    return machine == self.machine && process == self.random[0];
}

} // namespace gaudi_ucx
