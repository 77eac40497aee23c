// SPDX-License-Identifier: BSD-3-Clause
// Keys for peers: what each opens, when it ends, and that no other connection gets further by it.
#include "src/connection/connection_core.hpp"
#include "src/os/internals.hpp"
#include "src/transfer/paths/nic_loopback.hpp"
#include "tests/rdma/peer_access.hpp"
#include "tests/rdma/rdma_test.hpp"

#include <array>
#include <atomic>

extern "C" int gaudi_lab_hca_arm_faults(const char* script);

namespace {

using namespace testing_support;
using enum remote_access;

class keys_test : public rdma_test {};

TEST_F(keys_test, what_was_offered_still_works_for_what_it_was_offered) {
    make_pair(memory_path::host, memory_path::zero_copy, one_page);
    const auto data = pattern(one_page, 3);
    for (const auto rights : {read, write, read | write}) {
        right.put(data);
        expect(right.link->offer(right.region, rights));
        const auto remote = expect(left.link->take_offer(soon));
        EXPECT_EQ(remote.rights, rights);
        const auto done = [&](result<transfer> begun) -> result<completion> {
            if (!begun)
                return tl::unexpected(begun.error());
            finish_all(*begun);
            return begun->wait(soon);
        };
        const auto in = done(left.link->read(left.region, remote));
        EXPECT_EQ(in.has_value(), allows(rights, read));
        const auto out = done(left.link->write(left.region, remote));
        EXPECT_EQ(out.has_value(), allows(rights, write));
        const auto* refused = !in ? &in.error() : !out ? &out.error() : nullptr;
        if (refused != nullptr) {
            EXPECT_EQ(refused->code(), errc::remote_access);
            EXPECT_NE(refused->message().find("which the peer offered for: " + name_of(rights)),
                      std::string::npos)
                << refused->message();
        }
        EXPECT_TRUE(left.link->alive()) << "what is known not to be offered breaks nothing";
    }
}

// A repeated offer on the same connection makes no new registration while the first offer is valid.
TEST_F(keys_test, are_shared_while_they_live_and_end_with_the_last) {
    make_pair(memory_path::host, memory_path::zero_copy, one_page);
    const auto regions = [&] { return right.nic->statistics(); };
    expect(right.link->offer(right.region, read));
    const auto first = regions();
    const auto given = expect(left.link->take_offer(soon));
    for (int i = 0; i < 100; ++i) {
        expect(right.link->offer(right.region, read));
        EXPECT_EQ(expect(left.link->take_offer(soon)).key, given.key);
    }
    EXPECT_EQ(regions().misses, first.misses);
    EXPECT_EQ(regions().regions, first.regions);
    // Keys from expose() are separate from those of offers: withdraw() does not end or await them.
    auto held = expect(right.region.expose(read)), same = expect(right.region.expose(read));
    EXPECT_NE(held.region().key, given.key);
    EXPECT_EQ(held.region().key, same.region().key);
    auto other = expect(right.region.expose(write));
    EXPECT_NE(other.region().key, held.region().key);
    EXPECT_EQ(regions().regions, first.regions + 2);
    right.link->withdraw(right.region);
    EXPECT_TRUE(held.valid());
    EXPECT_EQ(regions().regions, first.regions + 1);
    held = same = {};
    other = {};
    EXPECT_EQ(regions().regions, first.regions - 1) << "the chunk's own is left";
}

// Two peers have the same offer, and the owner withdraws one of them.
TEST_F(keys_test, that_are_withdrawn_from_one_peer_stay_with_the_other) {
    make_pair(memory_path::host, memory_path::zero_copy, one_page);
    const auto kept_left = std::move(*left.link), kept_right = std::move(*right.link);
    auto &first_peer = const_cast<connection&>(kept_left), &first_owner = const_cast<connection&>(kept_right);
    left.link.reset();
    right.link.reset();
    connect_both();
    expect(first_owner.offer(right.region, read));
    expect(right.link->offer(right.region, read));
    const auto first = expect(first_peer.take_offer(soon)), second = expect(left.link->take_offer(soon));
    EXPECT_NE(first.key, second.key);
    first_owner.withdraw(right.region);
    // The withdrawn key fails on every connection; the other key still works.
    auto good = expect(left.link->read(left.region, second));
    finish_all(good);
    expect(good.wait(soon));
    auto bad = expect(first_peer.read(left.region, first));
    EXPECT_EQ(bad.wait(soon).error().code(), errc::remote_access);
    auto again = expect(left.link->read(left.region, second));
    finish_all(again);
    expect(again.wait(soon));
    auto borrowed = expect(left.link->read(left.region, first));
    finish_all(borrowed);
    EXPECT_EQ(borrowed.wait(soon).error().code(), errc::remote_access);
}

// Keys of a released buffer, which is never freed, become invalid when the device is closed.
TEST_F(keys_test, of_abandoned_memory_end_with_the_device) {
    equip(right, 0, memory_path::zero_copy, one_page);
    auto buffer = expect(right.gaudi->heap().allocate(one_page));
    const auto region = expect(right.nic->region(*right.gaudi, buffer));
    const auto key = expect(region.expose(all));
    (void)buffer.release();
    EXPECT_TRUE(key.valid());
    right.region = {};
    right.buffer = {};
    right.gaudi.reset();
    EXPECT_FALSE(key.valid());
}

TEST_F(keys_test, end_with_the_buffer_and_before_it_is_handed_out_again) {
    equip(right, 0, memory_path::zero_copy, one_page);
    const auto address = right.buffer.address();
    const auto key = expect(right.region.expose(all));
    const auto part = expect(expect(right.region.part(64, 8)).expose(atomic));
    EXPECT_TRUE(key.valid() && part.valid());
    right.buffer = {};
    EXPECT_FALSE(key.valid() || part.valid());
    EXPECT_FALSE(right.region.allocated());
    const auto refused = right.region.expose(read);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), errc::not_allocated);
    right.buffer = expect(right.gaudi->heap().allocate(one_page));
    ASSERT_EQ(right.buffer.address(), address);
    EXPECT_FALSE(right.region.allocated()) << "the old region is not one of the new buffer";
    EXPECT_EQ(right.region.expose(read).error().code(), errc::not_allocated);
    const auto fresh = expect(right.nic->region(*right.gaudi, right.buffer));
    EXPECT_NE(expect(fresh.expose(all)).region().key, key.region().key);
}

