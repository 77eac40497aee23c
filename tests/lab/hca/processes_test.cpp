// SPDX-License-Identifier: BSD-3-Clause
// Several processes: transfers, killed peers, fork.
#include "tests/lab/hca/connected_child.hpp"
#include "tests/support/child.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/test_lab.hpp"

#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <unistd.h>

namespace {

using namespace testing_support;
using processes_test = test_lab;

// labels: no_tsan
TEST_F(processes_test, every_operation_across) {
    node here;
    const auto qp = here.make_qp();
    connected_child peer(here, qp.get(), [&](node& there, ibv_qp* mine) {
        EXPECT_EQ(post_receive(mine, {there.entry(0, 1000)}), 0);
        EXPECT_EQ(there.expect_wc().byte_len, 1000U);
        for (std::size_t i = 0; i < 1000; ++i)
            EXPECT_EQ(there.memory[i], static_cast<unsigned char>(i));
        EXPECT_EQ(request(IBV_WR_SEND).from(there.entry(0, 1000)).post(mine), 0);
        (void)there.expect_wc();
        return 0;
    });
    for (std::size_t i = 0; i < 1000; ++i)
        here.memory[i] = static_cast<unsigned char>(i);
    ASSERT_EQ(post_receive(qp.get(), {here.entry(5000, 1000)}, 200), 0);
    ASSERT_EQ(request(IBV_WR_SEND, 1).from(here.entry(0, 1000)).post(qp.get()), 0);
    for (int i = 0; i < 2; ++i)
        (void)here.expect_wc();
    EXPECT_EQ(std::memcmp(&here.memory[0], &here.memory[5000], 1000), 0);
    const auto& remote_side = peer.remote();
    ASSERT_EQ(peer.process().wait(), 0);
    ASSERT_EQ(request(IBV_WR_RDMA_READ)
                  .from(here.entry(0, 8))
                  .at(remote_side.memory, remote_side.key)
                  .post(qp.get()),
              0);
    (void)here.expect_wc(IBV_WC_RETRY_EXC_ERR); // the peer has exited
}

// labels: no_tsan
TEST_F(processes_test, one_sided_and_atomic_across) {
    node here;
    const auto qp = here.make_qp();
    connected_child peer(here, qp.get(), [&](node& there, ibv_qp*) {
        while (*reinterpret_cast<volatile std::uint64_t*>(&there.memory[4096]) != 1000)
            std::this_thread::yield();
        for (std::size_t i = 0; i < 4096; ++i)
            EXPECT_EQ(there.memory[i], static_cast<unsigned char>(i * 3));
        return 0;
    });
    const auto& remote_side = peer.remote();
    for (std::size_t i = 0; i < 4096; ++i)
        here.memory[i] = static_cast<unsigned char>(i * 3);
    ASSERT_EQ(request(IBV_WR_RDMA_WRITE, 1, 0)
                  .from(here.entry(0, 4096))
                  .at(remote_side.memory, remote_side.key)
                  .post(qp.get()),
              0);
    ASSERT_EQ(request(IBV_WR_RDMA_READ)
                  .from(here.entry(10000, 4096))
                  .at(remote_side.memory, remote_side.key)
                  .post(qp.get()),
              0);
    (void)here.expect_wc();
    EXPECT_EQ(std::memcmp(&here.memory[0], &here.memory[10000], 4096), 0);
    for (int i = 0; i < 10; ++i)
        ASSERT_EQ(request(IBV_WR_ATOMIC_FETCH_AND_ADD)
                      .from(here.entry(20000, 8))
                      .atomic(remote_side.memory + 4096, remote_side.key, 100)
                      .post(qp.get()),
                  0);
    EXPECT_EQ(peer.process().wait(), 0);
    for (int i = 0; i < 10; ++i)
        (void)here.expect_wc();
}

// labels: no_tsan
TEST_F(processes_test, zeros_of_a_null_region_reach_another_process) {
    node here;
    const auto qp = here.make_qp();
    connected_child peer(here, qp.get(), [&](node& there, ibv_qp* mine) {
        std::memset(there.memory.data(), 9, 30000);
        EXPECT_EQ(post_receive(mine, {there.entry(0, 30000)}), 0);
        EXPECT_EQ(there.expect_wc().byte_len, 20001U);
        EXPECT_EQ(std::count(there.memory.begin(), there.memory.begin() + 20000, 0), 20000);
        EXPECT_EQ(there.memory[20000], 3);
        EXPECT_EQ(there.memory[20001], 9);
        return 0;
    });
    const mr_handle null(ibv_alloc_null_mr(here.pd.get()));
    ASSERT_TRUE(null);
    here.memory[0] = 3;
    ASSERT_EQ(request(IBV_WR_SEND).from({0, 20000, null->lkey}).from(here.entry(0, 1)).post(qp.get()), 0);
    (void)here.expect_wc();
    EXPECT_EQ(peer.process().wait(), 0);
}

// Peers in one lab with Ethernet recognise each other by address; no byte passes through a socket.
// labels: no_tsan
TEST_F(processes_test, peers_of_one_host_use_its_memory) {
    describe("hcas = 1\nlink_layer = ethernet\naddress = 127.0.0.1");
    const auto report = root() / "report";
    {
        node here;
        const auto qp = here.make_qp();
        connected_child peer(here, qp.get(), [&](node& there, ibv_qp* mine) {
            EXPECT_EQ(post_receive(mine, {there.entry(0, 5000)}), 0);
            EXPECT_EQ(there.expect_wc().byte_len, 5000U);
            return 0;
        });
        ::setenv("GAUDI_LAB_HCA_REPORT", report.c_str(), 1); // after fork: the child writes no report
        ASSERT_EQ(request(IBV_WR_SEND).from(here.entry(0, 5000)).post(qp.get()), 0);
        (void)here.expect_wc();
        EXPECT_EQ(peer.process().wait(), 0);
    }
    ::unsetenv("GAUDI_LAB_HCA_REPORT");
    const auto text = text_of(report);
    EXPECT_HAS(text, R"("messages":1)");
    EXPECT_HAS(text, R"("bytes_tcp":0)");
}

TEST_F(processes_test, events_reach_a_sleeping_peer) {
    gate asleep;
    shared_memory<address> exchange(2);
    gate up, down;
    child sleeper([&] {
        node there(65536, 64, true);
        const auto mine = there.make_qp();
        exchange[1] = there.address_of(mine.get());
        up.open();
        (void)down.wait();
        connect(mine.get(), exchange[1], exchange[0]);
        for (int round = 0; round < 20; ++round) {
            EXPECT_EQ(post_receive(mine.get(), {there.entry(0, 8)}), 0);
            EXPECT_EQ(ibv_req_notify_cq(there.cq.get(), 0), 0);
            if (round == 0)
                up.open();
            ibv_cq* cq = nullptr;
            void* cookie = nullptr;
            EXPECT_EQ(ibv_get_cq_event(there.channel.get(), &cq, &cookie), 0); // blocks
            ibv_ack_cq_events(cq, 1);
            (void)there.expect_wc();
        }
        return ::testing::Test::HasFailure() ? 1 : 0;
    });
    ASSERT_TRUE(up.wait());
    node here;
    const auto qp = here.make_qp();
    exchange[0] = here.address_of(qp.get());
    connect(qp.get(), exchange[0], exchange[1]);
    down.open();
    ASSERT_TRUE(up.wait());
    for (int round = 0; round < 20; ++round) {
        ASSERT_EQ(request(IBV_WR_SEND).from(here.entry(0, 8)).post(qp.get()), 0);
        (void)here.expect_wc();
    }
    EXPECT_EQ(sleeper.wait(), 0);
}

// labels: no_tsan
TEST_F(processes_test, an_error_caused_by_one_is_reported_to_the_other) {
    node here;
    const auto qp = here.make_qp();
    connected_child peer(here, qp.get(), [&](node& there, ibv_qp* mine) {
        EXPECT_EQ(post_receive(mine, {there.entry(0, 8)}, 5), 0);
        EXPECT_EQ(next_event(there.context.get()), IBV_EVENT_QP_ACCESS_ERR);
        EXPECT_EQ(there.expect_wc(IBV_WC_WR_FLUSH_ERR).wr_id, 5U);
        EXPECT_TRUE(reaches(mine, IBV_QPS_ERR));
        return 0;
    });
    ASSERT_EQ(request(IBV_WR_RDMA_WRITE)
                  .from(here.entry(0, 8))
                  .at(peer.remote().memory, peer.remote().key + 256)
                  .post(qp.get()),
              0);
    (void)here.expect_wc(IBV_WC_REM_ACCESS_ERR);
    EXPECT_EQ(peer.process().wait(), 0);
}

// labels: no_tsan
TEST_F(processes_test, a_killed_peer_is_a_retry_exceeded) {
    node here;
    const auto waiting = here.make_qp();
    connected_child peer(here, waiting.get(), [](node&, ibv_qp*) {
        ::pause();
        return 0;
    });
    // The first send waits for a receive when the peer is killed; the second is queued after it.
    ASSERT_EQ(request(IBV_WR_SEND, 1).from(here.entry(0, 8)).post(waiting.get()), 0);
    ASSERT_EQ(request(IBV_WR_SEND, 2).from(here.entry(0, 8)).post(waiting.get()), 0);
    here.expect_none();
    const auto begin = std::chrono::steady_clock::now();
    peer.process().kill_it();
    EXPECT_EQ(here.expect_wc(IBV_WC_RETRY_EXC_ERR).wr_id, 1U);
    EXPECT_EQ(here.expect_wc(IBV_WC_WR_FLUSH_ERR).wr_id, 2U);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
    EXPECT_EQ(state_of(waiting.get()), IBV_QPS_ERR);
}

TEST_F(processes_test, a_dead_process_leaves_its_slot_to_the_next) {
    for (int i = 0; i < 5; ++i) {
        child victim([] {
            node there;
            const auto qp = there.make_qp();
            ::kill(::getpid(), SIGKILL);
            return 0;
        });
        EXPECT_EQ(victim.wait(), 128 + SIGKILL);
    }
    std::size_t files = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(lab() / "hca"))
        ++files;
    EXPECT_EQ(files, 1U) << "one slot, used again and again";
    { const node next; }
    EXPECT_TRUE(std::filesystem::is_empty(lab() / "hca"));
}

