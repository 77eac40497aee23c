// SPDX-License-Identifier: BSD-3-Clause
// Sends a Gaudi buffer to a peer, zero-copy: `example_send_buffer 20000` receives, `example_send_buffer
// HOST:20000` sends.
#include <gaudi/gaudi.hpp>

#include <cstdio>
#include <string>

namespace {

using gaudi::expect;

void send_or_receive(const std::string& where) {
    auto device = expect(gaudi::open_device());                      // the first free Gaudi
    auto nic = expect(gaudi::open_nic({.near_to = device->info()})); // the NIC nearest to it
    auto buffer = expect(device->heap().allocate(4 << 20));          // 4 MiB of HBM
    auto region = expect(nic->region(*device, buffer));              // registered through its DMA-BUF
    if (where.find(':') != where.npos) {
        auto peer = expect(gaudi::connect(nic, where)); // handshake, queue pairs connected
        expect(expect(peer.send(region)).wait());       // HBM -> NIC
    } else {
        auto door = expect(gaudi::listener::open(static_cast<std::uint16_t>(std::stoul(where))));
        auto peer = expect(door.accept(nic, std::chrono::minutes(1)));
        auto got = expect(expect(peer.receive(region)).wait()); // NIC -> HBM
        std::printf("%lu bytes, %s\n", got.bytes, gaudi::name_of(region.path()).data());
    }
}

} // namespace

int main(int argc, char** argv) {
    if (argc != 2) {
        std::fprintf(stderr, "usage: %s PORT | HOST:PORT\n", argv[0]);
        return 2;
    }
    try {
        send_or_receive(argv[1]);
    } catch (const std::exception& why) {
        std::fprintf(stderr, "%s\n", why.what());
        return 1;
    }
    return 0;
}
