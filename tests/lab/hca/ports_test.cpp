// SPDX-License-Identifier: BSD-3-Clause
// Ports whose link goes down and up.
#include "lab/hca/segment.hpp"
#include "lab/world/ports.hpp"
#include "tests/lab/hca/two_hosts.hpp"

namespace {

using namespace testing_support;
using ports_test = test_lab;
using ports_between_hosts = two_hosts;

constexpr std::chrono::milliseconds a_moment(50);
constexpr connect_options patient{.timeout = 19, .retries = 7}; // 17 s

void set_link(const std::filesystem::path& lab, bool up, unsigned port = 1) {
    const auto links = lab::port_states::open(lab);
    ASSERT_TRUE(links) << links.error().text;
    links->set(0, port, up);
    lab::hca::ring_all(lab / "hca");
}

ibv_port_state state_of_port(ibv_context* context, std::uint8_t port = 1) {
    ibv_port_attr values{};
    EXPECT_EQ(ibv_query_port(context, port, &values), 0);
    return values.state;
}

void expect_event(ibv_context* context, ibv_event_type type, int port = 1) {
    const auto event = next_whole_event(context);
    ASSERT_TRUE(event) << ibv_event_type_str(type);
    EXPECT_EQ(event->event_type, type);
    EXPECT_EQ(event->element.port_num, port);
}

TEST_F(ports_test, every_context_of_the_device_gets_the_event) {
    const auto first = open_first(), second = open_first();
    set_link(lab(), false);
    for (auto* each : {first.get(), second.get()}) {
        expect_event(each, IBV_EVENT_PORT_ERR);
        EXPECT_EQ(state_of_port(each), IBV_PORT_DOWN);
    }
    const auto third = open_first();
    set_link(lab(), true);
    for (auto* each : {first.get(), second.get(), third.get()}) {
        expect_event(each, IBV_EVENT_PORT_ACTIVE);
        EXPECT_EQ(state_of_port(each), IBV_PORT_ACTIVE);
        EXPECT_EQ(next_event(each, a_moment), std::nullopt) << "once, and of what came after its opening";
    }
}

TEST_F(ports_test, a_link_that_is_back_before_a_check_raises_both_events) {
    const auto opened = open_first();
    const auto links = lab::port_states::open(lab());
    ASSERT_TRUE(links) << links.error().text;
    for (const bool up : {false, true})
        links->set(0, 1, up);
    links->set(0, 1, true); // no change
    lab::hca::ring_all(lab() / "hca");
    expect_event(opened.get(), IBV_EVENT_PORT_ERR);
    expect_event(opened.get(), IBV_EVENT_PORT_ACTIVE);
    EXPECT_EQ(next_event(opened.get(), a_moment), std::nullopt);
}

TEST_F(ports_test, the_other_port_and_the_other_device_are_unaffected) {
    describe("gaudis = 1\nhcas = 2\nports = 2\n");
    int count = 0;
    auto** list = ibv_get_device_list(&count);
    ASSERT_EQ(count, 2);
    const context_handle first(ibv_open_device(list[0])), second(ibv_open_device(list[1]));
    ibv_free_device_list(list);
    set_link(lab(), false, 2);
    expect_event(first.get(), IBV_EVENT_PORT_ERR, 2);
    EXPECT_EQ(state_of_port(first.get(), 1), IBV_PORT_ACTIVE);
    EXPECT_EQ(state_of_port(first.get(), 2), IBV_PORT_DOWN);
    EXPECT_EQ(state_of_port(second.get(), 2), IBV_PORT_ACTIVE);
    EXPECT_EQ(next_event(second.get(), a_moment), std::nullopt);
    two_nodes over_the_first_port;
    EXPECT_EQ(request(IBV_WR_RDMA_WRITE)
                  .from(over_the_first_port.left.entry(0, 8))
                  .at(over_the_first_port.right.address_of(over_the_first_port.b.get()).memory,
                      over_the_first_port.right.mr->rkey)
                  .post(over_the_first_port.a.get()),
              0);
    (void)over_the_first_port.left.expect_wc();
}

TEST_F(ports_test, a_port_described_as_down_comes_up_on_request) {
    describe("gaudis = 1\nport_up = no\n");
    two_nodes both;
    EXPECT_EQ(state_of_port(both.left.context.get()), IBV_PORT_DOWN);
    ASSERT_EQ(post_receive(both.b.get(), {both.right.entry(0, 8)}), 0);
    ASSERT_EQ(request(IBV_WR_SEND).from(both.left.entry(0, 8)).post(both.a.get()), 0);
    (void)both.left.expect_wc(IBV_WC_RETRY_EXC_ERR);
    set_link(lab(), true);
    EXPECT_EQ(lab::port_states::open(lab())->down(), 0U);
    expect_event(both.left.context.get(), IBV_EVENT_PORT_ACTIVE);
    const auto a = both.left.make_qp(), b = both.right.make_qp();
    connect(a.get(), both.left.address_of(a.get()), both.right.address_of(b.get()));
    connect(b.get(), both.right.address_of(b.get()), both.left.address_of(a.get()));
    ASSERT_EQ(post_receive(b.get(), {both.right.entry(0, 8)}), 0);
    ASSERT_EQ(request(IBV_WR_SEND).from(both.left.entry(0, 8)).post(a.get()), 0);
    (void)both.left.expect_wc();
}

// An operation and its length.
struct operation {
    ibv_wr_opcode opcode;
    std::size_t length;
};
class without_link : public test_lab, public ::testing::WithParamInterface<operation> {
protected:
    static int post(const two_nodes& both) {
        const auto [opcode, length] = GetParam();
        request made(opcode);
        made.from(both.left.entry(0, length));
        const auto there = both.right.address_of(both.b.get());
        if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
            made.atomic(there.memory, there.key, 1);
        else if (opcode != IBV_WR_SEND)
            made.at(there.memory, there.key);
        return made.post(both.a.get());
    }
};
INSTANTIATE_TEST_SUITE_P(operations, without_link,
                         ::testing::Values(operation{IBV_WR_RDMA_WRITE, 8},
                                           operation{IBV_WR_RDMA_WRITE, 60000}, operation{IBV_WR_SEND, 8},
                                           operation{IBV_WR_RDMA_READ, 8},
                                           operation{IBV_WR_ATOMIC_FETCH_AND_ADD, 8}));

// labels: no_tsan
TEST_P(without_link, a_request_waits_and_goes_on) {
    two_nodes both({}, patient, patient);
    ASSERT_EQ(post_receive(both.b.get(), {both.right.entry(0, 60000)}), 0);
    ASSERT_EQ(request(IBV_WR_RDMA_WRITE) // the next request uses the lookups that this one cached
                  .from(both.left.entry(0, 8))
                  .at(both.right.address_of(both.b.get()).memory, both.right.mr->rkey)
                  .post(both.a.get()),
              0);
    (void)both.left.expect_wc();
    std::fill(both.left.memory.begin(), both.left.memory.end(), 3);
    std::fill(both.right.memory.begin(), both.right.memory.end(), 5);
    set_link(lab(), false);
    ASSERT_EQ(post(both), 0);
    EXPECT_FALSE(both.left.wait(a_moment));
    EXPECT_EQ(both.left.memory[7], 3);
    EXPECT_EQ(both.right.memory[7], 5);
    set_link(lab(), true);
    (void)both.left.expect_wc();
    const auto [opcode, length] = GetParam();
    if (opcode == IBV_WR_SEND) // eight bytes come with the completion
        (void)both.right.expect_wc();
    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
        EXPECT_EQ(both.right.memory[0], 6);
    else
        EXPECT_EQ(both.left.memory[length - 1], both.right.memory[length - 1]);
}

TEST_P(without_link, a_request_fails_when_its_retries_are_used_up) {
    two_nodes both;
    ASSERT_EQ(post_receive(both.b.get(), {both.right.entry(0, 60000)}), 0);
    set_link(lab(), false);
    ASSERT_EQ(post(both), 0);
    (void)both.left.expect_wc(IBV_WC_RETRY_EXC_ERR);
    EXPECT_TRUE(reaches(both.a.get(), IBV_QPS_ERR));
    both.right.expect_none();
    EXPECT_EQ(state_of(both.b.get()), IBV_QPS_RTS) << "nothing ever reached it";
}

TEST_F(ports_test, an_unreliable_request_is_lost_silently) {
    two_nodes both({.type = IBV_QPT_UC});
    ASSERT_EQ(post_receive(both.b.get(), {both.right.entry(0, 8)}), 0);
    set_link(lab(), false);
    ASSERT_EQ(request(IBV_WR_SEND).from(both.left.entry(0, 8)).post(both.a.get()), 0);
    (void)both.left.expect_wc();
    set_link(lab(), true);
    EXPECT_FALSE(both.right.wait(a_moment));
}

TEST_F(ports_test, a_datagram_is_lost_silently) {
    node left, right;
    const auto a = left.make_qp({.type = IBV_QPT_UD}), b = right.make_qp({.type = IBV_QPT_UD});
    connect(a.get(), left.address_of(a.get()), {});
    connect(b.get(), right.address_of(b.get()), {});
    ASSERT_EQ(post_receive(b.get(), {right.entry(0, 100)}), 0);
    ibv_ah_attr where{};
    where.dlid = right.address_of(b.get()).lid;
    where.port_num = 1;
    const ah_handle to(ibv_create_ah(left.pd.get(), &where));
    ASSERT_TRUE(to);
    const auto send = [&](std::uint64_t id) {
        request made(IBV_WR_SEND, id);
        made.from(left.entry(0, 8));
        made.wr.wr.ud = {to.get(), b->qp_num, 0x1111};
        EXPECT_EQ(made.post(a.get()), 0);
        EXPECT_EQ(left.expect_wc().wr_id, id);
    };
    set_link(lab(), false);
    send(1);
    set_link(lab(), true);
    right.expect_none();
    send(2);
    (void)right.expect_wc();
}

TEST_F(ports_between_hosts, requests_wait_for_the_link_of_either_side) {
    EXPECT_EQ(on_both(
                  [&](node& here, ibv_qp* qp) {
                      for (const auto* host : {"local", "remote"}) {
                          set_link(root() / host, false);
                          EXPECT_EQ(request(IBV_WR_SEND).from(here.entry(0, 8)).post(qp), 0);
                          EXPECT_FALSE(here.wait(a_moment)) << host;
                          set_link(root() / host, true);
                          (void)here.expect_wc();
                      }
                      say_done();
                  },
                  [&](node& there, ibv_qp* qp) {
                      for (std::uint64_t i = 0; i < 2; ++i)
                          EXPECT_EQ(post_receive(qp, {there.entry(0, 8)}, i), 0);
                      for (std::uint64_t i = 0; i < 2; ++i)
                          EXPECT_EQ(there.expect_wc().wr_id, i);
                      stay();
                  },
                  {}, patient),
              0);
}

TEST_F(ports_between_hosts, requests_fail_when_their_retries_are_used_up) {
    for (const auto* host : {"local", "remote"}) {
        say(0);
        EXPECT_EQ(on_both(
                      [&](node& here, ibv_qp* qp) {
                          set_link(root() / host, false);
                          EXPECT_EQ(request(IBV_WR_SEND).from(here.entry(0, 8)).post(qp), 0);
                          (void)here.expect_wc(IBV_WC_RETRY_EXC_ERR);
                          set_link(root() / host, true);
                          say_done();
                      },
                      [&](node& there, ibv_qp* qp) {
                          EXPECT_EQ(post_receive(qp, {there.entry(0, 8)}), 0);
                          stay();
                          there.expect_none();
                      }),
                  0)
            << host;
    }
}

// The link goes down and up while many messages, some of them large, are in flight.
class pulled_between_hosts : public two_hosts,
                             public ::testing::WithParamInterface<std::tuple<const char*, ibv_qp_type>> {
protected:
    // The last `rounds` messages are sent with the link up, so that they arrive even at a slow receiver.
    static constexpr std::uint32_t rounds = 12, each = 10, pulled = rounds * each, total = pulled + rounds;
    // More than come with a completion: all messages have one buffer, which the poller would write then.
    static constexpr std::size_t small = 64, large = 60000;
    static constexpr qp_options many(ibv_qp_type type) { return {.type = type, .depth = 256}; }

    void send(const node& here, ibv_qp* qp, const char* host) {
        for (std::uint32_t i = 0; i < total; ++i) {
            if (i < pulled && i % each == each / 2)
                set_link(root() / host, false);
            EXPECT_EQ(request(IBV_WR_SEND_WITH_IMM, i)
                          .from(here.entry(0, i % 3 == 0 ? small : large))
                          .immediate(i)
                          .post(qp),
                      0);
            if (i < pulled && i % each == each - 1) {
                std::this_thread::sleep_for(std::chrono::milliseconds(3));
                set_link(root() / host, true);
            }
        }
        for (std::uint32_t i = 0; i < total; ++i)
            EXPECT_EQ(here.expect_wc().wr_id, i);
    }
};
TEST_P(pulled_between_hosts, messages_come_in_order_and_once) {
    const auto [host, type] = GetParam();
    EXPECT_EQ(on_both(
                  [&, host = host](node& here, ibv_qp* qp) {
                      EXPECT_TRUE(is_said(1));
                      send(here, qp, host);
                      say(2);
                  },
                  [&, type = type](node& there, ibv_qp* qp) {
                      for (std::uint64_t i = 0; i < total; ++i)
                          EXPECT_EQ(post_receive(qp, {there.entry(0, large)}, i), 0);
                      say(1);
                      EXPECT_TRUE(is_said(2));
                      // UC may lose messages, but not the last ones: the last message ends the reception.
                      std::uint32_t next = 0, count = 0;
                      while (next < total) {
                          const auto done = there.wait();
                          ASSERT_TRUE(done) << "neither message " << next << " nor a later one arrived";
                          EXPECT_EQ(done->status, IBV_WC_SUCCESS);
                          EXPECT_GE(done->imm_data, next) << "again";
                          next = done->imm_data + 1;
                          ++count;
                      }
                      EXPECT_EQ(next, total);
                      EXPECT_FALSE(there.wait(a_moment)) << "a message arrived after the last one";
                      if (type == IBV_QPT_RC)
                          EXPECT_EQ(count, total);
                      else
                          EXPECT_GE(count, rounds);
                  },
                  many(type), patient),
              0);
}
INSTANTIATE_TEST_SUITE_P(cable, pulled_between_hosts,
                         ::testing::Combine(::testing::Values("local", "remote"),
                                            ::testing::Values(IBV_QPT_RC, IBV_QPT_UC)),
                         [](const auto& made) {
                             return std::string(std::get<0>(made.param)) +
                                    (std::get<1>(made.param) == IBV_QPT_RC ? "_RC" : "_UC");
                         });

} // namespace
