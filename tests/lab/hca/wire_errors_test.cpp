// SPDX-License-Identifier: BSD-3-Clause
// Errors of the InfiniBand specification between hosts, which use a separate implementation: completions of
// the requester and events of the responder.
#include "tests/lab/hca/two_hosts.hpp"

#include <csignal>
#include <fstream>
#include <sstream>

namespace {

using namespace testing_support;

// Memory that the remote host offers.
struct offer {
    std::uint64_t memory = 0;
    std::uint32_t key = 0;
    pd_handle pd;
    mr_handle mr;
};

offer all_of(const node& there) {
    return {reinterpret_cast<std::uint64_t>(there.memory.data()), there.mr->rkey, nullptr, nullptr};
}

struct refusal {
    const char* name;
    offer (*make)(node& there);
    unsigned qp_access = all_access;
};

const refusal refusals[] = {
    {"unknown_key",
     [](node& there) {
         auto made = all_of(there);
         made.key += 256;
         return made;
     }},
    {"stale_key",
     [](node& there) {
         auto made = all_of(there);
         there.mr.reset();
         there.mr.reset(ibv_reg_mr(there.pd.get(), there.memory.data(), there.memory.size(), all_access));
         return made;
     }},
    {"beyond_the_end",
     [](node& there) {
         auto made = all_of(there);
         made.memory += there.memory.size();
         return made;
     }},
    {"before_the_begin",
     [](node& there) {
         auto made = all_of(there);
         made.memory -= 8;
         return made;
     }},
    {"foreign_domain",
     [](node& there) {
         auto made = all_of(there);
         made.pd.reset(ibv_alloc_pd(there.context.get()));
         made.mr.reset(ibv_reg_mr(made.pd.get(), there.memory.data(), there.memory.size(), all_access));
         made.key = made.mr->rkey;
         return made;
     }},
    {"no_right_of_region",
     [](node& there) {
         auto made = all_of(there);
         made.mr.reset(ibv_reg_mr(there.pd.get(), there.memory.data(), there.memory.size(), local_access));
         made.key = made.mr->rkey;
         return made;
     }},
    {"no_right_of_queue_pair", [](node& there) { return all_of(there); }, IBV_ACCESS_LOCAL_WRITE},
};

request ask(const node& here, ibv_wr_opcode opcode, std::uint64_t memory, std::uint32_t key) {
    request made(opcode);
    made.from(here.entry(0, 8));
    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || opcode == IBV_WR_ATOMIC_CMP_AND_SWP)
        made.atomic(memory, key, 0, 1);
    else
        made.at(memory, key);
    return made;
}

class wire_errors_test : public two_hosts {
protected:
    // The remote host refuses one request: the local host gets `status`, the remote host an event and flushed
    // receives, and both queue pairs enter the error state.
    void expect_refusal(ibv_wr_opcode opcode, const std::function<offer(node&)>& make, ibv_wc_status status,
                        ibv_event_type event, const connect_options& remote_options) {
        const auto local_side = [&](node& here, ibv_qp* qp) {
            std::fill_n(here.memory.begin(), 8, 1);
            ASSERT_TRUE(is_said(1));
            EXPECT_EQ(ask(here, opcode, shared[3].memory, shared[3].key).post(qp), 0);
            EXPECT_EQ(here.expect_wc(status).wr_id, 1U);
            EXPECT_TRUE(reaches(qp, IBV_QPS_ERR));
            EXPECT_EQ(request(IBV_WR_SEND, 2).from(here.entry(0, 8)).post(qp), 0);
            EXPECT_EQ(here.expect_wc(IBV_WC_WR_FLUSH_ERR).wr_id, 2U);
            say(2);
        };
        const auto remote_side = [&](node& there, ibv_qp* qp) {
            EXPECT_EQ(post_receive(qp, {there.entry(0, 8)}, 200), 0);
            const auto made = make(there);
            shared[3].memory = made.memory;
            shared[3].key = made.key;
            say(1);
            EXPECT_EQ(next_event(there.context.get()), event);
            EXPECT_TRUE(reaches(qp, IBV_QPS_ERR));
            EXPECT_EQ(there.expect_wc(IBV_WC_WR_FLUSH_ERR).wr_id, 200U);
            EXPECT_TRUE(is_said(2));
            EXPECT_EQ(std::count(there.memory.begin(), there.memory.end(), 0),
                      static_cast<std::ptrdiff_t>(there.memory.size()))
                << "nothing was written";
        };
        EXPECT_EQ(on_both(local_side, remote_side, {}, {}, remote_options), 0);
    }
    // One request fails at the local host: the remote host gets no event and stays in RTS.
    void expect_local(const std::function<request(node&)>& make, ibv_wc_status status,
                      const connect_options& local_options = {}) {
        const auto local_side = [&](node& here, ibv_qp* qp) {
            EXPECT_EQ(make(here).post(qp), 0);
            EXPECT_EQ(here.expect_wc(status).wr_id, 1U);
            EXPECT_TRUE(reaches(qp, IBV_QPS_ERR));
            say(1);
        };
        const auto remote_side = [&](node& there, ibv_qp* qp) {
            EXPECT_TRUE(is_said(1));
            EXPECT_EQ(next_event(there.context.get(), std::chrono::milliseconds(20)), std::nullopt);
            EXPECT_EQ(state_of(qp), IBV_QPS_RTS);
        };
        EXPECT_EQ(on_both(local_side, remote_side, {}, local_options, {}), 0);
    }
};

