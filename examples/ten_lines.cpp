// SPDX-License-Identifier: BSD-3-Clause
// The ten lines of the README.
#include <gaudi/gaudi.hpp>

#include <array>
#include <cstdio>

int main() {
    using gaudi::expect;
    auto device = expect(gaudi::open_device());             // the first free Gaudi
    auto buffer = expect(device->heap().allocate(1 << 20)); // 1 MiB of HBM
    std::array<std::byte, 4096> out, back{};
    out.fill(std::byte{42});
    gaudi::copier copies; // by the device's engines, or where it has none, by a NIC
    expect(expect(copies.copy({buffer.address(), out.size()}, out)).wait());   // host -> HBM
    expect(expect(copies.copy(back, {buffer.address(), back.size()})).wait()); // HBM -> host
    auto window = expect(buffer.dmabuf());                                     // for ibv_reg_dmabuf_mr
    std::printf("fd %d, offset %#lx, iova %#lx, data %s\n", window.fd, window.offset, window.iova.value(),
                out == back ? "right" : "wrong");
    return out == back ? 0 : 1;
}