// One thread makes keys of a buffer while another frees the buffer: no key stays valid.
TEST_F(keys_test, made_while_the_buffer_is_freed_do_not_survive_it) {
    equip(right, 0, memory_path::zero_copy, one_page);
    for (int round = 0; round < 50; ++round) {
        auto buffer = expect(right.gaudi->heap().allocate(one_page));
        const auto region = expect(right.nic->region(*right.gaudi, buffer));
        std::vector<remote_key> made;
        std::atomic<bool> begun = false;
        std::thread maker([&] {
            for (std::uint64_t i = 0; i < 64; ++i) {
                auto part = expect(region.part(i * 64, 64)).expose(read);
                begun = true;
                if (part)
                    made.push_back(std::move(*part));
                else
                    EXPECT_EQ(part.error().code(), errc::not_allocated);
            }
        });
        while (!begun)
            std::this_thread::yield();
        buffer = {};
        maker.join();
        for (const auto& each : made)
            EXPECT_FALSE(each.valid());
    }
}

// One thread drops the last key of a buffer while another frees the buffer: the heap must not reuse the
// memory before ibv_dereg_mr has returned.
TEST_F(keys_test, that_are_being_dropped_are_gone_before_the_memory_is_handed_out) {
    equip(left, 0, memory_path::host, one_page);
    right.nic = left.nic;
    right.gaudi = expect(open_device(by_index{1}));
    connect_both();
    for (int round = 0; round < 5; ++round) {
        auto buffer = expect(right.gaudi->heap().allocate(one_page));
        const auto region = expect(right.nic->region(*right.gaudi, buffer));
        std::optional<remote_key> key = expect(region.expose(write));
        const auto at = key->region();
        ASSERT_EQ(gaudi_lab_hca_arm_faults("ibv_dereg_mr 1 delay 200ms"), 0);
        std::atomic<bool> dropping = false;
        std::thread dropper([&] {
            dropping = true;
            key.reset();
        });
        while (!dropping)
            std::this_thread::yield();
        buffer = {};
        auto next = expect(right.gaudi->heap().allocate(one_page));
        ASSERT_EQ(next.address().value(), at.address) << "the same bytes again";
        auto begun = expect(left.link->write(left.region, at));
        dropper.join();
        gaudi_lab_hca_arm_faults("");
        EXPECT_EQ(begun.wait(soon).error().code(), errc::remote_access);
        left.link.reset();
        right.link.reset();
        connect_both();
    }
}

