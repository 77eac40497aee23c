// SPDX-License-Identifier: BSD-3-Clause
// Modes of the virtual NIC that delay or fail requests, and failures of the environment of the lab.
#include "tests/lab/hca/verbs_node.hpp"
#include "tests/support/child.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/test_lab.hpp"

#include <chrono>
#include <dlfcn.h>
#include <fstream>
#include <regex>
#include <seccomp.h>
#include <sys/mman.h>
#include <unistd.h>

namespace {

using namespace testing_support;

class modes_test : public test_lab {
protected:
    static void choose(const char* mode) { ::setenv("GAUDI_LAB_HCA_MODE", mode, 1); }
    // Their wr_id is 0 to 3.
    static void post_four_writes(two_nodes& both) {
        const auto remote = both.right.address_of(both.b.get());
        for (std::uint64_t i = 0; i < 4; ++i)
            ASSERT_EQ(request(IBV_WR_RDMA_WRITE, i)
                          .from(both.left.entry(0, 8))
                          .at(remote.memory, remote.key)
                          .post(both.a.get()),
                      0);
    }
    void TearDown() override {
        ::unsetenv("GAUDI_LAB_HCA_MODE");
        test_lab::TearDown();
    }
};

TEST_F(modes_test, deferred_runs_after_posting) {
    choose("delay=200ms");
    two_nodes both;
    ASSERT_NO_FATAL_FAILURE(post_four_writes(both));
    ibv_wc done[4];
    const int early = ibv_poll_cq(both.left.cq.get(), 4, done);
    EXPECT_LT(early, 4) << "one of four may be due at once, not all";
    for (std::uint64_t i = static_cast<std::uint64_t>(early); i < 4; ++i)
        EXPECT_EQ(both.left.expect_wc().wr_id, i) << "in order all the same";
}

TEST_F(modes_test, delays_let_queue_pairs_overtake_each_other) {
    choose("delay=20ms");
    node left, right;
    std::vector<qp_handle> local_side, remote_side;
    for (int i = 0; i < 8; ++i) {
        local_side.push_back(left.make_qp());
        remote_side.push_back(right.make_qp());
        connect(local_side.back().get(), left.address_of(local_side.back().get()),
                right.address_of(remote_side.back().get()));
        connect(remote_side.back().get(), right.address_of(remote_side.back().get()),
                left.address_of(local_side.back().get()));
    }
    const auto remote = right.address_of(remote_side[0].get());
    // On a busy machine all delays may expire before the guard runs, and order is kept: repeat.
    bool overtaken = false;
    for (int round = 0; round < 100 && !overtaken; ++round) {
        for (std::uint64_t i = 0; i < 8; ++i)
            ASSERT_EQ(request(IBV_WR_RDMA_WRITE, i)
                          .from(left.entry(0, 8))
                          .at(remote.memory, remote.key)
                          .post(local_side[i].get()),
                      0);
        std::uint64_t last = 0;
        for (int i = 0; i < 8; ++i) {
            const auto done = left.expect_wc();
            overtaken |= done.wr_id < last;
            last = done.wr_id;
        }
    }
    EXPECT_TRUE(overtaken);
}

TEST_F(modes_test, deferred) {
    choose("deferred");
    two_nodes both;
    ASSERT_EQ(post_receive(both.b.get(), {both.right.entry(0, 8)}), 0);
    ASSERT_EQ(request(IBV_WR_SEND).from(both.left.entry(0, 8)).post(both.a.get()), 0);
    (void)both.left.expect_wc();
    (void)both.right.expect_wc();
    // The guard may complete a request before the poll, on one processor often, but not every time.
    const auto remote = both.right.address_of(both.b.get());
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    int late = 0;
    for (int i = 0; i < 200 || (late == 0 && std::chrono::steady_clock::now() < deadline); ++i) {
        ASSERT_EQ(request(IBV_WR_RDMA_WRITE)
                      .from(both.left.entry(0, 8))
                      .at(remote.memory, remote.key)
                      .post(both.a.get()),
                  0);
        ibv_wc done{};
        if (ibv_poll_cq(both.left.cq.get(), 1, &done) == 0) {
            ++late;
            (void)both.left.expect_wc();
        }
    }
    EXPECT_GT(late, 0);
}

TEST_F(modes_test, delays_between_hosts_lose_nothing) {
    const auto ran =
        run_own_tests("wire_test.send_receive_write_read_and_atomics:wire_test.memory_of_all_kinds*",
                      {"GAUDI_LAB_HCA_MODE=deferred,delay=1ms"});
    EXPECT_EQ(ran.status, 0) << ran.output;
    EXPECT_HAS(ran.output, "[  PASSED  ] 2 tests.");
}

TEST_F(modes_test, every_second_delivery_finds_no_receive) {
    choose("rnr=2");
    connect_options how;
    how.rnr_timer = 22; // 20.48 ms
    two_nodes both({}, how, how);
    for (std::uint64_t i = 0; i < 6; ++i)
        ASSERT_EQ(post_receive(both.b.get(), {both.right.entry(0, 8)}, i), 0);
    const auto begin = std::chrono::steady_clock::now();
    for (std::uint64_t i = 0; i < 6; ++i)
        ASSERT_EQ(request(IBV_WR_SEND, i).from(both.left.entry(0, 8)).post(both.a.get()), 0);
    for (std::uint64_t i = 0; i < 6; ++i) {
        EXPECT_EQ(both.left.expect_wc().wr_id, i);
        EXPECT_EQ(both.right.expect_wc().wr_id, i);
    }
    EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(61)) << "three timers";
}

