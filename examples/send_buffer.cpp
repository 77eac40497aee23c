// SPDX-License-Identifier: BSD-3-Clause
// A Gaudi buffer to a peer, zero-copy. Run it twice: `example_send_buffer` waits for the other,
// `example_send_buffer HOST:PORT` sends to it.
#include <gaudi/gaudi.hpp>

#include <cstdio>

int main(int argc, char** argv) {
    using gaudi::expect;
    try {
        auto card = expect(gaudi::open_device());
        auto nic = expect(gaudi::open_nic({.near_to = card->info()}));
        auto buffer = expect(card->heap().allocate(4 << 20));
        auto region = expect(nic->region(*card, buffer, gaudi::way_policy::require_zero_copy));
        if (argc > 1) {
            auto peer = expect(gaudi::connect(nic, argv[1]));
            expect(expect(peer.send(region)).wait());
        } else {
            auto door = expect(gaudi::listener::open(gaudi::default_port));
            auto peer = expect(door.accept(nic, std::chrono::minutes(1)));
            auto got = expect(expect(peer.receive(region)).wait());
            std::printf("%lu bytes received into Gaudi memory, by the way: %s\n", got.bytes,
                        std::string(gaudi::name_of(region.way())).c_str());
        }
    } catch (const std::exception& why) {
        std::fprintf(stderr, "%s\n", why.what());
        return 1;
    }
    return 0;
}