// Staged memory: when a free returns, no copy for a peer's write is in flight.
TEST_F(keys_test, of_staged_memory_leave_no_copy_after_a_free) {
    make_pair(memory_path::host, memory_path::staged, 4 << 20);
    const auto address = right.buffer.address();
    for (int round = 0; round < 4; ++round) {
        expect(right.link->offer(right.region, write));
        const auto remote = expect(left.link->take_offer(soon));
        std::fill(left.host.begin(), left.host.end(), std::byte{0x66});
        auto writing = expect(left.link->write(left.region, remote));
        for (int i = 0; i < 50 * (round + 1); ++i) { // free in the middle of the write
            left.link->poll();
            right.link->poll();
        }
        right.buffer = {};
        right.buffer = expect(right.gaudi->heap().allocate(4 << 20));
        ASSERT_EQ(right.buffer.address(), address);
        const auto mine = pattern(4 << 20, 3);
        right.put(mine);
        for (int i = 0; i < 200; ++i) {
            left.link->poll();
            right.link->poll();
        }
        EXPECT_EQ(right.get(), mine) << "bytes of a peer that had no right to them any more";
        left.link.reset();
        right.link.reset();
        right.region = expect(right.nic->region(*right.gaudi, right.buffer, path_policy::staged_only));
        connect_both();
    }
}

TEST_F(keys_test, with_impossible_rights_are_refused) {
    equip(left, 0, memory_path::host, one_page);
    EXPECT_EQ(left.region.expose(none).error().code(), errc::rights_invalid);
    EXPECT_EQ(left.region.expose(static_cast<remote_access>(8)).error().code(), errc::rights_invalid);
    equip(right, 0, memory_path::staged, one_page);
    EXPECT_EQ(right.region.expose(read).error().code(), errc::remote_staged);
    connect_both();
    EXPECT_EQ(right.link->offer(right.region, none).error().code(), errc::rights_invalid);
    EXPECT_EQ(left.link->offer(left.region, none).error().code(), errc::rights_invalid);
    EXPECT_EQ(name_of(read | atomic), "read, atomic");
    EXPECT_EQ(name_of(none), "nothing");
}

TEST_F(keys_test, are_bounded_like_other_registrations) {
    left.nic = expect(open_nic({}, {.bytes = 1ULL << 40, .regions = 4}));
    left.host.resize(8 * one_page);
    const auto region = expect(left.nic->region(left.host));
    std::vector<remote_key> held;
    for (std::uint64_t i = 0; i < 3; ++i)
        held.push_back(expect(expect(region.part(i * one_page, one_page)).expose(read)));
    const auto refused = expect(region.part(4 * one_page, one_page)).expose(read);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), errc::registrations_exhausted);
    held.pop_back();
    EXPECT_TRUE(expect(region.part(4 * one_page, one_page)).expose(read));
}

// The key in the handshake allows writes to the credit ring only.
TEST_F(keys_test, of_the_handshake_reach_the_credits_and_no_more) {
    for (const bool reading : {false, true}) {
        make_pair(memory_path::host, memory_path::host, one_page);
        const auto& remote_hello = core_of(*left.link)->link().remote_hello;
        remote_region at{remote_hello.credits_address, sizeof(credit::ring), remote_hello.credits_key};
        const auto mine = expect(left.nic->region(std::span(left.host).first(8)));
        if (!reading)
            at.address += at.length;
        at.length = 8;
        auto begun = reading ? expect(left.link->read(mine, at)) : expect(left.link->write(mine, at));
        finish_all(begun);
        EXPECT_EQ(begun.wait(soon).error().code(), errc::remote_access);
        left = {};
        right = {};
    }
}