TEST_F(modes_test, every_second_delivery_fails_without_retries) {
    choose("rnr=2");
    connect_options hasty;
    hasty.rnr_retry = 0;
    two_nodes both({}, hasty, hasty);
    std::vector<ibv_wc_status> seen;
    for (std::uint64_t i = 0; i < 2; ++i) {
        ASSERT_EQ(post_receive(both.b.get(), {both.right.entry(0, 8)}, i), 0);
        ASSERT_EQ(request(IBV_WR_SEND, i).from(both.left.entry(0, 8)).post(both.a.get()), 0);
        seen.push_back(both.left.wait()->status);
    }
    EXPECT_EQ(std::count(seen.begin(), seen.end(), IBV_WC_RNR_RETRY_EXC_ERR), 1) << "the first or the second";
}

TEST_F(modes_test, even_when_every_delivery_is_too_early_the_retry_is_not) {
    choose("rnr=1");
    connect_options how;
    how.rnr_timer = 24; // 40.96 ms
    how.rnr_retry = 1;
    two_nodes both({}, how, how);
    ASSERT_EQ(post_receive(both.b.get(), {both.right.entry(0, 8)}), 0);
    const auto begin = std::chrono::steady_clock::now();
    ASSERT_EQ(request(IBV_WR_SEND).from(both.left.entry(0, 8)).post(both.a.get()), 0);
    (void)both.left.expect_wc();
    (void)both.right.expect_wc();
    EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(40));
}

TEST_F(modes_test, every_third_request_fails) {
    choose("error=3");
    two_nodes both;
    ASSERT_NO_FATAL_FAILURE(post_four_writes(both));
    std::vector<ibv_wc_status> seen;
    for (int i = 0; i < 4; ++i)
        seen.push_back(both.left.wait()->status);
    const auto failed = std::find(seen.begin(), seen.end(), IBV_WC_GENERAL_ERR);
    ASSERT_NE(failed, seen.end());
    for (auto at = failed + 1; at != seen.end(); ++at)
        EXPECT_EQ(*at, IBV_WC_WR_FLUSH_ERR);
}

TEST_F(modes_test, a_mode_that_is_not_understood_ends_the_program) {
    choose("sometimes");
    child victim([] {
        (void)open_first();
        return 0;
    });
    EXPECT_EQ(victim.wait(), 2);
}

// A container that forbids process_vm_readv and process_vm_writev: an error message is required.
class forbidden : public modes_test, public ::testing::WithParamInterface<ibv_wr_opcode> {};
INSTANTIATE_TEST_SUITE_P(operations, forbidden,
                         ::testing::Values(IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_SEND,
                                           IBV_WR_ATOMIC_FETCH_AND_ADD));

