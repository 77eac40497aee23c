// SPDX-License-Identifier: BSD-3-Clause
// Small writes and reads bypass the ring of requests. Their behaviour must be the same.
#include "tests/lab/hca/verbs_node.hpp"
#include "tests/support/test_lab.hpp"

#include <optional>
#include <thread>

namespace {

using namespace testing_support;
using short_write_test = test_lab;

TEST_F(short_write_test, does_not_overtake_a_send_that_waits) {
    two_nodes both;
    const auto remote = both.right.address_of(both.b.get());
    both.left.memory[0] = 5;
    both.right.memory[100] = 1;
    ASSERT_EQ(request(IBV_WR_SEND, 1).from(both.left.entry(8, 8)).post(both.a.get()), 0);
    ASSERT_EQ(request(IBV_WR_RDMA_WRITE, 2)
                  .from(both.left.entry(0, 1))
                  .at(remote.memory + 100, remote.key)
                  .post(both.a.get()),
              0);
    both.left.expect_none();
    EXPECT_EQ(both.right.memory[100], 1) << "nothing overtakes";
    ASSERT_EQ(post_receive(both.b.get(), {both.right.entry(0, 8)}), 0);
    EXPECT_EQ(both.left.expect_wc().wr_id, 1U);
    EXPECT_EQ(both.left.expect_wc().wr_id, 2U);
    EXPECT_EQ(both.right.memory[100], 5);
}

TEST_F(short_write_test, of_a_list_with_others_between_them) {
    two_nodes both;
    const auto remote = both.right.address_of(both.b.get());
    for (unsigned char i = 0; i < 3; ++i)
        both.left.memory[i] = static_cast<unsigned char>(10 + i);
    ibv_sge entries[3] = {both.left.entry(0, 1), both.left.entry(16, 1), both.left.entry(2, 1)};
    ibv_send_wr list[3] = {}, *bad = nullptr;
    for (unsigned i = 0; i < 3; ++i) {
        list[i].wr_id = i;
        list[i].sg_list = &entries[i];
        list[i].num_sge = 1;
        list[i].send_flags = IBV_SEND_SIGNALED;
        list[i].next = i < 2 ? &list[i + 1] : nullptr;
        list[i].opcode = i == 1 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
        list[i].wr.rdma = {remote.memory + 200, remote.key}; // written, read back, written again
    }
    ASSERT_EQ(ibv_post_send(both.a.get(), list, &bad), 0);
    for (unsigned i = 0; i < 3; ++i)
        EXPECT_EQ(both.left.expect_wc().wr_id, i);
    EXPECT_EQ(both.left.memory[16], 10) << "the read saw the first";
    EXPECT_EQ(both.right.memory[200], 12);
}

TEST_F(short_write_test, inline_data_is_as_it_was_when_posted) {
    node own;
    const auto qp = own.make_qp({});
    connect(qp.get(), own.address_of(qp.get()), own.address_of(qp.get()));
    for (unsigned i = 0; i < 32; ++i)
        own.memory[i] = static_cast<unsigned char>(i);
    const auto target = own.address_of(qp.get());
    ASSERT_EQ(request(IBV_WR_RDMA_WRITE, 1, IBV_SEND_SIGNALED | IBV_SEND_INLINE)
                  .from(own.entry(0, 24))
                  .at(target.memory + 4, target.key) // the target overlaps the source
                  .post(qp.get()),
              0);
    (void)own.expect_wc();
    for (unsigned i = 0; i < 24; ++i)
        ASSERT_EQ(own.memory[4 + i], i) << i;
}

TEST_F(short_write_test, of_several_threads_on_one_queue_pair) {
    constexpr unsigned threads = 4, each = 2000;
    two_nodes both({.depth = 16384});
    auto &left = both.left, &right = both.right;
    const auto &a = both.a, &b = both.b;
    const auto remote = right.address_of(b.get());
    std::vector<std::thread> all;
    for (unsigned t = 0; t < threads; ++t)
        all.emplace_back([&, t] {
            for (unsigned i = 1; i <= each; ++i) {
                const std::size_t at = t * 64;
                std::memcpy(left.memory.data() + at, &i, sizeof(i));
                EXPECT_EQ(request(IBV_WR_RDMA_WRITE, t, i % 4 == 0 ? unsigned{IBV_SEND_SIGNALED} : 0)
                              .from(left.entry(at, sizeof(i)))
                              .at(remote.memory + at, remote.key)
                              .post(a.get()),
                          0);
            }
        });
    for (auto& thread : all)
        thread.join();
    unsigned completed = 0;
    ibv_wc done[64];
    for (int more; (more = ibv_poll_cq(left.cq.get(), 64, done)) > 0;
         completed += static_cast<unsigned>(more))
        for (int i = 0; i < more; ++i)
            EXPECT_EQ(done[i].status, IBV_WC_SUCCESS);
    EXPECT_EQ(completed, threads * each / 4);
    for (unsigned t = 0; t < threads; ++t) {
        unsigned seen = 0;
        std::memcpy(&seen, right.memory.data() + t * 64, sizeof(seen));
        EXPECT_EQ(seen, each) << "each thread's own come in order";
    }
}

TEST_F(short_write_test, a_full_queue_is_full_for_it_too) {
    qp_options how;
    how.depth = 16;
    two_nodes both(how);
    const auto remote = both.right.address_of(both.b.get());
    const auto post = [&](unsigned flags) {
        return request(IBV_WR_RDMA_WRITE, 1, flags)
            .from(both.left.entry(0, 4))
            .at(remote.memory, remote.key)
            .post(both.a.get());
    };
    unsigned taken = 0;
    while (taken < 1000 && post(0) == 0)
        ++taken;
    EXPECT_GE(taken, 16U);
    EXPECT_LT(taken, 1000U) << "unsignalled requests hold their places";
    EXPECT_EQ(post(0), ENOMEM);
}

// The second of two writes uses the lookups that the first one cached.
class second_short_write : public test_lab {
protected:
    void expect_first() { ASSERT_EQ(write(remote.memory, remote.key), IBV_WC_SUCCESS); }
    ibv_wc_status write(std::uint64_t address, std::uint32_t key) {
        both->left.memory[0] = ++number;
        EXPECT_EQ(
            request(IBV_WR_RDMA_WRITE).from(both->left.entry(0, 1)).at(address, key).post(both->a.get()), 0);
        const auto done = both->left.wait();
        return done ? done->status : IBV_WC_GENERAL_ERR;
    }
    void SetUp() override {
        test_lab::SetUp();
        connect_options soon;
        soon.timeout = 10;
        soon.retries = 1;
        both.emplace(qp_options{}, soon, soon);
        remote = both->right.address_of(both->b.get());
    }
    void TearDown() override {
        both.reset();
        test_lab::TearDown();
    }
    std::optional<two_nodes> both;
    address remote;
    unsigned char number = 0;
};

TEST_F(second_short_write, to_a_region_that_is_gone_is_refused) {
    std::vector<unsigned char> memory(4096);
    mr_handle region(ibv_reg_mr(both->right.pd.get(), memory.data(), memory.size(), all_access));
    const auto at = reinterpret_cast<std::uint64_t>(memory.data());
    const auto key = region->rkey;
    ASSERT_EQ(write(at, key), IBV_WC_SUCCESS);
    region.reset();
    EXPECT_EQ(write(at, key), IBV_WC_REM_ACCESS_ERR);
    EXPECT_EQ(memory[0], 1);
}

TEST_F(second_short_write, beyond_the_end_of_the_region_is_refused) {
    expect_first();
    EXPECT_EQ(write(remote.memory + both->right.memory.size() - 1, remote.key), IBV_WC_SUCCESS);
    EXPECT_EQ(write(remote.memory + both->right.memory.size(), remote.key), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(second_short_write, from_a_region_that_is_gone_is_refused) {
    unsigned char byte = 9;
    mr_handle region(ibv_reg_mr(both->left.pd.get(), &byte, 1, all_access));
    const ibv_sge entry{reinterpret_cast<std::uint64_t>(&byte), 1, region->lkey};
    const auto post = [&] {
        EXPECT_EQ(request(IBV_WR_RDMA_WRITE).from(entry).at(remote.memory, remote.key).post(both->a.get()),
                  0);
        return both->left.wait()->status;
    };
    EXPECT_EQ(post(), IBV_WC_SUCCESS);
    region.reset();
    EXPECT_EQ(post(), IBV_WC_LOC_PROT_ERR);
}

TEST_F(second_short_write, finds_the_region_that_has_the_key_now) {
    std::vector<unsigned char> memory(2 * 4096);
    // Both registrations have the same iova, for different pages.
    const auto at = (1ULL << 40) + reinterpret_cast<std::uint64_t>(memory.data()) % 4096;
    const auto registered = [&](std::size_t offset) {
        return mr_handle(ibv_reg_mr_iova(both->right.pd.get(), memory.data() + offset, 1, at, all_access));
    };
    auto region = registered(0);
    const auto key = region->rkey;
    ASSERT_EQ(write(at, key), IBV_WC_SUCCESS);
    // With all other places in use, each registration gets the same place.
    std::vector<mr_handle> others;
    while (mr_handle other{ibv_reg_mr(both->right.pd.get(), memory.data(), 1, 0)})
        others.push_back(std::move(other));
    EXPECT_EQ(errno, ENOMEM);
    int tries = 0;
    do {
        region.reset();
        region = registered(4096);
    } while (region->rkey != key && ++tries < 1000);
    ASSERT_EQ(region->rkey, key) << "keys come again";
    ASSERT_EQ(write(at, key), IBV_WC_SUCCESS);
    EXPECT_EQ(memory[0], 1);
    EXPECT_EQ(memory[4096], 2);
}

TEST_F(second_short_write, after_the_right_is_withdrawn_is_refused) {
    expect_first();
    ibv_qp_attr values{};
    values.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;
    ASSERT_EQ(ibv_modify_qp(both->b.get(), &values, IBV_QP_ACCESS_FLAGS), 0);
    EXPECT_EQ(write(remote.memory, remote.key), IBV_WC_REM_ACCESS_ERR);
    EXPECT_EQ(both->right.memory[0], 1);
}

TEST_F(second_short_write, to_a_queue_pair_that_has_another_peer_now_does_not_arrive) {
    expect_first();
    const auto third = both->left.make_qp({});
    ASSERT_EQ(to_state(both->b.get(), IBV_QPS_RESET), 0);
    connect(both->b.get(), remote, both->left.address_of(third.get()));
    EXPECT_EQ(write(remote.memory, remote.key), IBV_WC_RETRY_EXC_ERR);
    EXPECT_EQ(both->right.memory[0], 1);
}

TEST_F(second_short_write, after_a_reset_goes_to_the_new_peer) {
    expect_first();
    node third;
    const auto c = third.make_qp({});
    const auto own = both->left.address_of(both->a.get()), other = third.address_of(c.get());
    ASSERT_EQ(to_state(both->a.get(), IBV_QPS_RESET), 0);
    connect(both->a.get(), own, other);
    connect(c.get(), other, own);
    ASSERT_EQ(write(other.memory, other.key), IBV_WC_SUCCESS);
    EXPECT_EQ(both->right.memory[0], 1);
    EXPECT_EQ(third.memory[0], 2);
}

TEST_F(second_short_write, to_an_address_that_is_another_one_now_does_not_arrive) {
    expect_first();
    ASSERT_EQ(to_state(both->a.get(), IBV_QPS_SQD), 0);
    ibv_qp_attr values{};
    ibv_qp_init_attr init{};
    ASSERT_EQ(ibv_query_qp(both->a.get(), &values, IBV_QP_AV, &init), 0);
    values.ah_attr.dlid = static_cast<std::uint16_t>(values.ah_attr.dlid + 7);
    ASSERT_EQ(ibv_modify_qp(both->a.get(), &values, IBV_QP_AV), 0) << std::strerror(errno);
    ASSERT_EQ(to_state(both->a.get(), IBV_QPS_RTS), 0);
    EXPECT_EQ(write(remote.memory, remote.key), IBV_WC_RETRY_EXC_ERR);
    EXPECT_EQ(both->right.memory[0], 1);
}

// Reads must not use lookups that writes cached, and vice versa.
class short_read : public second_short_write {
protected:
    ibv_wc_status read(std::uint64_t address, std::uint32_t key, std::optional<ibv_sge> into = std::nullopt) {
        EXPECT_EQ(request(IBV_WR_RDMA_READ)
                      .from(into.value_or(both->left.entry(64, 1)))
                      .at(address, key)
                      .post(both->a.get()),
                  0);
        const auto done = both->left.wait();
        return done ? done->status : IBV_WC_GENERAL_ERR;
    }
    // Memory of the peer; register_memory() registers it with the given rights.
    struct {
        std::vector<unsigned char> bytes = std::vector<unsigned char>(4096);
        mr_handle region;
        [[nodiscard]] std::uint64_t at() const { return reinterpret_cast<std::uint64_t>(bytes.data()); }
    } there;
    void register_memory(unsigned rights) {
        there.region.reset(ibv_reg_mr(both->right.pd.get(), there.bytes.data(), there.bytes.size(), rights));
        ASSERT_TRUE(there.region);
    }
    void TearDown() override {
        there.region.reset();
        second_short_write::TearDown();
    }
};

TEST_F(short_read, brings_what_is_there_each_time) {
    register_memory(all_access);
    for (unsigned char i = 1; i < 4; ++i) {
        there.bytes[0] = static_cast<unsigned char>(i * 3);
        ASSERT_EQ(read(there.at(), there.region->rkey), IBV_WC_SUCCESS);
        EXPECT_EQ(both->left.memory[64], i * 3);
    }
}

TEST_F(short_read, of_memory_that_may_only_be_written_is_refused) {
    register_memory(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    ASSERT_EQ(write(there.at(), there.region->rkey), IBV_WC_SUCCESS);
    EXPECT_EQ(read(there.at(), there.region->rkey), IBV_WC_REM_ACCESS_ERR);
    EXPECT_EQ(both->left.memory[64], 0);
}

TEST_F(short_read, does_not_open_the_memory_for_writes) {
    register_memory(IBV_ACCESS_REMOTE_READ);
    ASSERT_EQ(read(there.at(), there.region->rkey), IBV_WC_SUCCESS);
    EXPECT_EQ(write(there.at(), there.region->rkey), IBV_WC_REM_ACCESS_ERR);
    EXPECT_EQ(there.bytes[0], 0);
}

TEST_F(short_read, into_memory_that_may_not_be_written_is_refused) {
    unsigned char byte = 9;
    const mr_handle region(ibv_reg_mr(both->left.pd.get(), &byte, 1, 0));
    const ibv_sge entry{reinterpret_cast<std::uint64_t>(&byte), 1, region->lkey};
    ASSERT_EQ(request(IBV_WR_RDMA_WRITE).from(entry).at(remote.memory, remote.key).post(both->a.get()), 0);
    ASSERT_EQ(both->left.expect_wc().status, IBV_WC_SUCCESS);
    both->right.memory[0] = 7;
    EXPECT_EQ(read(remote.memory, remote.key, entry), IBV_WC_LOC_PROT_ERR);
    EXPECT_EQ(byte, 9);
}

TEST_F(short_read, of_a_region_that_is_gone_is_refused) {
    register_memory(all_access);
    const auto key = there.region->rkey;
    ASSERT_EQ(read(there.at(), key), IBV_WC_SUCCESS);
    there.region.reset();
    EXPECT_EQ(read(there.at(), key), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(short_read, after_the_right_is_withdrawn_is_refused) {
    ASSERT_EQ(read(remote.memory, remote.key), IBV_WC_SUCCESS);
    ibv_qp_attr values{};
    values.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    ASSERT_EQ(ibv_modify_qp(both->b.get(), &values, IBV_QP_ACCESS_FLAGS), 0);
    EXPECT_EQ(read(remote.memory, remote.key), IBV_WC_REM_ACCESS_ERR);
}

} // namespace
