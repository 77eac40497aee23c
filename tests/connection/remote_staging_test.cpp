// SPDX-License-Identifier: BSD-3-Clause
// The owner's side of one-sided access to staged memory: which slabs it grants, when, and with which bytes.
#include "src/connection/remote_staging.hpp"

#include "src/os/internals.hpp"
#include "tests/rdma/rdma_test.hpp"

#include <cstring>
#include <functional>
#include <future>
#include <set>

namespace {

using namespace testing_support;

class remote_staging_test : public rdma_test {
protected:
    static constexpr std::uint32_t slab_bytes = 4096;
    static constexpr std::uint64_t buffer_bytes = 16ULL * slab_bytes;

    void SetUp() override {
        equip(left, 0, memory_path::staged, buffer_bytes);
        make_subject();
    }
    void make_subject() {
        subject.reset();
        subject = expect(remote_staging::make(
            *core_of(*left.nic), *internals::staging(left.region), slab_bytes,
            [this](frame_kind kind, std::span<const std::byte> body) { return record(kind, body); },
            [this](const access_request&) -> result<void> {
                if (denied)
                    return tl::unexpected(error(errc::remote_access, "no longer permitted"));
                return {};
            }));
    }
    void TearDown() override {
        subject.reset();
        rdma_test::TearDown();
    }

    [[nodiscard]] bool open(std::uint64_t id, std::uint64_t length, bool writing, std::uint64_t offset = 0) {
        return subject->open_access({id, left.region.address() + offset, length, 0, writing});
    }
    [[nodiscard]] bool give_back(const slab_grant& grant) {
        return expect(subject->return_slab({grant.id, grant.slab}));
    }
    // A refused return.
    [[nodiscard]] bool refuses(std::uint64_t id, std::uint32_t slab) {
        return !expect(subject->return_slab({id, slab}));
    }
    // The NIC's part: slabs lie in this process.
    static std::span<std::byte> bytes_of(const slab_grant& grant) {
        return {reinterpret_cast<std::byte*>(grant.address), grant.bytes}; // NOLINT
    }
    template <typename F>
    void progress_until(F&& condition) {
        const auto deadline = std::chrono::steady_clock::now() + soon;
        while (!condition() && std::chrono::steady_clock::now() < deadline)
            (void)expect(subject->progress());
        ASSERT_TRUE(condition());
    }
    void await_grants(std::size_t count) {
        progress_until([&] { return grants.size() >= count; });
        EXPECT_EQ(grants.size(), count);
    }
    void await_ends(std::size_t count) {
        progress_until([&] { return ends.size() >= count; });
        EXPECT_EQ(ends.size(), count);
    }

