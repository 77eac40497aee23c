// SPDX-License-Identifier: BSD-3-Clause
// Two hosts: two labs with different addresses, connected by TCP.
#include "tests/lab/hca/two_hosts.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/gaudi_device.hpp"
#include "tests/support/soon_true.hpp"

#include <arpa/inet.h>
#include <csignal>
#include <fstream>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

using namespace testing_support;

using wire_test = two_hosts;

// The TCP port of the process that has this queue pair.
std::uint16_t port_of(const address& of) {
    return static_cast<std::uint16_t>(47000 + (of.qp_number >> 14));
}

void fill(node& where, unsigned seed) {
    for (std::size_t i = 0; i < where.memory.size(); ++i)
        where.memory[i] = static_cast<unsigned char>(i * 7 + seed);
}

TEST_F(wire_test, send_receive_write_read_and_atomics) {
    const auto local_side = [&](node& here, ibv_qp* qp) {
        fill(here, 1);
        EXPECT_EQ(request(IBV_WR_SEND).from(here.entry(0, 10000)).from(here.entry(20000, 1)).post(qp), 0);
        (void)here.expect_wc();
        EXPECT_EQ(request(IBV_WR_RDMA_WRITE, 1, 0)
                      .from(here.entry(0, 30000))
                      .at(remote().memory + 20000, remote().key)
                      .post(qp),
                  0);
        EXPECT_EQ(request(IBV_WR_RDMA_READ)
                      .from(here.entry(30000, 30000))
                      .at(remote().memory + 20000, remote().key)
                      .post(qp),
                  0);
        EXPECT_EQ(here.expect_wc().byte_len, 30000U);
        EXPECT_EQ(std::memcmp(&here.memory[0], &here.memory[30000], 30000), 0);
        for (int i = 0; i < 3; ++i)
            EXPECT_EQ(request(IBV_WR_ATOMIC_FETCH_AND_ADD)
                          .from(here.entry(64, 8))
                          .atomic(remote().memory + 64000, remote().key, 5)
                          .post(qp),
                      0);
        for (int i = 0; i < 3; ++i)
            EXPECT_EQ(here.expect_wc().opcode, IBV_WC_FETCH_ADD);
        std::uint64_t before = 0;
        std::memcpy(&before, &here.memory[64], 8);
        EXPECT_EQ(before, 10U);
        request last(IBV_WR_RDMA_WRITE_WITH_IMM);
        EXPECT_EQ(last.from(here.entry(0, 4)).at(remote().memory, remote().key).immediate(99).post(qp), 0);
        (void)here.expect_wc();
    };
    const auto remote_side = [&](node& there, ibv_qp* qp) {
        EXPECT_EQ(post_receive(qp, {there.entry(0, 5000), there.entry(6000, 6000)}), 0);
        EXPECT_EQ(there.expect_wc().byte_len, 10001U);
        for (std::size_t i = 0; i < 5000; ++i)
            EXPECT_EQ(there.memory[i], static_cast<unsigned char>(i * 7 + 1));
        EXPECT_EQ(there.memory[6000 + 5000], static_cast<unsigned char>(20000 * 7 + 1));
        EXPECT_EQ(post_receive(qp, {}), 0);
        const auto end = there.expect_wc();
        EXPECT_EQ(end.imm_data, 99U);
        EXPECT_EQ(end.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
        std::uint64_t sum = 0;
        std::memcpy(&sum, &there.memory[64000], 8);
        EXPECT_EQ(sum, 15U);
    };
    EXPECT_EQ(on_both(local_side, remote_side), 0);
}

TEST_F(wire_test, a_send_finds_its_receive_later) {
    connect_options how;
    how.rnr_timer = 12;
    const auto local_side = [&](node& here, ibv_qp* qp) {
        for (std::uint64_t i = 0; i < 20; ++i)
            EXPECT_EQ(request(IBV_WR_SEND, i).from(here.entry(i * 8, 8)).post(qp), 0);
        for (std::uint64_t i = 0; i < 20; ++i)
            EXPECT_EQ(here.expect_wc().wr_id, i);
    };
    const auto remote_side = [&](node& there, ibv_qp* qp) {
        for (std::uint64_t i = 0; i < 20; ++i) { // one at a time: the other sends are retried (RNR)
            ::usleep(2000);
            EXPECT_EQ(post_receive(qp, {there.entry(0, 8)}, i), 0);
            EXPECT_EQ(there.expect_wc().wr_id, i);
        }
    };
    EXPECT_EQ(on_both(local_side, remote_side, {}, how), 0);
}

TEST_F(wire_test, receiver_never_ready) {
    connect_options how;
    how.rnr_retry = 3;
    EXPECT_EQ(on_both(
                  [&](node& here, ibv_qp* qp) {
                      EXPECT_EQ(request(IBV_WR_SEND).from(here.entry(0, 8)).post(qp), 0);
                      (void)here.expect_wc(IBV_WC_RNR_RETRY_EXC_ERR);
                      EXPECT_TRUE(reaches(qp, IBV_QPS_ERR));
                      say_done();
                  },
                  [&](node&, ibv_qp*) { stay(); }, {}, how),
              0);
}

TEST_F(wire_test, errors_are_reported_on_both_sides) {
    EXPECT_EQ(on_both(
                  [&](node& here, ibv_qp* qp) {
                      EXPECT_EQ(request(IBV_WR_RDMA_WRITE, 1)
                                    .from(here.entry(0, 60000))
                                    .at(remote().memory, remote().key + 256)
                                    .post(qp),
                                0);
                      EXPECT_EQ(request(IBV_WR_RDMA_WRITE, 2)
                                    .from(here.entry(0, 8))
                                    .at(remote().memory, remote().key)
                                    .post(qp),
                                0);
                      EXPECT_EQ(here.expect_wc(IBV_WC_REM_ACCESS_ERR).wr_id, 1U);
                      EXPECT_EQ(here.expect_wc(IBV_WC_WR_FLUSH_ERR).wr_id, 2U);
                  },
                  [](node& there, ibv_qp* qp) {
                      EXPECT_EQ(next_event(there.context.get()), IBV_EVENT_QP_ACCESS_ERR);
                      EXPECT_TRUE(reaches(qp, IBV_QPS_ERR));
                  }),
              0);
}

// UCX fences by a read of 8 bytes at address 0 with key 0xff, which mlx5 answers and other NICs refuse.
TEST_F(wire_test, a_fence_of_ucx_is_answered_where_the_quirk_is_chosen) {
    for (const bool chosen : {true, false}) {
        SCOPED_TRACE(chosen);
        say(0);
        if (chosen)
            ::setenv("GAUDI_LAB_HCA_QUIRKS", "ucx-fence", 1);
        else
            ::unsetenv("GAUDI_LAB_HCA_QUIRKS");
        const auto local_side = [&](node& here, ibv_qp* qp) {
            const auto read = [&](unsigned length, std::uint64_t at, std::uint32_t key) {
                EXPECT_EQ(request(IBV_WR_RDMA_READ).from(here.entry(0, length)).at(at, key).post(qp), 0);
            };
            here.memory[0] = 77;
            read(8, 0, 0xff);
            (void)here.expect_wc(chosen ? IBV_WC_SUCCESS : IBV_WC_REM_ACCESS_ERR);
            EXPECT_EQ(here.memory[0], 77) << "nothing is read";
            if (chosen) { // no other read of that kind
                read(16, 0, 0xff);
                (void)here.expect_wc(IBV_WC_REM_ACCESS_ERR);
            }
            EXPECT_TRUE(reaches(qp, IBV_QPS_ERR));
            say_done();
        };
        EXPECT_EQ(on_both(local_side, [&](node&, ibv_qp*) { stay(); }), 0);
    }
    ::unsetenv("GAUDI_LAB_HCA_QUIRKS");
}

TEST_F(wire_test, receive_too_small) {
    EXPECT_EQ(on_both(
                  [&](node& here, ibv_qp* qp) {
                      EXPECT_EQ(request(IBV_WR_SEND).from(here.entry(0, 100)).post(qp), 0);
                      (void)here.expect_wc(IBV_WC_REM_INV_REQ_ERR);
                  },
                  [](node& there, ibv_qp* qp) {
                      EXPECT_EQ(post_receive(qp, {there.entry(0, 99)}), 0);
                      (void)there.expect_wc(IBV_WC_LOC_LEN_ERR);
                  }),
              0);
}

TEST_F(wire_test, a_killed_host_is_a_retry_exceeded) {
    EXPECT_EQ(on_both(
                  [&](node& here, ibv_qp* qp) {
                      EXPECT_EQ(request(IBV_WR_RDMA_WRITE)
                                    .from(here.entry(0, 8))
                                    .at(remote().memory, remote().key)
                                    .post(qp),
                                0);
                      (void)here.expect_wc();
                      peer->kill_it();
                      siginfo_t ended{};
                      ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(peer->pid()), &ended, WEXITED | WNOWAIT),
                                0);
                      const auto begin = std::chrono::steady_clock::now();
                      EXPECT_EQ(request(IBV_WR_RDMA_WRITE)
                                    .from(here.entry(0, 8))
                                    .at(remote().memory, remote().key)
                                    .post(qp),
                                0);
                      (void)here.expect_wc(IBV_WC_RETRY_EXC_ERR);
                      EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
                  },
                  [](node&, ibv_qp*) { ::pause(); }),
              128 + SIGKILL);
}

