// SPDX-License-Identifier: BSD-3-Clause
#include "src/ipc/lease_set.hpp"

#include <gtest/gtest.h>
#include <set>
#include <sys/socket.h>
#include <unistd.h>

namespace {

using namespace gaudi;

struct lease_set_test : ::testing::Test {
    lease_set leases;

    std::uint32_t open(std::uint64_t base = 0x1000, std::uint64_t secret = 7) {
        handle_record handle;
        handle.base = base;
        handle.generation = 1;
        handle.secret = secret;
        return expect(leases.open(handle));
    }
    // The table as the importer maps it.
    lease_word* table() {
        if (importers_.data() == nullptr)
            importers_ = expect(shared_memory::of(unique_fd(::dup(leases.table_descriptor())),
                                                  leases_per_client * sizeof(lease_word)));
        return reinterpret_cast<lease_word*>(importers_.data());
    }

private:
    shared_memory importers_;
};

TEST_F(lease_set_test, gives_every_lease_a_slot_of_its_own_and_bounds_them) {
    std::set<std::uint32_t> slots;
    for (std::uint32_t i = 0; i < leases_per_client; ++i)
        EXPECT_TRUE(slots.insert(open()).second);
    EXPECT_LT(*slots.rbegin(), leases_per_client);
    EXPECT_EQ(leases.open({}).error().code(), errc::leases_exhausted);
    EXPECT_TRUE(leases.close(100));
    EXPECT_EQ(open(), 100U) << "the only one that is free";
}

TEST_F(lease_set_test, closes_after_the_last_copy) {
    const auto slot = open();
    leases.copy_started(slot);
    leases.copy_started(slot);
    EXPECT_FALSE(leases.close(slot)) << "two copies are in flight";
    EXPECT_EQ(leases.find_usable(slot), nullptr) << "but no new one may begin";
    EXPECT_FALSE(leases.copy_ended(slot));
    const auto closed = leases.copy_ended(slot);
    ASSERT_TRUE(closed);
    EXPECT_EQ(closed->secret, 7U);
    EXPECT_TRUE(leases.all().empty());
    EXPECT_FALSE(leases.close(slot)) << "closed already";
}

TEST_F(lease_set_test, announces_a_revocation_in_the_table_and_on_the_socket) {
    const auto revoked = open(0x1000), other = open(0x2000);
    const auto socket = leases.open_revoke_socket();
    ASSERT_TRUE(socket);
    EXPECT_FALSE(leases.open_revoke_socket()) << "one is enough";
    leases.revoke_if([](const lease_record& lease) { return lease.base == 0x1000; });
    EXPECT_EQ(table()[revoked].revoked, 1U);
    EXPECT_EQ(table()[other].revoked, 0U);
    EXPECT_EQ(leases.find_usable(revoked), nullptr);
    EXPECT_NE(leases.find_usable(other), nullptr);
    char byte[2];
    EXPECT_EQ(::recv(socket.get(), byte, sizeof(byte), MSG_DONTWAIT), 1);
}

TEST_F(lease_set_test, trusts_its_own_record_that_a_lease_is_revoked) {
    const auto slot = open();
    leases.revoke_if([](const lease_record&) { return true; });
    table()[slot].revoked = 0; // the importer may write to the table
    EXPECT_EQ(leases.find_usable(slot), nullptr);
}

TEST_F(lease_set_test, notices_that_the_importer_no_longer_listens) {
    (void)open();
    auto socket = leases.open_revoke_socket();
    EXPECT_TRUE(leases.has_listener());
    socket.reset();
    leases.revoke_if([](const lease_record&) { return true; });
    EXPECT_FALSE(leases.has_listener());
}

// The socket is full: its reader is slow, and already has a message to read.
TEST_F(lease_set_test, is_not_held_up_by_an_importer_that_does_not_read) {
    (void)open();
    const auto socket = leases.open_revoke_socket();
    for (int i = 0; i < 5000; ++i)
        leases.revoke_if([](const lease_record&) { return true; });
    EXPECT_TRUE(leases.has_listener());
}

TEST_F(lease_set_test, counts_the_importers_own_copies_once_it_has_descriptors) {
    const auto slot = open();
    table()[slot].in_flight = 3;
    EXPECT_EQ(leases.in_flight(slot), 0U) << "it cannot copy: the count is made up";
    EXPECT_TRUE(leases.quiet());
    leases.importer_has_descriptors();
    leases.copy_started(slot);
    EXPECT_EQ(leases.in_flight(slot), 4U);
    EXPECT_FALSE(leases.quiet());
}

TEST_F(lease_set_test, clears_a_slot_that_is_used_again) {
    for (std::uint32_t i = 0; i < leases_per_client; ++i)
        (void)open();
    table()[9].in_flight = 5;
    leases.revoke_if([](const lease_record&) { return true; });
    ASSERT_TRUE(leases.close(9));
    ASSERT_EQ(open(), 9U);
    EXPECT_EQ(table()[9].in_flight, 0U);
    EXPECT_EQ(table()[9].revoked, 0U);
}

} // namespace