class wire_refusals : public wire_errors_test,
                      public ::testing::WithParamInterface<std::tuple<refusal, ibv_wr_opcode>> {};

TEST_P(wire_refusals, reach_both_sides) {
    const auto& [kind, opcode] = GetParam();
    connect_options remote_side;
    remote_side.access = kind.qp_access;
    expect_refusal(opcode, kind.make, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR, remote_side);
}

std::string name_of_refusal(const ::testing::TestParamInfo<std::tuple<refusal, ibv_wr_opcode>>& info) {
    constexpr const char* names[] = {"write", "write_with_immediate", "send",         "send_with_immediate",
                                     "read",  "compare_and_swap",     "fetch_and_add"};
    return fmt::format("{}_of_{}", names[std::get<1>(info.param)], std::get<0>(info.param).name);
}
INSTANTIATE_TEST_SUITE_P(all, wire_refusals,
                         ::testing::Combine(::testing::ValuesIn(refusals),
                                            ::testing::Values(IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM,
                                                              IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD,
                                                              IBV_WR_ATOMIC_CMP_AND_SWP)),
                         name_of_refusal);

TEST_F(wire_errors_test, misaligned_atomics) {
    for (const auto opcode : {IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_CMP_AND_SWP}) {
        say(0);
        expect_refusal(opcode,
                       [](node& there) {
                           auto made = all_of(there);
                           made.memory += 4;
                           return made;
                       },
                       IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR, {});
    }
}

TEST_F(wire_errors_test, responder_without_resources_for_reads) {
    connect_options none;
    none.rd_atomic = 0;
    for (const auto opcode : {IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD}) {
        say(0);
        expect_refusal(
            opcode, [](node& there) { return all_of(there); }, IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR,
            none);
    }
}

TEST_F(wire_errors_test, requester_without_resources_for_reads) {
    connect_options none;
    none.rd_atomic = 0;
    for (const auto opcode : {IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD}) {
        say(0);
        expect_local([&](node& here) { return ask(here, opcode, remote().memory, remote().key); },
                     IBV_WC_LOC_QP_OP_ERR, none);
    }
}

TEST_F(wire_errors_test, requesters_own_memory) {
    const auto with_wrong_key = [&](ibv_wr_opcode opcode) {
        return [this, opcode](node& here) {
            auto made = ask(here, opcode, remote().memory, remote().key);
            made.entries[0].lkey += 256;
            return made;
        };
    };
    for (const auto opcode :
         {IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD}) {
        say(0);
        expect_local(with_wrong_key(opcode), IBV_WC_LOC_PROT_ERR);
    }
    say(0);
    expect_local(
        [&](node& here) {
            auto made = ask(here, IBV_WR_ATOMIC_FETCH_AND_ADD, remote().memory, remote().key);
            made.entries[0].length = 7;
            return made;
        },
        IBV_WC_LOC_LEN_ERR);
}

TEST_F(wire_errors_test, receive_with_a_key_that_is_not_good) {
    for (const bool foreign : {false, true}) {
        say(0);
        const auto local_side = [&](node& here, ibv_qp* qp) {
            ASSERT_TRUE(is_said(1));
            EXPECT_EQ(request(IBV_WR_SEND).from(here.entry(0, 100)).post(qp), 0);
            (void)here.expect_wc(IBV_WC_REM_OP_ERR);
            EXPECT_TRUE(reaches(qp, IBV_QPS_ERR));
            say(2);
        };
        const auto remote_side = [&](node& there, ibv_qp* qp) {
            const pd_handle other(ibv_alloc_pd(there.context.get()));
            const mr_handle mr(ibv_reg_mr(other.get(), there.memory.data(), 4096, all_access));
            auto entry = there.entry(0, 100);
            entry.lkey = foreign ? mr->lkey : entry.lkey + 512;
            EXPECT_EQ(post_receive(qp, {entry}, 1), 0);
            EXPECT_EQ(post_receive(qp, {there.entry(0, 100)}, 2), 0);
            say(1);
            EXPECT_EQ(there.expect_wc(IBV_WC_LOC_PROT_ERR).wr_id, 1U);
            EXPECT_EQ(there.expect_wc(IBV_WC_WR_FLUSH_ERR).wr_id, 2U);
            EXPECT_TRUE(reaches(qp, IBV_QPS_ERR));
            EXPECT_TRUE(is_said(2));
        };
        EXPECT_EQ(on_both(local_side, remote_side), 0);
    }
}