TEST_F(wire_test, a_host_that_is_not_there) {
    become_host("local", "127.0.0.1");
    node here;
    const auto qp = here.make_qp();
    auto unknown_peer = here.address_of(qp.get());
    unknown_peer.gid.raw[15] = 77; // 127.0.0.77
    connect_options how;
    how.timeout = 12; // 17 ms
    how.retries = 3;
    connect(qp.get(), here.address_of(qp.get()), unknown_peer, how);
    ASSERT_EQ(request(IBV_WR_SEND).from(here.entry(0, 8)).post(qp.get()), 0);
    (void)here.expect_wc(IBV_WC_RETRY_EXC_ERR);
}

TEST_F(wire_test, an_unreliable_connection_loses_in_silence) {
    qp_options how;
    how.type = IBV_QPT_UC;
    gate ready, over;
    EXPECT_EQ(on_both(
                  [&](node& here, ibv_qp* qp) {
                      // A send without a receive and a write with a wrong key: both complete with success.
                      here.memory[0] = 1;
                      EXPECT_EQ(request(IBV_WR_SEND, 1).from(here.entry(0, 8)).post(qp), 0);
                      EXPECT_EQ(here.expect_wc().wr_id, 1U);
                      EXPECT_EQ(request(IBV_WR_RDMA_WRITE, 2)
                                    .from(here.entry(0, 8))
                                    .at(shared[1].memory, shared[1].key + 1)
                                    .post(qp),
                                0);
                      EXPECT_EQ(here.expect_wc().wr_id, 2U);
                      ready.open();
                      ASSERT_TRUE(over.wait()); // the peer has posted a receive
                      here.memory[0] = 2;
                      EXPECT_EQ(request(IBV_WR_RDMA_WRITE, 3)
                                    .from(here.entry(0, 8))
                                    .at(shared[1].memory + 64, shared[1].key)
                                    .post(qp),
                                0);
                      EXPECT_EQ(request(IBV_WR_SEND, 4).from(here.entry(0, 8)).post(qp), 0);
                      EXPECT_EQ(here.expect_wc().wr_id, 3U);
                      EXPECT_EQ(here.expect_wc().wr_id, 4U);
                  },
                  [&](node& there, ibv_qp* qp) {
                      ASSERT_TRUE(ready.wait());
                      there.expect_none();
                      EXPECT_EQ(post_receive(qp, {there.entry(0, 8)}), 0);
                      over.open();
                      EXPECT_EQ(there.expect_wc().byte_len, 8U);
                      EXPECT_EQ(there.memory[0], 2);
                      EXPECT_EQ(there.memory[64], 2) << "the write before it";
                  },
                  how),
              0);
}

