// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/gaudi.hpp>

#include <span>

namespace testing_support {

// Write and read device memory: by the device's own engine, or where it has none, as a copier does it.
inline void write_bytes(gaudi::device& of, gaudi::device_address to, std::span<const std::byte> from) {
    if (auto engine = of.copies())
        return (void)gaudi::expect(gaudi::expect(engine->write(to, from)).wait());
    gaudi::copier copies;
    (void)gaudi::expect(gaudi::expect(copies.copy({to, from.size()}, from)).wait());
}

inline void read_bytes(gaudi::device& of, std::span<std::byte> to, gaudi::device_address from) {
    if (auto engine = of.copies())
        return (void)gaudi::expect(gaudi::expect(engine->read(to, from)).wait());
    gaudi::copier copies;
    (void)gaudi::expect(gaudi::expect(copies.copy(to, {from, to.size()})).wait());
}

} // namespace testing_support
