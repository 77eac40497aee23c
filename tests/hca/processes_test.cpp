// SPDX-License-Identifier: BSD-3-Clause
// Several processes: data across, death, fork.
#include "tests/hca/verbs_node.hpp"
#include "tests/support/child.hpp"
#include "tests/support/test_lab.hpp"

#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <random>
#include <sys/mman.h>
#include <unistd.h>

namespace {

using namespace testing_support;
using processes_test = test_lab;

template <typename T>
class shared_memory {
public:
    explicit shared_memory(std::size_t count)
        : bytes_(count * sizeof(T)), at_(static_cast<T*>(::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                                                                MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
    ~shared_memory() { ::munmap(at_, bytes_); }
    shared_memory(const shared_memory&) = delete;
    shared_memory& operator=(const shared_memory&) = delete;
    T& operator[](std::size_t i) const { return at_[i]; }

private:
    std::size_t bytes_;
    T* at_;
};

// A child with one queue pair connected to one of ours; the child then does `body`.
class connected_child {
public:
    connected_child(node& here, ibv_qp* qp, const std::function<int(node&, ibv_qp*)>& body,
                    const connect_options& how = {})
        : exchange_(2), peer_([&, this] {
              node there;
              const auto mine = there.make_qp();
              exchange_[1] = there.address_of(mine.get());
              up_.open();
              if (!down_.wait())
                  return 90;
              connect(mine.get(), exchange_[1], exchange_[0], how);
              up_.open();
              const int status = body(there, mine.get());
              return ::testing::Test::HasFailure() ? 91 : status;
          }) {
        EXPECT_TRUE(up_.wait());
        exchange_[0] = here.address_of(qp);
        connect(qp, exchange_[0], exchange_[1], how);
        down_.open();
        EXPECT_TRUE(up_.wait());
    }
    child& process() { return peer_; }
    const address& remote() { return exchange_[1]; }
    gate& go() { return down_; }
    gate& done() { return up_; }

private:
    gate up_, down_;
    shared_memory<address> exchange_;
    child peer_;
};

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
    const auto& far = peer.remote();
    ASSERT_EQ(peer.process().wait(), 0);
    ASSERT_EQ(request(IBV_WR_RDMA_READ).from(here.entry(0, 8)).at(far.memory, far.key).post(qp.get()), 0);
    (void)here.expect_wc(IBV_WC_RETRY_EXC_ERR); // it has ended
}

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
    const auto& far = peer.remote();
    for (std::size_t i = 0; i < 4096; ++i)
        here.memory[i] = static_cast<unsigned char>(i * 3);
    ASSERT_EQ(
        request(IBV_WR_RDMA_WRITE, 1, 0).from(here.entry(0, 4096)).at(far.memory, far.key).post(qp.get()), 0);
    ASSERT_EQ(request(IBV_WR_RDMA_READ).from(here.entry(10000, 4096)).at(far.memory, far.key).post(qp.get()),
              0);
    (void)here.expect_wc();
    EXPECT_EQ(std::memcmp(&here.memory[0], &here.memory[10000], 4096), 0);
    for (int i = 0; i < 10; ++i)
        ASSERT_EQ(request(IBV_WR_ATOMIC_FETCH_AND_ADD)
                      .from(here.entry(20000, 8))
                      .atomic(far.memory + 4096, far.key, 100)
                      .post(qp.get()),
                  0);
    EXPECT_EQ(peer.process().wait(), 0);
    for (int i = 0; i < 10; ++i)
        (void)here.expect_wc();
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
            EXPECT_EQ(ibv_get_cq_event(there.channel.get(), &cq, &cookie), 0); // sleeps
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

TEST_F(processes_test, an_error_caused_by_one_is_told_to_the_other) {
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

TEST_F(processes_test, a_killed_peer_is_a_retry_exceeded) {
    node here;
    const auto waiting = here.make_qp();
    connected_child peer(here, waiting.get(), [](node&, ibv_qp*) {
        ::pause();
        return 0;
    });
    // One that waits for a receive when the peer dies, one posted afterwards.
    ASSERT_EQ(request(IBV_WR_SEND, 1).from(here.entry(0, 8)).post(waiting.get()), 0);
    ASSERT_EQ(request(IBV_WR_SEND, 2).from(here.entry(0, 8)).post(waiting.get()), 0);
    here.expect_none();
    const auto begin = std::chrono::steady_clock::now();
    peer.process().kill_it();
    EXPECT_EQ(here.expect_wc(IBV_WC_RETRY_EXC_ERR).wr_id, 1U);
    EXPECT_EQ(here.expect_wc(IBV_WC_WR_FLUSH_ERR).wr_id, 2U);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
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

TEST_F(processes_test, a_forked_child_has_no_part_in_its_parents_objects) {
    two_nodes both;
    const auto remote = both.right.address_of(both.b.get());
    child forked([&] {
        EXPECT_EQ(request(IBV_WR_SEND).from(both.left.entry(0, 8)).post(both.a.get()), EINVAL);
        EXPECT_EQ(post_receive(both.b.get(), {}), EINVAL);
        EXPECT_EQ(ibv_reg_mr(both.left.pd.get(), both.left.memory.data(), 100, 0), nullptr);
        node own; // but it may open the device itself
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

TEST_F(processes_test, memory_that_others_may_enter_is_refused) {
    { const node first; }
    std::filesystem::permissions(root(), std::filesystem::perms::all);
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(ibv_get_device_list(nullptr), nullptr);
    EXPECT_NE(::testing::internal::GetCapturedStderr().find("others can enter it"), std::string::npos);
    std::filesystem::permissions(root(), std::filesystem::perms::owner_all);
}

// Eight processes, each with a queue pair to every other and to itself, in both roles at random; each message
// carries its number, and the receiver checks every byte, as does who reads or adds.
TEST_F(processes_test, campaign_of_eight_processes) {
    constexpr unsigned processes = 8, rounds = 1000;
    constexpr std::size_t largest = 20000, room = 32768;
    // For each peer an outbox, an inbox, and two places to write to in turn: a write may arrive while the one
    // before it is looked at. Then a page that all may read, and a number for each to add to.
    constexpr std::size_t common = 4 * processes * room, numbers = common + room;
    const auto written_to = [](unsigned from, unsigned writes) {
        return (2 * processes + 2 * from + writes % 2) * room;
    };
    // What is done with the nth message; both sides know. The first two complete a receive.
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
            std::vector<unsigned> writes(processes), written(processes); // there, and here
            std::vector<std::size_t> busy(processes);                    // with so many bytes
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

// A peer is killed at a random moment of heavy traffic in both directions, over and over: the survivor always
// gets its completions, right or with an error, and can go on with the next peer.
TEST_F(processes_test, campaign_of_kill_9) {
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
                for (;;) { // sends and receives until the end
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

// Every file of the state is its user's alone, whoever knows where it lies.
TEST_F(processes_test, another_user_sees_nothing) {
    if (::geteuid() != 0)
        GTEST_SKIP() << "needs the right to become somebody else";
    const node here;
    const auto qp = here.make_qp();
    std::vector<std::filesystem::path> files;
    for (const auto& each : std::filesystem::recursive_directory_iterator(root()))
        if (each.is_regular_file())
            files.push_back(each.path());
    ASSERT_FALSE(files.empty());
    // Once as things are; once as if the folders were open to all.
    for (const bool open_folders : {false, true}) {
        if (open_folders) {
            std::filesystem::permissions(root(), std::filesystem::perms::all);
            for (const auto& each : std::filesystem::recursive_directory_iterator(root()))
                if (each.is_directory())
                    std::filesystem::permissions(each.path(), std::filesystem::perms::all);
        }
        child stranger([&] {
            constexpr uid_t nobody = 65534;
            if (::setresgid(nobody, nobody, nobody) != 0 || ::setresuid(nobody, nobody, nobody) != 0)
                return 90;
            for (const auto& file : files)
                for (const int how : {O_RDONLY, O_RDWR})
                    if (::open(file.c_str(), how | O_CLOEXEC) >= 0 || errno != EACCES)
                        return 91;
            int count = 0;
            auto** devices = ibv_get_device_list(&count);
            return devices == nullptr || count == 0 || ibv_open_device(devices[0]) == nullptr ? 0 : 92;
        });
        EXPECT_EQ(stranger.wait(), 0) << (open_folders ? "with open folders" : "");
    }
    std::filesystem::permissions(root(), std::filesystem::perms::owner_all);
}

} // namespace