    std::unique_ptr<remote_staging> subject;
    std::vector<slab_grant> grants;
    std::vector<access_end> ends;
    bool denied = false, peer_is_gone = false;
    std::function<void()> during_send = [] {};

private:
    result<void> record(frame_kind kind, std::span<const std::byte> body) {
        during_send();
        if (peer_is_gone)
            return tl::unexpected(error(errc::peer_gone, "the peer"));
        if (kind == frame_kind::slab_grant)
            grants.push_back(*decode_frame<slab_grant>(body));
        else if (kind == frame_kind::access_end)
            ends.push_back(*decode_frame<access_end>(body));
        else
            ADD_FAILURE() << "a frame of kind " << static_cast<int>(kind);
        return {};
    }
};

TEST_F(remote_staging_test, grants_a_long_write_every_slab_once_and_then_waits) {
    EXPECT_FALSE(subject->busy());
    ASSERT_TRUE(open(7, buffer_bytes, /*writing*/ true));
    EXPECT_TRUE(subject->busy());
    EXPECT_TRUE(grants.empty()) << "slabs are granted by progress()";
    for (int again = 0; again < 3; ++again)
        EXPECT_EQ(expect(subject->progress()), 0U) << "a write is granted without a copy";
    ASSERT_EQ(grants.size(), remote_staging::slabs);
    std::set<std::uint32_t> different;
    for (std::size_t i = 0; i < grants.size(); ++i) {
        EXPECT_EQ(grants[i].id, 7U);
        EXPECT_EQ(grants[i].offset, i * slab_bytes);
        EXPECT_EQ(grants[i].bytes, slab_bytes);
        EXPECT_EQ(grants[i].address, subject->memory().address_of(grants[i].slab));
        different.insert(grants[i].slab);
    }
    EXPECT_EQ(different.size(), remote_staging::slabs);
    EXPECT_FALSE(subject->copying());
    EXPECT_TRUE(ends.empty());
}

TEST_F(remote_staging_test, grants_a_returned_slab_again_and_ends_when_all_is_copied) {
    const std::uint64_t length = 9 * slab_bytes + 100;
    const auto before = pattern(buffer_bytes, 1), written = pattern(length, 2);
    left.put(before);
    ASSERT_TRUE(open(1, length, true, 50));
    await_grants(8);
    const auto write_part = [&](const slab_grant& grant) {
        std::memcpy(bytes_of(grant).data(), written.data() + grant.offset, grant.bytes);
        EXPECT_TRUE(give_back(grant));
    };
    write_part(grants[3]);
    EXPECT_TRUE(subject->copying());
    await_grants(9);
    EXPECT_EQ(grants[8].slab, grants[3].slab) << "the only one that is free";
    EXPECT_EQ(grants[8].key, grants[3].key) << "a slab is registered once";
    EXPECT_EQ(grants[8].offset, 8 * slab_bytes);
    for (const std::size_t part : {8U, 0U, 7U, 1U, 6U, 2U, 5U})
        write_part(grants[part]);
    await_grants(10);
    EXPECT_EQ(grants[9].offset, 9 * slab_bytes);
    EXPECT_EQ(grants[9].bytes, 100U);
    write_part(grants[9]);
    progress_until([&] { return !subject->copying(); });
    EXPECT_TRUE(ends.empty()) << "a part is missing";
    EXPECT_TRUE(subject->busy());
    write_part(grants[4]);
    await_ends(1);
    EXPECT_EQ(ends[0].id, 1U);
    EXPECT_EQ(ends[0].refusal, "");
    EXPECT_FALSE(subject->busy());
    auto expected = before;
    std::copy(written.begin(), written.end(), expected.begin() + 50);
    EXPECT_TRUE(left.get() == expected);
    EXPECT_EQ(grants.size(), 10U) << "nothing is granted after the end";
}

TEST_F(remote_staging_test, grants_a_read_only_slabs_that_hold_its_bytes) {
    const auto data = pattern(buffer_bytes, 3);
    left.put(data);
    std::memset(subject->memory().of(0, 1).data(), 0, std::size_t{remote_staging::slabs} * slab_bytes);
    ASSERT_TRUE(open(1, 10 * slab_bytes - 1, false, slab_bytes));
    const auto matches = [&](const slab_grant& grant) {
        return std::memcmp(bytes_of(grant).data(), data.data() + slab_bytes + grant.offset, grant.bytes) == 0;
    };
    std::uint64_t granted = 0;
    for (std::size_t next = 0; next < 10; ++next) {
        progress_until([&] { return grants.size() > next; });
        const auto grant = grants[next]; // progress() may add to the vector
        EXPECT_TRUE(matches(grant)) << next;
        granted += grant.bytes;
        EXPECT_TRUE(ends.empty());
        EXPECT_TRUE(give_back(grant));
    }
    EXPECT_EQ(granted, 10 * slab_bytes - 1);
    await_ends(1);
    EXPECT_FALSE(subject->busy());
    EXPECT_TRUE(left.get() == data) << "a read changes nothing";
}

TEST_F(remote_staging_test, starts_the_oldest_access_first_and_ends_each_by_itself) {
    ASSERT_TRUE(open(20, 6 * slab_bytes, true));
    ASSERT_TRUE(open(10, 2 * slab_bytes, true, 6 * slab_bytes));
    ASSERT_TRUE(open(15, 2 * slab_bytes, true, 8 * slab_bytes));
    await_grants(8);
    for (std::size_t i = 0; i < 8; ++i)
        EXPECT_EQ(grants[i].id, i < 6 ? 20U : 10U) << i;
    for (const std::size_t part : {6U, 7U})
        EXPECT_TRUE(give_back(grants[part]));
    await_ends(1);
    EXPECT_EQ(ends[0].id, 10U);
    await_grants(10);
    EXPECT_EQ(grants[8].id, 15U);
    EXPECT_EQ(grants[9].id, 15U);
    EXPECT_TRUE(subject->busy());
}

TEST_F(remote_staging_test, takes_back_only_slabs_that_it_granted_to_that_access) {
    ASSERT_TRUE(open(1, slab_bytes, true));
    ASSERT_TRUE(open(2, slab_bytes, false, slab_bytes));
    EXPECT_TRUE(refuses(1, 0)) << "not granted yet";
    (void)expect(subject->progress()); // slab 0 is granted, slab 1 being filled
    ASSERT_EQ(grants.size(), 1U);
    const auto first = grants[0];
    const std::uint32_t filling = first.slab + 1;
    EXPECT_TRUE(refuses(2, filling)) << "its copy has not been collected";
    EXPECT_TRUE(refuses(2, first.slab)) << "of the other access";
    EXPECT_TRUE(refuses(3, first.slab)) << "of no access";
    EXPECT_TRUE(refuses(0, remote_staging::slabs - 1)) << "a free slab";
    EXPECT_TRUE(refuses(1, remote_staging::slabs));
    EXPECT_TRUE(refuses(1, ~0U));
    EXPECT_TRUE(give_back(first));
    EXPECT_TRUE(refuses(1, first.slab)) << "returned twice";
    await_ends(1);
    EXPECT_TRUE(refuses(1, first.slab)) << "after the end";
    await_grants(2);
    EXPECT_TRUE(give_back(grants[1]));
    await_ends(2);
}

TEST_F(remote_staging_test, bounds_open_accesses_and_tells_them_apart_by_their_ids) {
    for (std::uint64_t id = 0; id < remote_staging::most_accesses; ++id)
        ASSERT_TRUE(open(id, 8, true)) << id;
    EXPECT_FALSE(open(1000, 8, true)) << "too many";
    (void)expect(subject->progress());
    ASSERT_EQ(grants.size(), remote_staging::slabs);
    EXPECT_EQ(grants[5].id, 5U);
    EXPECT_TRUE(give_back(grants[5]));
    await_ends(1);
    EXPECT_FALSE(open(6, 8, true)) << "is open";
    EXPECT_TRUE(open(5, 8, true)) << "has ended";
    EXPECT_FALSE(open(1000, 8, true));
}

// A withdrawn offer, or a buffer that was freed.
TEST_F(remote_staging_test, copies_nothing_once_the_access_is_not_permitted_any_more) {
    const auto mine = pattern(buffer_bytes, 4);
    for (const bool writing : {false, true}) {
        denied = true;
        ASSERT_TRUE(open(1, slab_bytes, writing));
        const auto refused = subject->progress();
        ASSERT_FALSE(refused);
        EXPECT_EQ(refused.error().code(), errc::remote_access);
        EXPECT_TRUE(grants.empty());
        denied = false;
        make_subject(); // the error ends a connection
    }
    left.put(mine);
    ASSERT_TRUE(open(1, 2 * slab_bytes, true));
    await_grants(2);
    for (const auto& grant : grants)
        std::memset(bytes_of(grant).data(), 0x66, grant.bytes);
    denied = true;
    const auto refused = subject->return_slab({1, grants[0].slab});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), errc::remote_access);
    EXPECT_FALSE(subject->copying());
    EXPECT_TRUE(left.get() == mine);
}