TEST_F(wire_test, datagrams) {
    qp_options how;
    how.type = IBV_QPT_UD;
    EXPECT_EQ(on_both(
                  [&](node& here, ibv_qp* qp) {
                      ibv_ah_attr where{};
                      where.is_global = 1;
                      where.grh.dgid = remote().gid;
                      where.port_num = 1;
                      const ah_handle ah(ibv_create_ah(here.pd.get(), &where));
                      here.memory[9] = 55;
                      ASSERT_EQ(post_receive(qp, {here.entry(1000, 200)}, 5), 0);
                      bool answered = false;
                      for (int i = 0; i < 2000 && !answered; ++i) { // datagrams may get lost
                          request send(IBV_WR_SEND, 1);
                          send.from(here.entry(0, 10));
                          send.wr.wr.ud = {ah.get(), remote().qp_number, 0x1111};
                          EXPECT_EQ(send.post(qp), 0);
                          ::usleep(10000);
                          ibv_wc done[8];
                          const int count = ibv_poll_cq(here.cq.get(), 8, done);
                          for (int k = 0; k < count; ++k)
                              answered |= done[k].wr_id == 5;
                      }
                      EXPECT_TRUE(answered);
                      say_done();
                  },
                  [&](node& there, ibv_qp* qp) {
                      ASSERT_EQ(post_receive(qp, {there.entry(0, 200)}, 5), 0);
                      auto got = there.expect_wc();
                      EXPECT_EQ(got.byte_len, 50U);
                      EXPECT_TRUE(got.wc_flags & IBV_WC_GRH);
                      EXPECT_EQ(there.memory[49], 55);
                      const ah_handle back(ibv_create_ah_from_wc(
                          there.pd.get(), &got, reinterpret_cast<ibv_grh*>(there.memory.data()), 1));
                      ASSERT_TRUE(back);
                      request reply(IBV_WR_SEND);
                      reply.from(there.entry(0, 4));
                      reply.wr.wr.ud = {back.get(), got.src_qp, 0x1111};
                      EXPECT_EQ(reply.post(qp), 0);
                      (void)there.expect_wc();
                      stay(); // until the reply has arrived
                  },
                  how),
              0);
}

