// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/connection.hpp>

#include "src/connection/operation.hpp"
#include "src/rdma/queue_pair.hpp"
#include "tests/support/test_lab.hpp"

namespace testing_support {

constexpr std::size_t one_page = 4096;
constexpr auto read_it = gaudi::transfer_kind::read, write_it = gaudi::transfer_kind::write,
               add_to_it = gaudi::transfer_kind::fetch_add;

// Accesses 64 bytes as a peer of another connection would: by a queue pair in the protection domain of all
// connections, or in `domain`.
inline ibv_wc_status access(const std::shared_ptr<gaudi::nic_core>& through, gaudi::transfer_kind kind,
                            std::uint64_t address, std::uint32_t key, ibv_pd* domain = nullptr) {
    using gaudi::queue_pair;
    constexpr auto all = gaudi::remote_access::all;
    auto a = expect(queue_pair::make(through, 4, 1, all, domain)),
         b = expect(queue_pair::make(through, 4, 1, all, domain));
    const auto from_a = a.endpoint(), from_b = b.endpoint();
    expect(a.connect(from_a, from_b, 14, 6));
    expect(b.connect(from_b, from_a, 14, 6));
    std::vector<std::byte> bytes(64);
    const auto region = expect(through->register_host(bytes, gaudi::remote_access::none, domain));
    ibv_sge entry{reinterpret_cast<std::uintptr_t>(bytes.data()), 64, region->lkey};
    ibv_send_wr request{}, *bad = nullptr;
    request.opcode = kind == gaudi::transfer_kind::write ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
    request.wr.rdma = {address, key};
    request.sg_list = &entry;
    request.num_sge = 1;
    request.send_flags = IBV_SEND_SIGNALED;
    EXPECT_EQ(::ibv_post_send(a.get(), &request, &bad), 0);
    ibv_wc done{};
    while (::ibv_poll_cq(a.completions(), 1, &done) == 0) {
    }
    return done.status;
}

} // namespace testing_support
