// SPDX-License-Identifier: BSD-3-Clause
// The ten lines of the README.
#include <gaudi/gaudi.hpp>

#include <array>
#include <cstdio>

int main() {
    auto card = gaudi::open_device().value();             // the first free Gaudi
    auto copies = card->copies().value();                 // its DMA engines
    auto buffer = card->heap().allocate(1 << 20).value(); // 1 MiB of HBM
    std::array<std::byte, 4096> out, back{};
    out.fill(std::byte{42});
    auto sent = copies.write(buffer.address(), out)->wait();     // host -> HBM
    auto received = copies.read(back, buffer.address())->wait(); // HBM -> host
    bool right = sent && received && out == back;
    auto window = buffer.dmabuf().value(); // for ibv_reg_dmabuf_mr
    std::printf("fd %d, offset %#lx, iova %#lx, data %s\n", window.fd, window.offset, window.iova.value(),
                right ? "right" : "wrong");
    return right ? 0 : 1;
}