// The NIC closes TCP connections that violate the protocol; its peers are not affected.
// labels: waits
TEST_F(wire_test, garbage_and_silence_at_the_port) {
    EXPECT_EQ(on_both(
                  [&](node& here, ibv_qp* qp) {
                      const auto dial = [&] {
                          const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
                          sockaddr_in to{};
                          to.sin_family = AF_INET;
                          to.sin_addr.s_addr = ::inet_addr("127.0.0.2");
                          to.sin_port = htons(port_of(remote()));
                          EXPECT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
                          const timeval limit{10, 0};
                          ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
                          return fd;
                      };
                      const auto is_cut_off = [](int fd) {
                          char byte;
                          const bool cut = ::recv(fd, &byte, 1, 0) <= 0 && errno != EAGAIN;
                          ::close(fd);
                          return cut;
                      };
                      std::vector<int> silent;
                      for (int i = 0; i < 10; ++i)
                          silent.push_back(dial());
                      const int rude = dial();
                      char rubbish[256];
                      std::memset(rubbish, 0x5a, sizeof(rubbish));
                      EXPECT_EQ(::send(rude, rubbish, sizeof(rubbish), MSG_NOSIGNAL), 256);
                      EXPECT_TRUE(is_cut_off(rude));
                      const auto hello = [](std::uint32_t version) {
                          return std::array<std::uint32_t, 16>{
                              0x76686361, 1, 0, 0, version, 0, 0, 0, 0, 0, 47500, ::inet_addr("127.0.0.1")};
                      };
                      const auto own = hello(1);
                      // A hello of another version, and an incomplete hello.
                      const int newer = dial();
                      EXPECT_EQ(::send(newer, hello(999).data(), 64, MSG_NOSIGNAL), 64);
                      EXPECT_TRUE(is_cut_off(newer));
                      silent.push_back(dial());
                      EXPECT_EQ(::send(silent.back(), own.data(), 20, MSG_NOSIGNAL), 20);
                      // A valid hello, then half a frame and a disconnect.
                      const int gone = dial();
                      EXPECT_EQ(::send(gone, own.data(), 64, MSG_NOSIGNAL), 64);
                      EXPECT_EQ(::send(gone, own.data(), 30, MSG_NOSIGNAL), 30);
                      ::close(gone);
                      // A valid hello, then an invalid frame.
                      const int liar = dial();
                      EXPECT_EQ(::send(liar, own.data(), 64, MSG_NOSIGNAL), 64);
                      std::uint32_t nonsense[16] = {0x76686361, 77};
                      EXPECT_EQ(::send(liar, nonsense, sizeof(nonsense), MSG_NOSIGNAL), 64);
                      EXPECT_TRUE(is_cut_off(liar));
                      EXPECT_EQ(request(IBV_WR_RDMA_WRITE)
                                    .from(here.entry(0, 8))
                                    .at(remote().memory, remote().key)
                                    .post(qp),
                                0);
                      (void)here.expect_wc();
                      for (const int fd : silent)
                          EXPECT_TRUE(is_cut_off(fd)) << "after some seconds of silence";
                      EXPECT_EQ(request(IBV_WR_SEND).from(here.entry(0, 8)).post(qp), 0);
                      (void)here.expect_wc();
                  },
                  [](node& there, ibv_qp* qp) {
                      EXPECT_EQ(post_receive(qp, {there.entry(0, 8)}), 0);
                      (void)there.expect_wc();
                  }),
              0);
}

