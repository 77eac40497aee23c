// SPDX-License-Identifier: BSD-3-Clause
#include "src/hl/shared_context.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

namespace {

using namespace gaudi;

// The owner and a member in one process, each with a mapping of its own.
struct shared_context_test : ::testing::Test {
    context_membership owner, member;
    shared_context* context = expect(owner.open());

    void join() {
        member.join(expect(shared_context::of(unique_fd(::dup(context->descriptor())))),
                    context->admit().value(), {});
    }
};

TEST_F(shared_context_test, admits_so_many_members_and_no_more) {
    EXPECT_EQ(context->participants(), 1U);
    for (unsigned i = 0; i < shared_context::members; ++i)
        EXPECT_EQ(context->admit(), i);
    EXPECT_FALSE(context->admit());
    EXPECT_EQ(context->participants(), shared_context::members + 1);
}

TEST_F(shared_context_test, knows_the_latest_submission_of_all) {
    join();
    owner.submitted(5);
    EXPECT_EQ(member.shared()->latest(), 5U);
    member.submitted(9);
    owner.submitted(7); // reported after a later submission
    EXPECT_EQ(context->latest(), 9U);
}

TEST_F(shared_context_test, counts_what_was_submitted_before_it_was_shared) {
    context_membership other;
    EXPECT_EQ(other.shared(), nullptr);
    other.submitted(40);
    EXPECT_EQ(expect(other.open())->latest(), 40U);
    EXPECT_EQ(expect(other.open()), other.shared()) << "once";
}

TEST_F(shared_context_test, writes_down_the_mappings_of_members_alone) {
    join();
    EXPECT_TRUE(owner.note_mapping(0x1000, 1));
    EXPECT_TRUE(context->holds_nothing(member.member()));
    EXPECT_TRUE(member.note_mapping(0x2000, 0));
    EXPECT_FALSE(context->holds_nothing(member.member()));
    member.forget_mapping(0x2000);
    EXPECT_TRUE(context->holds_nothing(member.member()));
    for (unsigned i = 0; i < shared_context::most_mappings; ++i)
        ASSERT_TRUE(member.note_mapping(0x1000 * (i + 1), i));
    EXPECT_FALSE(member.note_mapping(0xfff000, 1)) << "what cannot be undone is not mapped";
    member.forget_mapping(0x3000);
    EXPECT_TRUE(member.note_mapping(0xfff000, 1));
}

} // namespace
