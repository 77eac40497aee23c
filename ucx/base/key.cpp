// SPDX-License-Identifier: BSD-3-Clause
#include "ucx/base/key.hpp"

#include <gaudi/ipc.hpp>

#include "src/os/checksum.hpp"

#include <cstddef>

namespace gaudi_ucx {
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
    checksum = gaudi::checksum64(this, offsetof(memory_key, checksum));
}

std::string_view memory_key::fault() const {
    if (magic != magic_value)
        return "no key of Gaudi memory";
    if (version != current_version)
        return "a key of another version";
    if (checksum != gaudi::checksum64(this, offsetof(memory_key, checksum)) || length == 0 ||
        base + length < base || kind > device)
        return "a corrupted key";
    return {};
}

bool memory_key::valid_in_this_process() const {
    const auto self = gaudi::own_process();
    // Not by pid: it may be another process's by now, or in another container.
    return machine == self.machine && process == self.random[0];
}

} // namespace gaudi_ucx