// Whether a TCP connection waits for the listener at this address and port to accept it.
bool awaits_accept(const char* ip, unsigned port) {
    const auto listener = fmt::format(" {:08X}:{:04X} 00000000:0000 0A ", ::inet_addr(ip), port);
    std::ifstream table("/proc/self/net/tcp");
    for (std::string line; std::getline(table, line);)
        if (const auto found = line.find(listener); found != line.npos) // then the queues: sent:received
            return std::stoul(line.substr(found + listener.size() + 9, 8), nullptr, 16) != 0;
    return false;
}

TEST_F(wire_test, a_host_without_descriptors_answers_when_it_has_some) {
    EXPECT_EQ(on_both(
                  [&](node& here, ibv_qp* qp) {
                      ASSERT_TRUE(is_said(1));
                      ASSERT_EQ(request(IBV_WR_RDMA_WRITE)
                                    .from(here.entry(0, 8))
                                    .at(remote().memory, remote().key)
                                    .post(qp),
                                0);
                      EXPECT_TRUE(soon_true([&] { return awaits_accept("127.0.0.2", port_of(remote())); }))
                          << "the request made no connection";
                      // A longer wait would only give a wrong completion more time to arrive.
                      EXPECT_FALSE(here.wait(std::chrono::milliseconds(100)))
                          << "completed without a connection";
                      say(2);
                      (void)here.expect_wc();
                      say(3);
                  },
                  [&](node&, ibv_qp* qp) {
                      {
                          const descriptors_left none(0);
                          say(1);
                          EXPECT_TRUE(is_said(2));
                      }
                      EXPECT_TRUE(is_said(3));
                      EXPECT_EQ(state_of(qp), IBV_QPS_RTS);
                  }),
              0);
}