// Unreliable services: the sender gets no error.
class wire_unreliable : public wire_errors_test,
                        public ::testing::WithParamInterface<std::tuple<ibv_qp_type, bool>> {};
INSTANTIATE_TEST_SUITE_P(services, wire_unreliable,
                         ::testing::Combine(::testing::Values(IBV_QPT_UC, IBV_QPT_UD), ::testing::Bool()),
                         [](const auto& each) {
                             return std::string(std::get<0>(each.param) == IBV_QPT_UC ? "connection_"
                                                                                      : "datagrams_") +
                                    (std::get<1>(each.param) ? "wrong_key" : "too_small");
                         });

TEST_P(wire_unreliable, a_bad_receive_ends_its_side_alone) {
    const auto service = std::get<0>(GetParam());
    const bool wrong_key = std::get<1>(GetParam());
    qp_options how;
    how.type = service;
    const auto local_side = [&](node& here, ibv_qp* qp) {
        ibv_ah_attr where{};
        where.is_global = 1;
        where.port_num = 1;
        where.grh.dgid = remote().gid;
        where.grh.hop_limit = 1;
        const ah_handle ah(ibv_create_ah(here.pd.get(), &where));
        ASSERT_TRUE(is_said(1));
        for (int i = 0; i < 500 && !step_reached(2); ++i) { // unreliable messages may be lost
            request send(IBV_WR_SEND);
            send.from(here.entry(0, 100));
            if (service == IBV_QPT_UD)
                send.wr.wr.ud = {ah.get(), remote().qp_number, 0x1111};
            EXPECT_EQ(send.post(qp), 0);
            (void)here.expect_wc();
            ::usleep(10000);
        }
        EXPECT_TRUE(step_reached(2));
        EXPECT_EQ(state_of(qp), IBV_QPS_RTS);
    };
    const auto remote_side = [&](node& there, ibv_qp* qp) {
        auto entry = there.entry(0, wrong_key ? 200 : 99);
        if (wrong_key)
            entry.lkey += 512;
        EXPECT_EQ(post_receive(qp, {entry}, 1), 0);
        EXPECT_EQ(post_receive(qp, {there.entry(0, 200)}, 2), 0);
        say(1);
        EXPECT_EQ(there.expect_wc(wrong_key ? IBV_WC_LOC_PROT_ERR : IBV_WC_LOC_LEN_ERR).wr_id, 1U);
        EXPECT_EQ(there.expect_wc(IBV_WC_WR_FLUSH_ERR).wr_id, 2U);
        EXPECT_TRUE(reaches(qp, IBV_QPS_ERR));
        say(2);
    };
    EXPECT_EQ(on_both(local_side, remote_side, how), 0);
}

// Large enough to keep the TCP connection busy for some time.
constexpr std::size_t large = 32 << 20;

struct large_region {
    explicit large_region(const node& where)
        : memory(large), mr(ibv_reg_mr(where.pd.get(), memory.data(), memory.size(), all_access)) {}
    [[nodiscard]] ibv_sge entry() const {
        return {reinterpret_cast<std::uint64_t>(memory.data()), large, mr->lkey};
    }
    std::vector<unsigned char> memory;
    mr_handle mr;
};

// labels: no_tsan
TEST_F(wire_errors_test, region_that_goes_while_writes_arrive) {
    const auto local_side = [&](node& here, ibv_qp* qp) {
        large_region mine(here);
        std::fill(mine.memory.begin(), mine.memory.end(), 1);
        ASSERT_TRUE(is_said(1));
        for (int i = 0; i < 32; ++i)
            EXPECT_EQ(request(IBV_WR_RDMA_WRITE, 1, 0)
                          .from(mine.entry())
                          .at(shared[3].memory, shared[3].key)
                          .post(qp),
                      0);
        (void)here.expect_wc(IBV_WC_REM_ACCESS_ERR);
        say(2);
    };
    const auto remote_side = [&](node& there, ibv_qp* qp) {
        large_region offered(there);
        shared[3].memory = reinterpret_cast<std::uint64_t>(offered.memory.data());
        shared[3].key = offered.mr->rkey;
        say(1);
        while (std::atomic_ref(offered.memory[0]).load() == 0)
            std::this_thread::yield();
        offered.mr.reset();
        EXPECT_EQ(next_event(there.context.get()), IBV_EVENT_QP_ACCESS_ERR);
        EXPECT_TRUE(reaches(qp, IBV_QPS_ERR));
        EXPECT_TRUE(is_said(2));
    };
    EXPECT_EQ(on_both(local_side, remote_side), 0);
}