// labels: no_tsan
TEST_P(forbidden, memory_of_other_processes_is_an_error_with_a_reason) {
    auto* shared = static_cast<address*>(
        ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    gate up, down;
    // A send of eight bytes would travel with the completion.
    const std::size_t length = GetParam() == IBV_WR_SEND ? 64 : 8;
    child peer([&] {
        node there;
        const auto qp = there.make_qp();
        shared[1] = there.address_of(qp.get());
        up.open();
        (void)down.wait();
        connect(qp.get(), shared[1], shared[0]);
        EXPECT_EQ(post_receive(qp.get(), {there.entry(0, length)}, 1), 0);
        up.open();
        return down.wait() && !::testing::Test::HasFailure() ? 0 : 1;
    });
    child here([&] {
        (void)up.wait();
        node own;
        const auto qp = own.make_qp();
        shared[0] = own.address_of(qp.get());
        connect(qp.get(), shared[0], shared[1]);
        down.open();
        (void)up.wait();
        auto* filter = ::seccomp_init(SCMP_ACT_ALLOW);
        ::seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(process_vm_writev), 0);
        ::seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(process_vm_readv), 0);
        EXPECT_EQ(::seccomp_load(filter), 0);
        ::seccomp_release(filter);
        ::testing::internal::CaptureStderr();
        request wanted(GetParam());
        wanted.from(own.entry(0, length));
        if (GetParam() == IBV_WR_ATOMIC_FETCH_AND_ADD)
            wanted.atomic(shared[1].memory, shared[1].key, 1);
        else
            wanted.at(shared[1].memory, shared[1].key);
        EXPECT_EQ(wanted.post(qp.get()), 0);
        (void)own.expect_wc(IBV_WC_LOC_QP_OP_ERR);
        const auto said = ::testing::internal::GetCapturedStderr();
        EXPECT_TRUE(std::regex_search(said, std::regex("process_vm_(read|write)v is forbidden"))) << said;
        down.open();
        return ::testing::Test::HasFailure() ? 1 : 0;
    });
    EXPECT_EQ(here.wait(), 0);
    EXPECT_EQ(peer.wait(), 0);
    ::munmap(shared, 4096);
}

TEST_F(modes_test, the_lab_folder_goes_while_it_is_used) {
    two_nodes both({}, {}, {}, true);
    std::filesystem::remove_all(lab());
    const auto remote = both.right.address_of(both.b.get());
    ASSERT_EQ(request(IBV_WR_RDMA_WRITE)
                  .from(both.left.entry(0, 8))
                  .at(remote.memory, remote.key)
                  .post(both.a.get()),
              0);
    (void)both.left.expect_wc(); // existing mappings stay valid
    EXPECT_EQ(ibv_create_comp_channel(both.left.context.get()), nullptr);
    EXPECT_EQ(errno, ENOENT);
}

TEST_F(modes_test, a_full_tmpfs_is_an_errno) {
    const small_tmpfs small(root(), "300k");
    if (!small.mounted())
        GTEST_SKIP() << "no right to mount";
    node here(4096, 16);
    ibv_qp_init_attr wanted{};
    wanted.qp_type = IBV_QPT_RC;
    wanted.send_cq = wanted.recv_cq = here.cq.get();
    wanted.cap = {4096, 4096, 4, 4, 0};
    EXPECT_EQ(ibv_create_qp(here.pd.get(), &wanted), nullptr);
    EXPECT_EQ(errno, ENOMEM);
    EXPECT_EQ(ibv_create_cq(here.context.get(), 65536, nullptr, nullptr, 0), nullptr);
    EXPECT_EQ(errno, ENOMEM);
    wanted.cap = {4, 4, 1, 1, 0};
    const qp_handle fits(ibv_create_qp(here.pd.get(), &wanted));
    EXPECT_TRUE(fits) << "what failed gave everything back";
}