TEST_F(wire_test, an_address_of_another_lab_is_refused_with_a_reason) {
    become_host("local", "203.0.113.7");
    int count = 0;
    auto** list = ibv_get_device_list(&count);
    ASSERT_EQ(count, 1);
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(ibv_open_device(list[0]), nullptr);
    EXPECT_NE(
        ::testing::internal::GetCapturedStderr().find("vhca0 of lab 'local' cannot listen on 203.0.113.7"),
        std::string::npos);
    ibv_free_device_list(list);
}

// One message from Gaudi memory, a null region and host memory: every byte arrives.
TEST_F(wire_test, memory_of_all_kinds_in_one_message) {
    EXPECT_EQ(on_both(
                  [&](node& here, ibv_qp* qp) {
                      gaudi_device gaudi;
                      const auto at = gaudi.memory(dram_page);
                      const int fd = gaudi.dmabuf(at, dram_page);
                      const mr_handle mr(ibv_reg_dmabuf_mr(here.pd.get(), 0, 1 << 20, at, fd, all_access));
                      const mr_handle null(ibv_alloc_null_mr(here.pd.get()));
                      ASSERT_TRUE(mr && null) << std::strerror(errno);
                      ::close(fd);
                      host_memory pattern(gaudi, 4096);
                      for (std::size_t i = 0; i < 1000; ++i)
                          pattern.bytes()[i] = static_cast<unsigned char>(i * 5 + 1);
                      ASSERT_EQ(copy(gaudi, pattern.address, at, 1000, 0), 0);
                      for (std::size_t i = 0; i < 50; ++i)
                          here.memory[i] = static_cast<unsigned char>(200 + i);
                      ASSERT_EQ(request(IBV_WR_SEND)
                                    .from({at, 1000, mr->lkey})
                                    .from({0, 30, null->lkey})
                                    .from(here.entry(0, 50))
                                    .post(qp),
                                0);
                      (void)here.expect_wc();
                  },
                  [&](node& there, ibv_qp* qp) {
                      std::memset(&there.memory[4000], 0xee, 2000);
                      EXPECT_EQ(post_receive(qp, {there.entry(4000, 2000)}), 0);
                      EXPECT_EQ(there.expect_wc().byte_len, 1080U);
                      for (std::size_t i = 0; i < 1000; ++i)
                          EXPECT_EQ(there.memory[4000 + i], static_cast<unsigned char>(i * 5 + 1));
                      for (std::size_t i = 0; i < 30; ++i)
                          EXPECT_EQ(there.memory[5000 + i], 0);
                      for (std::size_t i = 0; i < 50; ++i)
                          EXPECT_EQ(there.memory[5030 + i], static_cast<unsigned char>(200 + i));
                      EXPECT_EQ(there.memory[5080], 0xee);
                  }),
              0);
}

