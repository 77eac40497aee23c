// SPDX-License-Identifier: BSD-3-Clause
// Random traffic between many processes, and killed processes.
#include "tests/lab/hca/connected_child.hpp"
#include "tests/support/child.hpp"
#include "tests/support/test_lab.hpp"

#include <csignal>
#include <cstdlib>
#include <random>
#include <unistd.h>

namespace {

using namespace testing_support;
using campaigns_test = test_lab;

// Eight processes, each with a queue pair to every process including itself, post random operations. The
// content of a message depends on its number; receivers and readers check every byte, adders the old value.
// labels: slow
TEST_F(campaigns_test, campaign_of_eight_processes) {
    constexpr unsigned processes = 8, rounds = 1000;
    constexpr std::size_t largest = 20000, room = 32768;
    // Memory: per peer a send buffer, a receive buffer, and two alternating targets of writes, because a
    // write may arrive while the previous one is checked. Then the target of reads, and a counter per peer.
    constexpr std::size_t common = 4 * processes * room, numbers = common + room;
    const auto written_to = [](unsigned from, unsigned writes) {
        return (2 * processes + 2 * from + writes % 2) * room;
    };
    // Both sides compute the operation of the nth message. Sends and writes (with immediate) use a receive.
    enum { send, write, read, add, kinds };
    const auto kind_of = [](unsigned from, unsigned to, unsigned number) {
        return (from * 5 + to * 3 + number + number / kinds) % kinds;
    };
    shared_memory<address> where(processes * processes);
    shared_memory<std::atomic<unsigned>> ready(3);
    const auto arrive = [&](unsigned stage) {
        ++ready[stage];
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
        while (ready[stage] < processes && std::chrono::steady_clock::now() < end)
            ::usleep(1000);
    };
    std::vector<std::unique_ptr<child>> all;
    for (unsigned me = 0; me < processes; ++me)
        all.push_back(std::make_unique<child>([&, me] {
            node here(numbers + processes * sizeof(std::uint64_t), 4096);
            std::vector<qp_handle> qps;
            for (unsigned peer = 0; peer < processes; ++peer) {
                qps.push_back(here.make_qp({IBV_QPT_RC, 64, 2, 64}));
                where[me * processes + peer] = here.address_of(qps.back().get());
            }
            arrive(0);
            connect_options how;
            how.timeout = 18; // 1 s
            how.retries = 7;
            const auto content = [](unsigned from, unsigned number, std::size_t i) {
                return static_cast<unsigned char>(from * 101 + number * 7 + i);
            };
            for (std::size_t i = 0; i < room; ++i)
                here.memory[common + i] = content(me, rounds, i);
            for (unsigned peer = 0; peer < processes; ++peer) {
                connect(qps[peer].get(), where[me * processes + peer], where[peer * processes + me], how);
                EXPECT_EQ(
                    post_receive(qps[peer].get(), {here.entry((processes + peer) * room, room)}, 1000 + peer),
                    0);
            }
            arrive(1);
            std::mt19937 random(me + 1);
            std::vector<unsigned> sent(processes), received(processes);
            std::vector<std::uint64_t> added(processes);
            std::vector<unsigned> writes(processes), written(processes); // posted to, received from peers
            std::vector<std::size_t> busy(processes);                    // bytes of the outstanding operation
            unsigned left = rounds * processes, expected = 0;
            for (unsigned from = 0; from < processes; ++from)
                for (unsigned number = 0; number < rounds; ++number)
                    expected += kind_of(from, me, number) <= write ? 1U : 0U;
            while (left + expected > 0) {
                const auto peer = static_cast<unsigned>(random() % processes);
                if (sent[peer] < rounds && busy[peer] == 0) {
                    const auto kind = kind_of(me, peer, sent[peer]);
                    const auto length = kind == add ? sizeof(std::uint64_t) : 4 + random() % largest;
                    auto* bytes = here.memory.data() + peer * room;
                    for (std::size_t i = 0; i < length; ++i)
                        bytes[i] = content(me, sent[peer], i);
                    const auto& there = where[peer * processes + me];
                    constexpr ibv_wr_opcode opcodes[] = {IBV_WR_SEND, IBV_WR_RDMA_WRITE_WITH_IMM,
                                                         IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD};
                    request wanted(opcodes[kind], peer);
                    wanted.from(here.entry(peer * room, length));
                    if (kind == add)
                        wanted.atomic(there.memory + numbers + me * sizeof(std::uint64_t), there.key, 1, 0);
                    else if (kind == read)
                        wanted.at(there.memory + common, there.key);
                    else if (kind == write)
                        wanted.at(there.memory + written_to(me, writes[peer]++), there.key);
                    EXPECT_EQ(wanted.post(qps[peer].get()), 0);
                    busy[peer] = length;
                    ++sent[peer];
                }
                ibv_wc done[16];
                const int count = ibv_poll_cq(here.cq.get(), 16, done);
                if (count == 0)
                    std::this_thread::yield();
                for (int k = 0; k < count; ++k) {
                    if (done[k].status != IBV_WC_SUCCESS)
                        return 10 + static_cast<int>(done[k].status);
                    if (done[k].wr_id < 1000) {
                        const auto to = static_cast<unsigned>(done[k].wr_id);
                        const auto kind = kind_of(me, to, sent[to] - 1);
                        const auto* bytes = here.memory.data() + to * room;
                        for (std::size_t i = 0; kind == read && i < busy[to]; ++i)
                            if (bytes[i] != content(to, rounds, i))
                                return 3;
                        std::uint64_t before = 0;
                        std::memcpy(&before, bytes, sizeof(before));
                        if (kind == add && before != added[to]++)
                            return 4;
                        busy[to] = 0;
                        --left;
                        continue;
                    }
                    const auto from = static_cast<unsigned>(done[k].wr_id - 1000);
                    while (kind_of(from, me, received[from]) > write)
                        ++received[from];
                    const auto* bytes = here.memory.data() + (kind_of(from, me, received[from]) == send
                                                                  ? (processes + from) * room
                                                                  : written_to(from, written[from]++));
                    for (std::size_t i = 0; i < done[k].byte_len; ++i)
                        if (bytes[i] != content(from, received[from], i))
                            return 2;
                    ++received[from];
                    --expected;
                    EXPECT_EQ(post_receive(qps[from].get(), {here.entry((processes + from) * room, room)},
                                           1000 + from),
                              0);
                }
            }
            arrive(2);
            return ::testing::Test::HasFailure() ? 1 : 0;
        }));
    for (auto& each : all)
        EXPECT_EQ(each->wait(std::chrono::seconds(120)), 0);
}

// Repeatedly kills a peer at a random moment of heavy traffic in both directions. The survivor gets a
// completion for every request, with success or an error, and continues with the next peer.
// labels: slow
TEST_F(campaigns_test, campaign_of_kill_9) {
    node here(1 << 20, 4096);
    std::mt19937 random(7);
    connect_options how;
    how.timeout = 8; // 1 ms
    how.retries = 2;
    const char* cycles = std::getenv("GAUDI_TEST_CYCLES");
    const int rounds = cycles != nullptr ? std::atoi(cycles) : 100;
    for (int round = 0; round < rounds; ++round) {
        SCOPED_TRACE(round);
        const auto qp = here.make_qp({IBV_QPT_RC, 64, 1, 0});
        connected_child peer(
            here, qp.get(),
            [](node& there, ibv_qp* mine) {
                for (;;) { // until an error or SIGKILL
                    (void)post_receive(mine, {there.entry(0, 8192)}, 1);
                    (void)request(IBV_WR_SEND, 2).from(there.entry(8192, 4096)).post(mine);
                    ibv_wc done[8];
                    if (const int count = ibv_poll_cq(there.cq.get(), 8, done);
                        count > 0 && done[0].status != IBV_WC_SUCCESS)
                        return 1;
                }
            },
            how);
        const auto kill_at = std::chrono::steady_clock::now() + std::chrono::microseconds(random() % 20000);
        bool killed = false;
        unsigned outstanding_sends = 0, outstanding_receives = 0;
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        for (;;) {
            if (!killed && std::chrono::steady_clock::now() >= kill_at) {
                peer.process().kill_it();
                killed = true;
            }
            if (state_of(qp.get()) == IBV_QPS_RTS) {
                constexpr ibv_wr_opcode opcodes[] = {IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ,
                                                     IBV_WR_ATOMIC_FETCH_AND_ADD};
                const auto opcode = opcodes[random() % std::size(opcodes)];
                request wanted(opcode, 3);
                wanted.from(here.entry(0, opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ? 8 : 4096));
                if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
                    wanted.atomic(peer.remote().memory + 32768, peer.remote().key, 1, 0);
                else if (opcode != IBV_WR_SEND)
                    wanted.at(peer.remote().memory + 16384, peer.remote().key);
                if (outstanding_sends < 8 && wanted.post(qp.get()) == 0)
                    ++outstanding_sends;
                if (outstanding_receives < 8 && post_receive(qp.get(), {here.entry(8192, 8192)}, 4) == 0)
                    ++outstanding_receives;
            }
            ibv_wc done[16];
            const int count = ibv_poll_cq(here.cq.get(), 16, done);
            for (int i = 0; i < count; ++i)
                --(done[i].wr_id == 3 ? outstanding_sends : outstanding_receives);
            if (killed && state_of(qp.get()) == IBV_QPS_ERR && outstanding_sends == 0 &&
                outstanding_receives == 0)
                break;
            ASSERT_LT(std::chrono::steady_clock::now(), end)
                << "outstanding: " << outstanding_sends << " sends, " << outstanding_receives
                << " receives, state " << state_of(qp.get());
        }
    }
}

} // namespace