TEST_F(modes_test, trace_covers_verbs) {
    const auto ran = run_own_tests("transfer_test.send_and_receive", {"GAUDI_LAB_TRACE=1"});
    EXPECT_EQ(ran.status, 0) << ran.output;
    for (const auto* call : {"ibv_open_device(", "ibv_reg_mr(", "ibv_modify_qp(",
                             "send 4999 bytes in 1 (id 0x3)) = 0", "5000 bytes in 1 (id 0x7)) = 0"})
        EXPECT_NE(ran.output.find(call), std::string::npos) << call << " in\n" << ran.output;
}

TEST_F(modes_test, errors_are_counted) {
    const auto report = (root() / "report").string();
    const auto ran = run_own_tests("errors_test.write_with_a_wrong_key", {"GAUDI_LAB_HCA_REPORT=" + report});
    EXPECT_EQ(ran.status, 0) << ran.output;
    const auto text = text_of(report);
    EXPECT_TRUE(std::regex_search(text, std::regex(R"("errors": ?[1-9])"))) << text;
}

// Each verb has the symbol version that it has in libibverbs of rdma-core 65.
TEST_F(modes_test, symbol_versions) {
    void* library = ::dlopen("libvhca.so", RTLD_NOW | RTLD_NOLOAD);
    ASSERT_NE(library, nullptr);
    const std::pair<const char*, const char*> some[] = {{"ibv_create_comp_channel", "IBVERBS_1.0"},
                                                        {"ibv_create_qp", "IBVERBS_1.1"},
                                                        {"ibv_get_pkey_index", "IBVERBS_1.5"},
                                                        {"ibv_qp_to_qp_ex", "IBVERBS_1.6"},
                                                        {"ibv_reg_mr_iova", "IBVERBS_1.7"},
                                                        {"ibv_reg_mr_iova2", "IBVERBS_1.8"},
                                                        {"ibv_get_device_index", "IBVERBS_1.9"},
                                                        {"ibv_query_ece", "IBVERBS_1.10"},
                                                        {"_ibv_query_gid_ex", "IBVERBS_1.11"},
                                                        {"ibv_reg_dmabuf_mr", "IBVERBS_1.12"},
                                                        {"ibv_import_dm", "IBVERBS_1.13"},
                                                        {"ibv_query_qp_data_in_order", "IBVERBS_1.14"},
                                                        {"ibv_alloc_dmah", "IBVERBS_1.15"},
                                                        {"ibv_dealloc_dmah", "IBVERBS_1.15"},
                                                        {"ibv_reg_mr_ex", "IBVERBS_1.15"},
                                                        {"ibv_dm_export_dmabuf_fd", "IBVERBS_1.16"},
                                                        {"ibv_query_port_speed", "IBVERBS_1.16"},
                                                        {"ibv_alloc_buf", "IBVERBS_1.17"},
                                                        {"ibv_free_buf", "IBVERBS_1.17"},
                                                        {"ibv_reg_buf_mr", "IBVERBS_1.17"},
                                                        {"_ibv_query_comp_cntr_caps", "IBVERBS_1.18"},
                                                        {"ibv_create_comp_cntr", "IBVERBS_1.18"},
                                                        {"ibv_destroy_comp_cntr", "IBVERBS_1.18"},
                                                        {"ibv_export_buf_dmabuf_fd", "IBVERBS_1.18"},
                                                        {"ibv_inc_comp_cntr", "IBVERBS_1.18"},
                                                        {"ibv_inc_err_comp_cntr", "IBVERBS_1.18"},
                                                        {"ibv_qp_attach_comp_cntr", "IBVERBS_1.18"},
                                                        {"ibv_read_comp_cntr", "IBVERBS_1.18"},
                                                        {"ibv_read_err_comp_cntr", "IBVERBS_1.18"},
                                                        {"ibv_set_comp_cntr", "IBVERBS_1.18"},
                                                        {"ibv_set_err_comp_cntr", "IBVERBS_1.18"}};
    for (const auto& [name, version] : some)
        EXPECT_NE(::dlvsym(library, name, version), nullptr) << name << "@" << version;
    ::dlclose(library);
}

} // namespace