TEST_F(remote_staging_test, reports_that_a_frame_could_not_be_sent) {
    peer_is_gone = true;
    ASSERT_TRUE(open(1, 8, true));
    const auto failed = subject->progress();
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().code(), errc::peer_gone);
}

// A peer that does not read may make a frame take as long as the connection's time-out.
TEST_F(remote_staging_test, stops_no_free_while_it_sends_a_frame) {
    auto other = expect(left.gaudi->heap().allocate(4096));
    std::future<void> freed;
    during_send = [&] {
        freed = std::async(std::launch::async, [&] { other = {}; });
        EXPECT_EQ(freed.wait_for(soon), std::future_status::ready);
    };
    ASSERT_TRUE(open(1, slab_bytes, /*writing*/ true));
    await_grants(1);
    EXPECT_TRUE(freed.valid());
}

TEST_F(remote_staging_test, settles_and_ends_with_copies_in_flight) {
    const auto data = pattern(buffer_bytes, 5);
    left.put(data);
    ASSERT_TRUE(open(1, buffer_bytes, false));
    (void)expect(subject->progress());
    EXPECT_TRUE(subject->copying());
    subject->settle();
    const auto first = subject->memory().of(0, slab_bytes);
    EXPECT_TRUE(std::equal(first.begin(), first.end(), data.begin()));
    await_grants(8);
    for (const auto& grant : grants)
        EXPECT_TRUE(give_back(grant));
    const auto engine = expect(left.gaudi->copies());
    (void)expect(subject->progress());
    subject.reset();
    EXPECT_EQ(engine.statistics().completed, engine.statistics().copies) << "no copy uses the slabs";
}

} // namespace
