// SPDX-License-Identifier: BSD-3-Clause
#include "src/connection/operation.hpp"

#include <gtest/gtest.h>
#include <set>

namespace {

using namespace gaudi;

struct operations : ::testing::Test {
    operation_table table{3};

    std::uint32_t add(transfer_kind kind = transfer_kind::write) {
        return table.add({.kind = kind}, nullptr);
    }
};

TEST_F(operations, have_slots_of_their_own_until_the_ticket_is_dropped) {
    EXPECT_TRUE(table.empty());
    const std::set<std::uint32_t> slots{add(), add(), add()};
    EXPECT_EQ(slots.size(), 3U);
    EXPECT_TRUE(table.full());
    table.mark_fully_posted(1);
    EXPECT_EQ(table[1].state, operation::state::finished);
    EXPECT_TRUE(table.full()) << "its ticket may still ask";
    table.drop(1);
    EXPECT_FALSE(table.full());
    EXPECT_EQ(add(), 1U);
}

TEST_F(operations, finish_with_the_last_part_that_was_posted) {
    const auto slot = add();
    table[slot].outstanding = 2;
    table.part_completed(slot, 100);
    table.mark_fully_posted(slot);
    EXPECT_EQ(table[slot].state, operation::state::pending);
    table.part_completed(slot, 20);
    EXPECT_EQ(table[slot].state, operation::state::finished);
    EXPECT_EQ(table[slot].outcome.bytes, 120U);
    EXPECT_EQ(table.traffic().by(memory_path::host).operations, 1U);
    EXPECT_EQ(table.traffic().by(memory_path::host).bytes, 120U);
}

TEST_F(operations, do_not_finish_while_more_is_to_be_posted) {
    const auto slot = add();
    table[slot].outstanding = 1;
    table.part_completed(slot, 8);
    EXPECT_EQ(table[slot].state, operation::state::pending);
}

TEST_F(operations, without_a_ticket_free_their_slot_when_they_finish) {
    const auto slot = add();
    table[slot].outstanding = 1;
    table.mark_fully_posted(slot);
    table.drop(slot);
    EXPECT_FALSE(table.empty());
    table.part_completed(slot, 8);
    EXPECT_TRUE(table.empty());
    EXPECT_EQ(table.traffic().by(memory_path::host).operations, 1U) << "they count all the same";
}

TEST_F(operations, that_failed_do_not_count) {
    const auto slot = add();
    table[slot].failure = error(errc::message_too_long, "too long");
    table.mark_fully_posted(slot);
    EXPECT_EQ(table[slot].state, operation::state::finished);
    EXPECT_EQ(table.traffic().by(memory_path::host).operations, 0U);
}

TEST_F(operations, fail_together_when_the_connection_ends) {
    const auto finished = add(), pending = add(), dropped = add();
    table.mark_fully_posted(finished);
    table[dropped].outstanding = 1;
    table.drop(dropped);
    table.fail_pending({errc::peer_gone, "gone"});
    EXPECT_FALSE(table[finished].failure);
    ASSERT_TRUE(table[pending].failure);
    EXPECT_EQ(table[pending].failure->code(), errc::peer_gone);
    EXPECT_EQ(table[dropped].state, operation::state::unused);
}

TEST_F(operations, on_staged_memory_of_the_peer_have_names_that_never_repeat) {
    std::set<std::uint64_t> names;
    for (int i = 0; i < 5; ++i) {
        const remote_region staged{0x1000, 0, 1, memory_path::staged};
        const auto slot = table.add({.kind = transfer_kind::write, .remote = &staged}, nullptr);
        table[slot].serial = static_cast<std::uint32_t>(i + 1);
        EXPECT_TRUE(names.insert(table.id_of(slot)).second);
        EXPECT_EQ(table.find(table.id_of(slot)), slot);
        EXPECT_FALSE(table.find(table.id_of(slot) + (1ULL << 32))) << "another operation in its slot";
        table.mark_fully_posted(slot);
        EXPECT_FALSE(table.find(table.id_of(slot))) << "it has finished";
        table.drop(slot);
    }
    EXPECT_FALSE(table.find(99)) << "no such slot";
}

} // namespace