// The owner has closed the connection and keeps its object.
TEST_F(keys_test, end_with_the_connection) {
    make_pair(memory_path::host, memory_path::zero_copy, one_page);
    expect(right.link->offer(right.region, all));
    const auto direct = expect(left.link->take_offer(soon));
    const auto staged = expect(right.nic->region(*right.gaudi, right.buffer, path_policy::staged_only));
    expect(right.link->offer(staged, read | write));
    const auto by_slabs = expect(left.link->take_offer(soon));
    auto& wire = const_cast<connection_link&>(core_of(*left.link)->link());
    expect(wire.control.send(
        frame_kind::access_request,
        encode_frame(access_request{1, by_slabs.address, one_page, by_slabs.key, /*writing*/ true})));
    std::optional<slab_grant> slab;
    while (!slab) {
        right.link->poll();
        for (const auto& received : expect(wire.control.receive()))
            if (received.kind == frame_kind::slab_grant)
                slab = decode_frame<slab_grant>(received.body);
    }
    const std::array<std::pair<std::uint64_t, std::uint32_t>, 3> keys{
        std::pair{direct.address, direct.key},
        std::pair{slab->address, slab->key},
        std::pair{wire.remote_hello.credits_address, wire.remote_hello.credits_key},
    };
    const auto outcome = [&](std::size_t index) {
        return access(core_of(*right.nic), write_it, keys[index].first, keys[index].second);
    };
    for (std::size_t i = 0; i < keys.size(); ++i)
        EXPECT_EQ(outcome(i), IBV_WC_SUCCESS) << "key " << i;
    right.link->close();
    for (std::size_t i = 0; i < keys.size(); ++i)
        EXPECT_EQ(outcome(i), IBV_WC_REM_ACCESS_ERR) << "key " << i;
}

// Each key of a granted slab allows access to one slab, in one direction.
TEST_F(keys_test, to_granted_slabs_open_one_slab_in_one_direction) {
    equip(left, 0, memory_path::staged, 4 * one_page);
    const auto& opened_device = core_of(*left.nic);
    std::vector<slab_grant> grants;
    for (const bool writing : {false, true}) {
        grants.clear();
        auto staging = expect(remote_staging::make(
            *opened_device, *internals::staging(left.region), one_page,
            [&](frame_kind kind, std::span<const std::byte> body) -> result<void> {
                if (kind == frame_kind::slab_grant)
                    grants.push_back(*decode_frame<slab_grant>(body));
                return {};
            },
            [](const access_request&) -> result<void> { return {}; }));
        ASSERT_TRUE(staging->open_access({1, left.region.address(), 4 * one_page, 0, writing}));
        while (grants.size() < 4)
            (void)expect(staging->progress());
        EXPECT_NE(grants[0].key, grants[1].key);
        const auto tries = [&](transfer_kind kind, std::uint64_t address, std::uint32_t key) {
            return access(opened_device, kind, address, key);
        };
        const auto allowed = writing ? write_it : read_it, other = writing ? read_it : write_it;
        EXPECT_EQ(tries(allowed, grants[0].address, grants[0].key), IBV_WC_SUCCESS);
        EXPECT_EQ(tries(other, grants[0].address, grants[0].key), IBV_WC_REM_ACCESS_ERR);
        EXPECT_EQ(tries(allowed, grants[1].address, grants[0].key), IBV_WC_REM_ACCESS_ERR);
        EXPECT_EQ(tries(allowed, grants[0].address + one_page - 63, grants[0].key), IBV_WC_REM_ACCESS_ERR);
        EXPECT_EQ(tries(allowed, grants[0].address - 1, grants[0].key), IBV_WC_REM_ACCESS_ERR);
        staging.reset();
        EXPECT_EQ(tries(allowed, grants[0].address, grants[0].key), IBV_WC_REM_ACCESS_ERR);
    }
}

// Copies in loopback need remote keys. Their registrations have a protection domain of their own, which no
// connection's queue pair belongs to.
TEST_F(keys_test, of_copies_in_loopback_are_out_of_reach_for_connections) {
    equip(left, 0, memory_path::zero_copy, one_page);
    const auto loop = expect(nic_loop::make(left.nic));
    const auto memory = expect(
        loop->remote_memory->find_or_register(*core_of(left.gaudi->heap()), left.buffer.address(), one_page));
    const std::pair<std::uint64_t, std::uint32_t> keys[] = {
        {reinterpret_cast<std::uintptr_t>(loop->bounce.bytes().data()), loop->bounce_region->rkey},
        {left.buffer.address().value(), internals::registration(memory)->remote_key()}};
    for (const auto& [address, key] : keys)
        for (const auto kind : {read_it, write_it}) {
            EXPECT_EQ(access(core_of(*left.nic), kind, address, key), IBV_WC_REM_ACCESS_ERR);
            EXPECT_EQ(access(core_of(*left.nic), kind, address, key, loop->domain), IBV_WC_SUCCESS)
                << "the key itself is valid";
        }
}

} // namespace
