// SPDX-License-Identifier: BSD-3-Clause
// What a connection has offered to its peer: keys of the NIC, and numbers of staged memory. The peer is the
// other end of a stream, which sends and receives frames by hand.
#include "src/connection/offer_table.hpp"

#include "src/os/internals.hpp"
#include "tests/connection/stream_pair.hpp"
#include "tests/rdma/peer_access.hpp"
#include "tests/rdma/rdma_test.hpp"
#include "tests/support/expect_has.hpp"

#include <cstring>
#include <set>

namespace {

using namespace testing_support;

class offer_table_test : public rdma_test {
protected:
    static constexpr std::uint64_t page = 4096, buffer_bytes = 16 * page;

    void open(memory_path path) {
        equip(left, 0, path, buffer_bytes);
        auto streams = stream_pair();
        control_.emplace(std::move(streams.first), milliseconds(1000));
        peer_end_.emplace(std::move(streams.second), milliseconds(1000));
        table.emplace(*core_of(*left.nic), *control_, static_cast<std::uint32_t>(page));
    }
    void TearDown() override {
        table.reset();
        control_.reset();
        peer_end_.reset();
        rdma_test::TearDown();
    }

    [[nodiscard]] local_region part(std::uint64_t first_page, std::uint64_t pages = 1) const {
        return expect(left.region.part(first_page * page, pages * page));
    }
    [[nodiscard]] remote_region offer(const local_region& region, remote_access rights) {
        return expect(table->offer(region, rights));
    }
    // As a peer of this NIC would access it with the key.
    [[nodiscard]] bool opens(transfer_kind kind, const remote_region& at) const {
        return access(core_of(*left.nic), kind, at.address, at.key) == IBV_WC_SUCCESS;
    }
    // The frames that the table has sent to the peer.
    template <typename Frame>
    std::vector<Frame> received(frame_kind kind) {
        std::vector<Frame> all;
        for (const auto& each : expect(peer_end_->receive())) {
            EXPECT_EQ(each.kind, kind);
            all.push_back(decode_frame<Frame>(each.body).value());
        }
        return all;
    }
    // The reason of the table's refusal; "" if it did not refuse the request.
    std::string refusal_of(const access_request& request) {
        expect(table->access_requested(request));
        const auto ends = received<access_end>(frame_kind::access_end);
        if (ends.empty())
            return "";
        EXPECT_EQ(ends.size(), 1U);
        EXPECT_EQ(ends[0].id, request.id);
        EXPECT_NE(ends[0].refusal, "");
        return ends[0].refusal;
    }
    std::vector<slab_grant> await_grants(std::size_t count) {
        std::vector<slab_grant> all;
        const auto deadline = std::chrono::steady_clock::now() + soon;
        while (all.size() < count && std::chrono::steady_clock::now() < deadline) {
            (void)expect(table->progress());
            for (const auto& each : received<slab_grant>(frame_kind::slab_grant))
                all.push_back(each);
        }
        EXPECT_EQ(all.size(), count);
        return all;
    }
    static access_request reading(std::uint64_t id, const remote_region& at) {
        return {id, at.address, at.length, at.key, /*writing*/ false};
    }
    static access_request writing(std::uint64_t id, const remote_region& at) {
        return {id, at.address, at.length, at.key, /*writing*/ true};
    }

