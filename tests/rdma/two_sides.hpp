// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/gaudi.hpp>

#include "tests/support/device_bytes.hpp"
#include "tests/support/pattern.hpp"

#include <future>
#include <optional>
#include <string>
#include <vector>

namespace testing_support {

using namespace gaudi;
using std::chrono::milliseconds;

constexpr auto soon = milliseconds(20000);

// Both sides of a connection in one process. Each side has a NIC, a region and, except for host memory, a
// Gaudi.
// `Where`: the fixture that has the devices and the NIC, with device_for_test(number) and nic_for_test().
template <typename Where>
class two_sides : public Where {
protected:
    struct side {
        std::shared_ptr<device> gaudi;
        std::shared_ptr<gaudi::nic> nic;
        std::vector<std::byte> host;
        device_buffer buffer;
        local_region region;
        std::optional<connection> link;

        // Write and read the bytes of the region, in host or device memory.
        void put(std::span<const std::byte> bytes) {
            if (!buffer)
                std::copy(bytes.begin(), bytes.end(), host.begin());
            else
                write_bytes(*gaudi, buffer.address(), bytes);
        }
        [[nodiscard]] std::vector<std::byte> get() const {
            if (!buffer)
                return host;
            std::vector<std::byte> bytes(buffer.size());
            read_bytes(*gaudi, bytes, buffer.address());
            return bytes;
        }
    };

    void TearDown() override {
        close_both();
        Where::TearDown();
    }
    void close_both() {
        for (auto* each : {&left, &right}) {
            each->link.reset();
            each->region = {};
            each->buffer = {};
            each->nic.reset();
            each->gaudi.reset();
        }
    }

    // `path`: host, zero-copy or staged.
    void equip(side& each, unsigned number, memory_path path, std::size_t size) {
        each.nic = this->nic_for_test();
        if (path == memory_path::host) {
            each.host.resize(size);
            each.region = expect(each.nic->region(each.host));
            return;
        }
        each.gaudi = this->device_for_test(number);
        each.buffer = expect(each.gaudi->heap().allocate(size));
        each.region = expect(each.nic->region(*each.gaudi, each.buffer,
                                              path == memory_path::staged ? path_policy::staged_only
                                                                          : path_policy::require_zero_copy));
    }

    void connect_both(const connection_options& options = {}) {
        const auto door = expect(listener::open(0, "127.0.0.1"));
        auto accepted = std::async(std::launch::async, [&] { return door.accept(right.nic, soon, options); });
        left.link.emplace(expect(connect(left.nic, "127.0.0.1:" + std::to_string(door.port()), options)));
        right.link.emplace(expect(accepted.get()));
    }

    void make_pair(memory_path left_path, memory_path right_path, std::size_t size,
                   const connection_options& options = {}) {
        equip(left, 0, left_path, size);
        equip(right, 1, right_path, size);
        connect_both(options);
    }

    // Both ends belong to this thread: it must poll both while it waits.
    template <typename... Transfers>
    void finish_all(Transfers&... transfers) {
        const auto deadline = std::chrono::steady_clock::now() + soon;
        while (!(transfers.done() && ...) && std::chrono::steady_clock::now() < deadline) {
            left.link->poll();
            right.link->poll();
        }
    }

    side left, right;
};

} // namespace testing_support