// The requester counts the bytes of its requests that are in local Gaudi memory.
TEST_F(wire_test, bytes_of_device_memory_are_counted) {
    const auto report = root() / "report";
    const auto local_side = [&](node& here, ibv_qp* qp) {
        ::setenv("GAUDI_LAB_HCA_REPORT", report.c_str(), 1); // after fork: the child writes no report
        gaudi_device gaudi;
        const auto at = gaudi.memory(dram_page);
        const int fd = gaudi.dmabuf(at, dram_page);
        const mr_handle mr(ibv_reg_dmabuf_mr(here.pd.get(), 0, 1 << 20, at, fd, all_access));
        ASSERT_TRUE(mr) << std::strerror(errno);
        const auto device = [&](std::uint32_t length) { return ibv_sge{at, length, mr->lkey}; };
        request write(IBV_WR_RDMA_WRITE), read(IBV_WR_RDMA_READ), send(IBV_WR_SEND),
            add(IBV_WR_ATOMIC_FETCH_AND_ADD), plain(IBV_WR_RDMA_WRITE);
        write.from(device(1000)).from(here.entry(0, 50)).at(remote().memory, remote().key);
        read.from(device(300)).at(remote().memory, remote().key);
        send.from(device(20));
        add.from(device(8)).atomic(remote().memory, remote().key, 1);
        plain.from(here.entry(0, 60)).at(remote().memory, remote().key);
        for (auto* each : {&write, &read, &send, &add, &plain}) {
            EXPECT_EQ(each->post(qp), 0);
            (void)here.expect_wc();
        }
        ::close(fd);
        say_done();
    };
    const auto remote_side = [&](node& there, ibv_qp* qp) {
        // Not where the peer writes: the poller copies so few bytes (scatter to CQE).
        EXPECT_EQ(post_receive(qp, {there.entry(4096, 20)}), 0);
        (void)there.expect_wc();
        stay();
    };
    EXPECT_EQ(on_both(local_side, remote_side), 0);
    ::unsetenv("GAUDI_LAB_HCA_REPORT");
    const auto text = text_of(report);
    EXPECT_HAS(text, R"("messages":5)");
    EXPECT_HAS(text, R"("bytes_tcp":1438)");
    EXPECT_HAS(text, R"("bytes_from_dmabuf":1020)");
    EXPECT_HAS(text, R"("bytes_to_dmabuf":308)");
}

// Megabytes in both directions at the same time; every byte is checked.
// labels: slow
TEST_F(wire_test, campaign_in_both_directions) {
    constexpr std::size_t message = 60000;
    constexpr int rounds = 2000;
    const auto play = [&](node& here, ibv_qp* qp, unsigned me) {
        const auto content = [](unsigned who, int number, std::size_t i) {
            return static_cast<unsigned char>(who * 91 + static_cast<unsigned>(number) * 13 + i);
        };
        int sent = 0, received = 0, completed = 0;
        EXPECT_EQ(post_receive(qp, {here.entry(0, 65536)}, 100), 0);
        std::vector<unsigned char> outgoing(message);
        const mr_handle mr(ibv_reg_mr(here.pd.get(), outgoing.data(), outgoing.size(), all_access));
        while (received < rounds || completed < rounds) {
            if (sent == completed && sent < rounds) {
                const auto length = 1 + static_cast<std::size_t>(sent) * 977 % message;
                for (std::size_t i = 0; i < length; ++i)
                    outgoing[i] = content(me, sent, i);
                EXPECT_EQ(request(IBV_WR_SEND, 1)
                              .from({reinterpret_cast<std::uint64_t>(outgoing.data()),
                                     static_cast<std::uint32_t>(length), mr->lkey})
                              .post(qp),
                          0);
                ++sent;
            }
            const auto done = here.wait();
            ASSERT_TRUE(done);
            ASSERT_EQ(done->status, IBV_WC_SUCCESS) << ibv_wc_status_str(done->status);
            if (done->wr_id == 1) {
                ++completed;
                continue;
            }
            ASSERT_EQ(done->byte_len, 1 + static_cast<std::size_t>(received) * 977 % message);
            for (std::size_t i = 0; i < done->byte_len; ++i)
                ASSERT_EQ(here.memory[i], content(1 - me, received, i))
                    << "message " << received << ", byte " << i;
            ++received;
            EXPECT_EQ(post_receive(qp, {here.entry(0, 65536)}, 100), 0);
        }
        // Each host stays until the other has its last completion.
        std::atomic_ref(shared[2].psn).fetch_add(1);
        EXPECT_TRUE(is_said(2));
    };
    EXPECT_EQ(on_both([&](node& here, ibv_qp* qp) { play(here, qp, 0); },
                      [&](node& there, ibv_qp* qp) { play(there, qp, 1); }),
              0);
}

} // namespace