bool is_stopped(pid_t process) {
    std::ifstream file(fmt::format("/proc/{}/stat", process));
    std::string number, name, state;
    file >> number >> name >> state;
    return state == "T";
}

// Bytes that wait in TCP connections because the other side does not read.
std::uint64_t unread_by_peers() {
    std::ifstream file("/proc/self/net/tcp");
    std::string line, number, local, remote, state, queues;
    std::getline(file, line);
    std::uint64_t waiting = 0;
    while (std::getline(file, line) &&
           std::istringstream(line) >> number >> local >> remote >> state >> queues)
        waiting += std::stoull(queues, nullptr, 16); // "sent:received"
    return waiting;
}

// The remote host posts reads and stops, so that responses queue up at the local host. A region that is
// deregistered before its response is sent must cause an access error.
TEST_F(wire_errors_test, region_that_goes_before_a_read_is_answered) {
    const auto local_side = [&](node& here, ibv_qp* qp) {
        large_region offered(here);
        shared[3].memory = reinterpret_cast<std::uint64_t>(offered.memory.data());
        shared[3].key = offered.mr->rkey;
        say(1);
        for (int i = 0; i < 10000 && !is_stopped(peer->pid()); ++i)
            ::usleep(1000);
        for (int i = 0; i < 10000 && unread_by_peers() == 0; ++i) // responses wait for the peer
            ::usleep(1000);
        EXPECT_GT(unread_by_peers(), 0U);
        here.mr.reset();
        ::kill(peer->pid(), SIGCONT);
        EXPECT_EQ(next_event(here.context.get()), IBV_EVENT_QP_ACCESS_ERR);
        EXPECT_TRUE(reaches(qp, IBV_QPS_ERR));
        EXPECT_TRUE(is_said(2));
    };
    const auto remote_side = [&](node& there, ibv_qp* qp) {
        large_region mine(there);
        EXPECT_TRUE(is_said(1));
        const auto read = [&](std::uint64_t id, unsigned flags, const ibv_sge& into, const address& from) {
            EXPECT_EQ(request(IBV_WR_RDMA_READ, id, flags).from(into).at(from.memory, from.key).post(qp), 0);
        };
        read(1, IBV_SEND_SIGNALED, there.entry(0, 8), shared[0]); // establishes the TCP connection
        (void)there.expect_wc();
        for (int i = 0; i < 8; ++i)
            read(2, 0, mine.entry(), shared[3]);
        read(3, IBV_SEND_SIGNALED, there.entry(0, 8), shared[0]);
        ::raise(SIGSTOP);
        EXPECT_EQ(there.expect_wc(IBV_WC_REM_ACCESS_ERR).wr_id, 3U);
        say(2);
    };
    EXPECT_EQ(on_both(local_side, remote_side), 0);
}

// The key check and the update of an atomic are one step: after the deregistration both sides see an error.
TEST_F(wire_errors_test, region_that_goes_between_atomics) {
    const auto local_side = [&](node& here, ibv_qp* qp) {
        for (unsigned added = 0;;) {
            EXPECT_EQ(request(IBV_WR_ATOMIC_FETCH_AND_ADD)
                          .from(here.entry(0, 8))
                          .atomic(remote().memory, remote().key, 1)
                          .post(qp),
                      0);
            const auto done = here.wait();
            ASSERT_TRUE(done);
            if (done->status == IBV_WC_SUCCESS) {
                if (++added == 100)
                    say(1); // and continue: the region is deregistered between two atomics
                continue;
            }
            EXPECT_EQ(done->status, IBV_WC_REM_ACCESS_ERR) << ibv_wc_status_str(done->status);
            break;
        }
        say(2);
    };
    const auto remote_side = [&](node& there, ibv_qp* qp) {
        EXPECT_TRUE(is_said(1));
        there.mr.reset();
        EXPECT_EQ(next_event(there.context.get()), IBV_EVENT_QP_ACCESS_ERR);
        EXPECT_TRUE(reaches(qp, IBV_QPS_ERR));
        EXPECT_TRUE(is_said(2));
    };
    EXPECT_EQ(on_both(local_side, remote_side), 0);
}

} // namespace
