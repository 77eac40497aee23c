// SPDX-License-Identifier: BSD-3-Clause
// The ten lines of the README.
#include <gaudi/gaudi.hpp>

#include <array>
#include <cstdio>

int main() {
    auto card = gaudi::open_device().value();                              // the first free Gaudi
    auto copies = card->copies().value();                                  // its DMA engines
    auto buffer = card->heap().allocate(1 << 20).value();                  // 1 MiB of HBM
    std::array<std::byte, 4096> out, back{};
    out.fill(std::byte{42});
    if (!copies.write(buffer.address(), out)->wait()) return 1;            // host -> HBM
    if (!copies.read(back, buffer.address())->wait()) return 1;            // HBM -> host
    auto window = buffer.dmabuf().value();                                 // for ibv_reg_dmabuf_mr
    std::printf("fd %d, offset %#lx, iova %#lx, data %s\n", window.fd, window.offset, window.iova.value(),
                out == back ? "right" : "wrong");
    return out == back ? 0 : 1;
}