class fork_test : public test_lab, public ::testing::WithParamInterface<const char*> {};
// labels: no_tsan
TEST_P(fork_test, child_has_no_part_in_its_parents_objects) {
    describe(GetParam());
    EXPECT_EQ(ibv_fork_init(), 0);
    EXPECT_EQ(ibv_is_fork_initialized(), IBV_FORK_UNNEEDED);
    two_nodes both;
    const auto remote = both.right.address_of(both.b.get());
    child forked([&] {
        EXPECT_EQ(request(IBV_WR_SEND).from(both.left.entry(0, 8)).post(both.a.get()), EINVAL);
        EXPECT_EQ(post_receive(both.b.get(), {}), EINVAL);
        EXPECT_EQ(ibv_reg_mr(both.left.pd.get(), both.left.memory.data(), 100, 0), nullptr);
        node own; // the child may open the device again
        const auto qp = own.make_qp();
        connect(qp.get(), own.address_of(qp.get()), own.address_of(qp.get()));
        EXPECT_EQ(post_receive(qp.get(), {own.entry(0, 8)}), 0);
        EXPECT_EQ(request(IBV_WR_SEND).from(own.entry(100, 8)).post(qp.get()), 0);
        (void)own.expect_wc();
        (void)own.expect_wc();
        return ::testing::Test::HasFailure() ? 1 : 0;
    });
    EXPECT_EQ(forked.wait(), 0);
    both.left.memory[0] = 4;
    ASSERT_EQ(request(IBV_WR_RDMA_WRITE)
                  .from(both.left.entry(0, 8))
                  .at(remote.memory, remote.key)
                  .post(both.a.get()),
              0);
    (void)both.left.expect_wc();
    EXPECT_EQ(both.right.memory[0], 4) << "the parent goes on";
}
INSTANTIATE_TEST_SUITE_P(over, fork_test,
                         ::testing::Values("hcas = 1",
                                           "hcas = 1\nlink_layer = ethernet\naddress = 127.0.0.1"),
                         [](const auto& each) { return each.index == 0 ? "infiniband" : "ethernet"; });