    std::optional<offer_table> table;

private:
    std::optional<control_channel> control_, peer_end_;
};

TEST_F(offer_table_test, makes_one_key_for_the_same_bytes_and_rights) {
    open(memory_path::zero_copy);
    const auto first = offer(part(0), remote_access::read);
    EXPECT_EQ(first.address, left.region.address());
    EXPECT_EQ(first.length, page);
    EXPECT_EQ(first.rights, remote_access::read);
    const auto registered = left.nic->statistics().regions;
    EXPECT_EQ(offer(part(0), remote_access::read).key, first.key);
    EXPECT_EQ(left.nic->statistics().regions, registered);
    const std::set<std::uint32_t> keys{first.key, offer(part(0), remote_access::write).key,
                                       offer(part(1), remote_access::read).key,
                                       offer(part(0, 2), remote_access::read).key};
    EXPECT_EQ(keys.size(), 4U);
    EXPECT_EQ(left.nic->statistics().regions, registered + 3);
}

TEST_F(offer_table_test, numbers_staged_memory_and_repeats_no_number) {
    open(memory_path::staged);
    const auto first = offer(part(0), remote_access::read);
    EXPECT_EQ(first.path, memory_path::staged);
    EXPECT_EQ(first.address, left.region.address());
    EXPECT_EQ(first.length, page);
    EXPECT_EQ(offer(part(0), remote_access::read).key, first.key);
    std::set<std::uint32_t> keys{first.key, offer(part(0), remote_access::write).key,
                                 offer(part(1), remote_access::read).key};
    EXPECT_EQ(keys.size(), 3U);
    table->withdraw(part(0));
    EXPECT_TRUE(keys.insert(offer(part(0), remote_access::read).key).second)
        << "the peer may still use the number of the withdrawn offer";
}

TEST_F(offer_table_test, withdraws_every_key_to_the_bytes_and_no_other) {
    open(memory_path::zero_copy);
    const auto read = offer(part(0), remote_access::read), write = offer(part(0), remote_access::write),
               next = offer(part(1), remote_access::read), both = offer(part(0, 2), remote_access::read);
    EXPECT_TRUE(opens(read_it, read) && opens(write_it, write));
    table->withdraw(part(0));
    EXPECT_FALSE(opens(read_it, read));
    EXPECT_FALSE(opens(write_it, write));
    EXPECT_TRUE(opens(read_it, next));
    EXPECT_TRUE(opens(read_it, both)) << "another offer, though of the same page";
    table->withdraw(part(0)); // does nothing
    EXPECT_TRUE(opens(read_it, next));
    EXPECT_TRUE(opens(read_it, offer(part(0), remote_access::read)));
}

TEST_F(offer_table_test, two_tables_do_not_share_keys) {
    open(memory_path::zero_copy);
    auto streams = stream_pair();
    const control_channel silent(std::move(streams.first), milliseconds(1000));
    offer_table other(*core_of(*left.nic), silent, static_cast<std::uint32_t>(page));
    const auto mine = offer(part(0), remote_access::read),
               theirs = expect(other.offer(part(0), remote_access::read));
    EXPECT_NE(mine.key, theirs.key);
    table->withdraw(part(0));
    EXPECT_FALSE(opens(read_it, mine));
    EXPECT_TRUE(opens(read_it, theirs));
}

TEST_F(offer_table_test, ends_every_offer_and_slab_when_cleared) {
    open(memory_path::staged);
    const auto direct_region = expect(left.nic->region(*left.gaudi, left.buffer));
    const auto direct = offer(direct_region, remote_access::all);
    const auto staged = offer(part(0), remote_access::write);
    EXPECT_EQ(refusal_of(writing(1, staged)), "");
    const auto slab = await_grants(1).at(0);
    const remote_region granted{slab.address, slab.bytes, slab.key};
    EXPECT_TRUE(opens(read_it, direct));
    EXPECT_TRUE(opens(write_it, granted));
    table->clear();
    EXPECT_FALSE(opens(read_it, direct));
    EXPECT_FALSE(opens(write_it, granted));
    EXPECT_FALSE(table->busy());
    EXPECT_NE(refusal_of(writing(2, staged)), "");
    EXPECT_EQ(table->slab_returned({1, slab.slab}).error().code(), errc::protocol_violated);
}

TEST_F(offer_table_test, refuses_offers_that_make_no_sense) {
    open(memory_path::staged);
    const auto direct = expect(left.nic->region(*left.gaudi, left.buffer));
    for (const auto& region : {left.region, direct}) {
        for (const auto rights : {remote_access::none, static_cast<remote_access>(8)})
            EXPECT_EQ(table->offer(region, rights).error().code(), errc::rights_invalid);
        EXPECT_TRUE(table->offer(region, remote_access::read));
    }
    const auto kept = expect(left.gaudi->heap().allocate(page));
    left.buffer = {};
    for (const auto& region : {left.region, direct})
        EXPECT_EQ(table->offer(region, remote_access::read).error().code(), errc::not_allocated);
}

TEST_F(offer_table_test, serves_what_it_offered_to_its_first_and_last_byte) {
    open(memory_path::staged);
    const auto data = pattern(buffer_bytes, 1);
    left.put(data);
    const auto offered = offer(part(1, 2), remote_access::read);
    EXPECT_EQ(refusal_of(reading(1, offered)), "");
    EXPECT_EQ(refusal_of({2, offered.address + 2 * page - 1, 1, offered.key, false}), "");
    EXPECT_TRUE(table->busy());
    const auto grants = await_grants(3);
    for (const auto& grant : grants) {
        const auto* const from = data.data() + page + (grant.id == 2 ? 2 * page - 1 : grant.offset);
        EXPECT_EQ(std::memcmp(reinterpret_cast<const void*>(grant.address), from, grant.bytes), 0); // NOLINT
        expect(table->slab_returned({grant.id, grant.slab}));
    }
    std::multiset<std::uint64_t> ended;
    for (const auto deadline = std::chrono::steady_clock::now() + soon;
         ended.size() < 2 && std::chrono::steady_clock::now() < deadline;) {
        (void)expect(table->progress());
        for (const auto& end : received<access_end>(frame_kind::access_end)) {
            EXPECT_EQ(end.refusal, "");
            ended.insert(end.id);
        }
    }
    EXPECT_EQ(ended, (std::multiset<std::uint64_t>{1, 2}));
    EXPECT_FALSE(table->busy());
}

TEST_F(offer_table_test, refuses_an_access_beyond_the_offer) {
    open(memory_path::staged);
    const auto offered = offer(part(1, 2), remote_access::all);
    const auto begin = offered.address;
    for (const auto& [address, length] : {std::pair{begin, 2 * page + 1},
                                          {begin + 1, 2 * page},
                                          {begin + 2 * page, std::uint64_t{1}},
                                          {begin - 1, std::uint64_t{1}},
                                          {begin - 1, 2 * page},
                                          {begin, std::uint64_t{0}},
                                          {begin, ~0ULL},
                                          {begin + 1, ~0ULL},
                                          {std::uint64_t{0}, page},
                                          {~0ULL, std::uint64_t{2}}})
        for (const bool writes : {false, true})
            EXPECT_HAS(refusal_of({5, address, length, offered.key, writes}), "of a region of 8192");
    EXPECT_FALSE(table->busy());
}

TEST_F(offer_table_test, refuses_an_access_without_the_right_or_the_key) {
    open(memory_path::staged);
    const auto direct = expect(left.nic->region(*left.gaudi, left.buffer));
    const auto key_of_the_nic = offer(direct, remote_access::all).key;
    const auto read = offer(part(0), remote_access::read), write = offer(part(0), remote_access::write);
    EXPECT_HAS(refusal_of(writing(1, read)), "a write of memory that was offered for: read");
    EXPECT_HAS(refusal_of(reading(2, write)), "a read of memory that was offered for: write");
    const auto unknown = std::max(read.key, write.key) + 1;
    for (const std::uint32_t key : {0U, unknown, ~0U, key_of_the_nic}) {
        auto at = read;
        at.key = key;
        EXPECT_HAS(refusal_of(reading(3, at)), "no region with key " + std::to_string(key));
    }
    EXPECT_FALSE(table->busy());
    EXPECT_EQ(refusal_of(reading(4, read)), "") << "one offer takes nothing from the other";
    EXPECT_EQ(refusal_of(writing(5, write)), "");
}

TEST_F(offer_table_test, refuses_an_access_to_what_was_withdrawn_or_freed) {
    open(memory_path::staged);
    const auto read = offer(part(0), remote_access::read), write = offer(part(0), remote_access::write),
               other = offer(part(1), remote_access::all);
    table->withdraw(part(0));
    EXPECT_HAS(refusal_of(reading(1, read)), "no region with key");
    EXPECT_HAS(refusal_of(writing(2, write)), "no region with key");
    left.buffer = {};
    EXPECT_HAS(refusal_of(reading(3, other)), "was freed");
    left.buffer = expect(left.gaudi->heap().allocate(buffer_bytes));
    ASSERT_EQ(left.buffer.address().value(), left.region.address()) << "the same bytes again";
    EXPECT_HAS(refusal_of(reading(4, other)), "was freed");
    const auto fresh = expect(left.nic->region(*left.gaudi, left.buffer, path_policy::staged_only));
    EXPECT_EQ(refusal_of(reading(5, offer(fresh, remote_access::read))), "");
    EXPECT_NE(refusal_of(reading(6, other)), "") << "the old offer is not one of the new buffer";
}

// The error ends the connection: slabs were granted, and their bytes must not reach the memory.
TEST_F(offer_table_test, ends_an_open_access_whose_memory_is_withdrawn_or_freed) {
    open(memory_path::staged);
    for (const bool frees : {false, true}) {
        SCOPED_TRACE(frees);
        const auto mine = pattern(buffer_bytes, 3);
        const auto offered = offer(left.region, remote_access::write);
        EXPECT_EQ(refusal_of(writing(1, offered)), "");
        const auto grants = await_grants(remote_staging::slabs);
        for (const auto& grant : grants)
            std::memset(reinterpret_cast<void*>(grant.address), 0x66, grant.bytes); // NOLINT
        if (frees) {
            left.buffer = {};
            left.buffer = expect(left.gaudi->heap().allocate(buffer_bytes));
            ASSERT_EQ(left.buffer.address().value(), left.region.address());
        } else {
            table->withdraw(left.region);
        }
        left.put(mine);
        const auto ended = table->slab_returned({1, grants[0].slab});
        ASSERT_FALSE(ended);
        EXPECT_EQ(ended.error().code(), errc::remote_access);
        EXPECT_FALSE(table->copying());
        EXPECT_TRUE(left.get() == mine);
        table->clear();
    }
}

TEST_F(offer_table_test, ends_a_read_whose_memory_is_withdrawn_before_its_next_part) {
    open(memory_path::staged);
    const auto offered = offer(left.region, remote_access::read);
    EXPECT_EQ(refusal_of(reading(1, offered)), "");
    const auto grants = await_grants(remote_staging::slabs);
    table->withdraw(left.region);
    expect(table->slab_returned({1, grants[0].slab})); // that part was read before
    const auto ended = table->progress();
    ASSERT_FALSE(ended);
    EXPECT_EQ(ended.error().code(), errc::remote_access);
    EXPECT_TRUE(received<slab_grant>(frame_kind::slab_grant).empty());
}

TEST_F(offer_table_test, refuses_slabs_that_the_peer_does_not_have) {
    open(memory_path::staged);
    const auto refused = [&](std::uint64_t id, std::uint32_t slab) {
        const auto returned = table->slab_returned({id, slab});
        return !returned && returned.error().code() == errc::protocol_violated &&
               returned.error().message().find("slab " + std::to_string(slab)) != std::string::npos;
    };
    EXPECT_TRUE(refused(1, 0)) << "nothing was ever staged";
    const auto offered = offer(part(0), remote_access::write);
    EXPECT_TRUE(refused(1, 0));
    EXPECT_EQ(refusal_of(writing(1, offered)), "");
    const auto slab = await_grants(1).at(0).slab;
    EXPECT_TRUE(refused(2, slab));
    EXPECT_TRUE(refused(1, slab + 1));
    EXPECT_TRUE(refused(1, ~0U));
    EXPECT_TRUE(table->slab_returned({1, slab}));
    EXPECT_TRUE(refused(1, slab)) << "returned twice";
}

TEST_F(offer_table_test, refuses_a_request_with_the_id_of_one_that_is_open) {
    open(memory_path::staged);
    const auto offered = offer(part(0), remote_access::all);
    EXPECT_EQ(refusal_of(reading(1, offered)), "");
    EXPECT_HAS(refusal_of(writing(1, offered)), "requested twice");
    EXPECT_EQ(refusal_of(writing(2, offered)), "");
    for (std::uint64_t id = 3; id <= remote_staging::most_accesses; ++id)
        ASSERT_EQ(refusal_of(reading(id, offered)), "") << id;
    EXPECT_HAS(refusal_of(reading(1000, offered)), "more requests than this side takes at once");
}

TEST_F(offer_table_test, copies_from_the_device_that_the_offer_lies_on) {
    open(memory_path::staged);
    right.gaudi = expect(open_device(by_index{1}));
    right.buffer = expect(right.gaudi->heap().allocate(page));
    const auto there = expect(left.nic->region(*right.gaudi, right.buffer, path_policy::staged_only));
    const auto left_bytes = pattern(buffer_bytes, 8), right_bytes = pattern(page, 9);
    left.put(left_bytes);
    right.put(right_bytes);
    EXPECT_EQ(refusal_of(reading(1, offer(part(0), remote_access::read))), "");
    EXPECT_EQ(refusal_of(reading(2, offer(there, remote_access::read))), "");
    for (const auto& grant : await_grants(2)) {
        const auto& expected = grant.id == 1 ? left_bytes : right_bytes;
        EXPECT_EQ(grant.bytes, page);
        EXPECT_EQ(std::memcmp(reinterpret_cast<const void*>(grant.address), expected.data(), page),
                  0) // NOLINT
            << grant.id;
        EXPECT_TRUE(table->slab_returned({grant.id, grant.slab}));
    }
    table->settle();
    (void)expect(table->progress());
    EXPECT_FALSE(table->busy());
    EXPECT_EQ(received<access_end>(frame_kind::access_end).size(), 2U);
}

} // namespace
