// SPDX-License-Identifier: BSD-3-Clause
// Input that a driver refuses: missing handles, unknown bits, objects beyond a limit.
#include "tests/lab/hca/verbs_node.hpp"
#include "tests/support/test_lab.hpp"

namespace {

using namespace testing_support;
using input_test = test_lab;

constexpr std::uint32_t unknown_bit = 1U << 30;

// errno of a create call that must fail; 0 if the call succeeds.
template <typename Make>
int refusal(Make&& make) {
    errno = 0;
    return make() == nullptr ? errno : 0;
}

TEST_F(input_test, handles_that_are_not_there) {
    node here;
    ibv_qp_init_attr plain{};
    plain.qp_type = IBV_QPT_RC;
    plain.cap = {1, 1, 1, 1, 0};
    plain.send_cq = here.cq.get();
    EXPECT_EQ(refusal([&] { return ibv_create_qp(here.pd.get(), &plain); }), EINVAL) << "no receive queue";
    plain.send_cq = nullptr;
    plain.recv_cq = here.cq.get();
    EXPECT_EQ(refusal([&] { return ibv_create_qp(here.pd.get(), &plain); }), EINVAL) << "no send queue";
    ibv_qp_init_attr_ex extended{};
    extended.qp_type = IBV_QPT_RC;
    extended.cap = plain.cap;
    extended.send_cq = extended.recv_cq = here.cq.get();
    extended.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    EXPECT_EQ(refusal([&] { return ibv_create_qp_ex(here.context.get(), &extended); }), EINVAL)
        << "no domain";
    extended.comp_mask = IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    extended.pd = here.pd.get();
    EXPECT_EQ(refusal([&] { return ibv_create_qp_ex(here.context.get(), &extended); }), EINVAL)
        << "not said to be there";
    ibv_srq_init_attr_ex srq{};
    srq.attr = {16, 1, 0};
    srq.comp_mask = IBV_SRQ_INIT_ATTR_TYPE;
    srq.srq_type = IBV_SRQT_BASIC;
    EXPECT_EQ(refusal([&] { return ibv_create_srq_ex(here.context.get(), &srq); }), EINVAL);
    qp_options how;
    how.type = IBV_QPT_UD;
    const auto datagrams = here.make_qp(how);
    connect(datagrams.get(), here.address_of(datagrams.get()), {});
    EXPECT_EQ(request(IBV_WR_SEND).from(here.entry(0, 8)).post(datagrams.get()), EINVAL)
        << "without an address";
}

TEST_F(input_test, objects_of_another_context) {
    node one, other;
    ibv_qp_init_attr wanted{};
    wanted.qp_type = IBV_QPT_RC;
    wanted.cap = {1, 1, 1, 1, 0};
    for (const bool send : {true, false}) {
        wanted.send_cq = (send ? other : one).cq.get();
        wanted.recv_cq = (send ? one : other).cq.get();
        errno = 0;
        EXPECT_EQ(ibv_create_qp(one.pd.get(), &wanted), nullptr);
        EXPECT_EQ(errno, EINVAL);
    }
    ibv_srq_init_attr queue{};
    queue.attr.max_wr = queue.attr.max_sge = 1;
    const srq_handle foreign(ibv_create_srq(other.pd.get(), &queue));
    ASSERT_TRUE(foreign);
    wanted.send_cq = wanted.recv_cq = one.cq.get();
    wanted.srq = foreign.get();
    errno = 0;
    EXPECT_EQ(ibv_create_qp(one.pd.get(), &wanted), nullptr);
    EXPECT_EQ(errno, EINVAL);
}

TEST_F(input_test, unknown_bits) {
    node here;
    ibv_cq_init_attr_ex cq{};
    cq.cqe = 16;
    cq.comp_mask = unknown_bit;
    EXPECT_EQ(refusal([&] { return ibv_create_cq_ex(here.context.get(), &cq); }), EINVAL);
    ibv_qp_init_attr_ex qp{};
    qp.qp_type = IBV_QPT_RC;
    qp.cap = {1, 1, 1, 1, 0};
    qp.send_cq = qp.recv_cq = here.cq.get();
    qp.pd = here.pd.get();
    qp.comp_mask = IBV_QP_INIT_ATTR_PD | unknown_bit;
    EXPECT_EQ(refusal([&] { return ibv_create_qp_ex(here.context.get(), &qp); }), EOPNOTSUPP);
    ibv_srq_init_attr_ex srq{};
    srq.attr = {16, 1, 0};
    srq.pd = here.pd.get();
    srq.srq_type = IBV_SRQT_BASIC;
    srq.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | unknown_bit;
    EXPECT_EQ(refusal([&] { return ibv_create_srq_ex(here.context.get(), &srq); }), EOPNOTSUPP);
    ibv_query_device_ex_input question{};
    question.comp_mask = unknown_bit;
    ibv_device_attr_ex answer{};
    EXPECT_EQ(ibv_query_device_ex(here.context.get(), &question, &answer), EINVAL);
}

TEST_F(input_test, unknown_bits_of_a_change) {
    node here;
    const auto qp = here.make_qp();
    ibv_qp_attr values{};
    values.qp_state = IBV_QPS_INIT;
    values.port_num = 1;
    const int to_init_mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    EXPECT_EQ(ibv_modify_qp(qp.get(), &values, to_init_mask | static_cast<int>(unknown_bit)), EINVAL);
    EXPECT_EQ(state_of(qp.get()), IBV_QPS_RESET);
    ASSERT_EQ(ibv_modify_qp(qp.get(), &values, to_init_mask), 0);
    for (const auto state : {IBV_QPS_ERR, IBV_QPS_RESET}) {
        values.qp_state = state;
        EXPECT_EQ(ibv_modify_qp(qp.get(), &values, IBV_QP_STATE | static_cast<int>(unknown_bit)), EINVAL);
        EXPECT_EQ(state_of(qp.get()), IBV_QPS_INIT);
    }
    ibv_srq_init_attr wanted{};
    wanted.attr = {16, 1, 0};
    const srq_handle srq(ibv_create_srq(here.pd.get(), &wanted));
    ibv_srq_attr limit{};
    limit.srq_limit = 3;
    EXPECT_EQ(ibv_modify_srq(srq.get(), &limit, IBV_SRQ_LIMIT | 4), EINVAL);
    EXPECT_EQ(ibv_modify_srq(srq.get(), &limit, 4), EINVAL);
    ASSERT_EQ(ibv_query_srq(srq.get(), &limit), 0);
    EXPECT_EQ(limit.srq_limit, 0U) << "nothing was changed";
    limit.srq_limit = 17;
    EXPECT_EQ(ibv_modify_srq(srq.get(), &limit, IBV_SRQ_LIMIT), EINVAL) << "more than there can be";
    EXPECT_EQ(ibv_modify_srq(srq.get(), &limit, IBV_SRQ_MAX_WR), EOPNOTSUPP);
}

TEST_F(input_test, more_receives_than_a_shared_queue_holds) {
    node here;
    ibv_srq_init_attr wanted{};
    wanted.attr = {2, 1, 0};
    const srq_handle srq(ibv_create_srq(here.pd.get(), &wanted));
    ASSERT_TRUE(srq);
    ibv_recv_wr list[3]{};
    for (auto& each : list)
        each.next = &each == &list[2] ? nullptr : &each + 1;
    ibv_recv_wr* bad = nullptr;
    EXPECT_EQ(ibv_post_srq_recv(srq.get(), list, &bad), ENOMEM);
    EXPECT_EQ(bad, &list[2]) << "the two before it are posted";
    EXPECT_EQ(post_receive(srq.get(), {}), ENOMEM);
    EXPECT_EQ(post_receive(srq.get(), {here.entry(0, 8), here.entry(0, 8)}), EINVAL) << "one entry a receive";
}

TEST_F(input_test, domains_and_addresses_are_limited_as_reported) {
    node here;
    ibv_device_attr limits{};
    ASSERT_EQ(ibv_query_device(here.context.get(), &limits), 0);
    {
        std::vector<pd_handle> domains; // the node has one more
        while (domains.size() + 1 < static_cast<std::size_t>(limits.max_pd)) {
            domains.emplace_back(ibv_alloc_pd(here.context.get()));
            ASSERT_TRUE(domains.back());
        }
        EXPECT_EQ(refusal([&] { return ibv_alloc_pd(here.context.get()); }), ENOMEM);
        domains.pop_back();
        domains.emplace_back(ibv_alloc_pd(here.context.get()));
        EXPECT_TRUE(domains.back());
    }
    ibv_ah_attr where{};
    where.port_num = 1;
    std::vector<ah_handle> addresses;
    while (addresses.size() < static_cast<std::size_t>(limits.max_ah)) {
        addresses.emplace_back(ibv_create_ah(here.pd.get(), &where));
        ASSERT_TRUE(addresses.back());
    }
    EXPECT_EQ(refusal([&] { return ibv_create_ah(here.pd.get(), &where); }), ENOMEM);
    addresses.pop_back();
    addresses.emplace_back(ibv_create_ah(here.pd.get(), &where));
    EXPECT_TRUE(addresses.back());
}

TEST_F(input_test, a_device_is_what_the_description_says) {
    describe("vendor_id = 713\nvendor_part_id = 4123\n");
    const auto context = open_first();
    ibv_device_attr seen{};
    ASSERT_EQ(ibv_query_device(context.get(), &seen), 0);
    EXPECT_EQ(seen.vendor_id, 713U);
    EXPECT_EQ(seen.vendor_part_id, 4123U);
}

} // namespace