TEST_F(processes_test, memory_that_others_may_enter_is_refused) {
    { const node first; }
    std::filesystem::permissions(root(), std::filesystem::perms::all);
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(ibv_get_device_list(nullptr), nullptr);
    EXPECT_NE(::testing::internal::GetCapturedStderr().find("others can enter it"), std::string::npos);
    std::filesystem::permissions(root(), std::filesystem::perms::owner_all);
}

// Only the owner of the state files can open them, even if others know the path.
TEST_F(processes_test, another_user_sees_nothing) {
    if (::geteuid() != 0)
        GTEST_SKIP() << "needs the right to become another user";
    const node here;
    const auto qp = here.make_qp();
    std::vector<std::filesystem::path> files;
    for (const auto& each : std::filesystem::recursive_directory_iterator(root()))
        if (each.is_regular_file())
            files.push_back(each.path());
    ASSERT_FALSE(files.empty());
    // Once with the real permissions, once with folders that all users can enter.
    for (const bool open_folders : {false, true}) {
        if (open_folders) {
            std::filesystem::permissions(root(), std::filesystem::perms::all);
            for (const auto& each : std::filesystem::recursive_directory_iterator(root()))
                if (each.is_directory())
                    std::filesystem::permissions(each.path(), std::filesystem::perms::all);
        }
        child other_user([&] {
            constexpr uid_t other_uid = 65534;
            if (::setresgid(other_uid, other_uid, other_uid) != 0 ||
                ::setresuid(other_uid, other_uid, other_uid) != 0)
                return 90;
            for (const auto& file : files)
                for (const int how : {O_RDONLY, O_RDWR})
                    if (::open(file.c_str(), how | O_CLOEXEC) >= 0 || errno != EACCES)
                        return 91;
            int count = 0;
            auto** devices = ibv_get_device_list(&count);
            return devices == nullptr || count == 0 || ibv_open_device(devices[0]) == nullptr ? 0 : 92;
        });
        EXPECT_EQ(other_user.wait(), 0) << (open_folders ? "with open folders" : "");
    }
    std::filesystem::permissions(root(), std::filesystem::perms::owner_all);
}

} // namespace
