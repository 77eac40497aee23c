// SPDX-License-Identifier: BSD-3-Clause
// Devices, limits, states and bad input: results of the driver.
#include "tests/lab/hca/verbs_node.hpp"
#include "tests/support/test_lab.hpp"

#include <fcntl.h>
#include <fstream>
#include <sys/mman.h>
#include <unistd.h>

namespace {

using namespace testing_support;
using objects_test = test_lab;

TEST_F(objects_test, devices_keep_their_address_and_follow_the_description) {
    describe("hcas = 3\n[hca 2]\nspeed_gbps = 100\nports = 2\nmtu = 1024\n");
    int count = 0;
    auto** first = ibv_get_device_list(&count);
    ASSERT_EQ(count, 3);
    auto* third = first[2];
    EXPECT_STREQ(ibv_get_device_name(third), "vhca2");
    EXPECT_EQ(first[3], nullptr);
    EXPECT_NE(ibv_get_device_guid(first[0]), ibv_get_device_guid(third));
    ibv_free_device_list(first);
    auto** again = ibv_get_device_list(nullptr);
    EXPECT_EQ(again[2], third);
    ibv_free_device_list(again);
    const context_handle context(ibv_open_device(third));
    ASSERT_TRUE(context);
    ibv_port_attr port{};
    ASSERT_EQ(ibv_query_port(context.get(), 2, &port), 0);
    EXPECT_EQ(port.active_mtu, IBV_MTU_1024);
    EXPECT_EQ(port.active_speed, 32);
    EXPECT_EQ(port.active_width, 2);
    EXPECT_EQ(port.state, IBV_PORT_ACTIVE);
    EXPECT_EQ(ibv_query_port(context.get(), 3, &port), EINVAL);
    EXPECT_EQ(ibv_query_port(context.get(), 0, &port), EINVAL);
    ibv_gid gid{};
    EXPECT_EQ(ibv_query_gid(context.get(), 1, 2, &gid), -1);
    EXPECT_EQ(errno, EINVAL);
    __be16 pkey = 0;
    EXPECT_EQ(ibv_query_pkey(context.get(), 1, 0, &pkey), 0);
    EXPECT_EQ(pkey, 0xffff);
    EXPECT_EQ(ibv_query_pkey(context.get(), 1, 1, &pkey), -1);
    ibv_gid_entry table[8];
    EXPECT_EQ(ibv_query_gid_table(context.get(), table, 8, 0), 2) << "one for each port";
}

TEST_F(objects_test, topology_is_found_in_sysfs) {
    describe("hcas = 1\n[hca 0]\nbus_id = 0000:5d:00.0\nnuma_node = 3\n");
    auto** list = ibv_get_device_list(nullptr);
    ASSERT_NE(list, nullptr);
    const std::filesystem::path path = list[0]->ibdev_path;
    ibv_free_device_list(list);
    EXPECT_EQ(std::filesystem::canonical(path / "device").filename(), "0000:5d:00.0");
    std::ifstream file(path / "device" / "numa_node");
    int node = -1;
    file >> node;
    EXPECT_EQ(node, 3);
}

TEST_F(objects_test, limits_are_reported_and_enforced) {
    describe("max_qp = 3\nmax_cq = 2\nmax_mr = 2\nmax_srq = 1\nmax_qp_wr = 100\nmax_sge = 5\nmax_inline = "
             "32\nmax_cqe = 1000\n");
    node here;
    ibv_device_attr limits{};
    ASSERT_EQ(ibv_query_device(here.context.get(), &limits), 0);
    EXPECT_EQ(limits.max_qp, 3);
    EXPECT_EQ(limits.max_qp_wr, 100);
    EXPECT_EQ(limits.max_sge, 5);
    qp_handle three[3];
    for (auto& qp : three) {
        qp = here.make_qp({IBV_QPT_RC, 100, 5, 32});
        ASSERT_TRUE(qp);
    }
    ibv_qp_init_attr wanted{};
    wanted.qp_type = IBV_QPT_RC;
    wanted.send_cq = wanted.recv_cq = here.cq.get();
    wanted.cap = {1, 1, 1, 1, 0};
    EXPECT_EQ(ibv_create_qp(here.pd.get(), &wanted), nullptr);
    EXPECT_EQ(errno, ENOMEM);
    three[0].reset();
    for (const ibv_qp_cap& cap :
         {ibv_qp_cap{101, 1, 1, 1, 0}, ibv_qp_cap{1, 101, 1, 1, 0}, ibv_qp_cap{1, 1, 6, 1, 0},
          ibv_qp_cap{1, 1, 1, 6, 0}, ibv_qp_cap{1, 1, 1, 1, 33}}) {
        wanted.cap = cap;
        EXPECT_EQ(ibv_create_qp(here.pd.get(), &wanted), nullptr);
        EXPECT_EQ(errno, EINVAL);
    }
    const cq_handle second(ibv_create_cq(here.context.get(), 1000, nullptr, nullptr, 0));
    EXPECT_TRUE(second);
    EXPECT_EQ(ibv_create_cq(here.context.get(), 1, nullptr, nullptr, 0), nullptr);
    EXPECT_EQ(errno, ENOMEM);
    EXPECT_EQ(ibv_create_cq(here.context.get(), 1001, nullptr, nullptr, 0), nullptr);
    EXPECT_EQ(errno, EINVAL);
    const mr_handle another(ibv_reg_mr(here.pd.get(), here.memory.data(), 10, 0));
    EXPECT_TRUE(another);
    EXPECT_EQ(ibv_reg_mr(here.pd.get(), here.memory.data(), 10, 0), nullptr);
    EXPECT_EQ(errno, ENOMEM);
    ibv_srq_init_attr srq_wanted{};
    srq_wanted.attr = {101, 1, 0};
    EXPECT_EQ(ibv_create_srq(here.pd.get(), &srq_wanted), nullptr);
    EXPECT_EQ(errno, EINVAL);
    srq_wanted.attr = {100, 5, 0};
    const srq_handle srq(ibv_create_srq(here.pd.get(), &srq_wanted));
    EXPECT_TRUE(srq);
    EXPECT_EQ(ibv_create_srq(here.pd.get(), &srq_wanted), nullptr);
    EXPECT_EQ(errno, ENOMEM);
}

TEST_F(objects_test, what_is_in_use_is_not_destroyed) {
    node here;
    auto qp = here.make_qp();
    EXPECT_EQ(ibv_destroy_cq(here.cq.get()), EBUSY);
    EXPECT_EQ(ibv_dealloc_pd(here.pd.get()), EBUSY);
    qp.reset();
    here.mr.reset();
    EXPECT_EQ(ibv_dealloc_pd(here.pd.get()), 0);
    (void)here.pd.release();
    auto* channel = ibv_create_comp_channel(here.context.get());
    auto* cq = ibv_create_cq(here.context.get(), 1, nullptr, channel, 0);
    EXPECT_EQ(ibv_destroy_comp_channel(channel), EBUSY);
    EXPECT_EQ(ibv_destroy_cq(cq), 0);
    EXPECT_EQ(ibv_destroy_comp_channel(channel), 0);
}

TEST_F(objects_test, states_in_order_only) {
    node here;
    const auto qp = here.make_qp();
    const auto own = here.address_of(qp.get());
    EXPECT_EQ(to_rtr(qp.get(), own), EINVAL);
    EXPECT_EQ(to_rts(qp.get(), 0), EINVAL);
    EXPECT_EQ(state_of(qp.get()), IBV_QPS_RESET);
    EXPECT_EQ(request(IBV_WR_SEND).post(qp.get()), EINVAL);
    EXPECT_EQ(post_receive(qp.get(), {}), EINVAL);
    ASSERT_EQ(to_init(qp.get()), 0);
    EXPECT_EQ(post_receive(qp.get(), {}), 0) << "receives may be posted from INIT on";
    EXPECT_EQ(request(IBV_WR_SEND).post(qp.get()), EINVAL);
    EXPECT_EQ(to_rts(qp.get(), 0), EINVAL);
    ASSERT_EQ(to_rtr(qp.get(), own), 0);
    EXPECT_EQ(request(IBV_WR_SEND).post(qp.get()), EINVAL);
    EXPECT_EQ(to_init(qp.get()), EINVAL);
    ASSERT_EQ(to_rts(qp.get(), own.psn), 0);
    EXPECT_EQ(to_state(qp.get(), IBV_QPS_SQE), EINVAL);
    EXPECT_EQ(to_state(qp.get(), static_cast<ibv_qp_state>(7)), EINVAL);
    ASSERT_EQ(to_state(qp.get(), IBV_QPS_ERR), 0);
    EXPECT_EQ(to_state(qp.get(), IBV_QPS_RTS), EINVAL);
    EXPECT_EQ(to_state(qp.get(), IBV_QPS_RESET), 0);
    ibv_qp_attr values{};
    ibv_qp_init_attr init{};
    ASSERT_EQ(ibv_query_qp(qp.get(), &values, 0, &init), 0);
    EXPECT_EQ(values.dest_qp_num, 0U) << "forgotten";
    EXPECT_EQ(init.cap.max_send_wr, 64U);
}

TEST_F(objects_test, attributes_out_of_range) {
    node here;
    const auto qp = here.make_qp();
    ibv_qp_attr values{};
    values.qp_state = IBV_QPS_INIT;
    const int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    values.port_num = 2;
    EXPECT_EQ(ibv_modify_qp(qp.get(), &values, mask), EINVAL) << "one port";
    values.port_num = 1;
    values.pkey_index = 1;
    EXPECT_EQ(ibv_modify_qp(qp.get(), &values, mask), EINVAL) << "one key";
    ASSERT_EQ(to_init(qp.get()), 0);
    const auto own = here.address_of(qp.get());
    connect_options greedy;
    greedy.rd_atomic = 17;
    EXPECT_EQ(to_rtr(qp.get(), own, greedy), EINVAL) << "16 reads";
    auto remote_side = own;
    remote_side.qp_number = 0x1000000;
    EXPECT_EQ(to_rtr(qp.get(), remote_side), EINVAL) << "24 bits";
    ASSERT_EQ(to_rtr(qp.get(), own), 0);
    EXPECT_EQ(to_rts(qp.get(), 0, greedy), EINVAL);
    connect_options stubborn;
    stubborn.retries = 8;
    EXPECT_EQ(to_rts(qp.get(), 0, stubborn), EINVAL) << "3 bits";
}

TEST_F(objects_test, posting_what_cannot_be) {
    qp_options how;
    how.depth = 2;
    how.entries = 2;
    how.inline_bytes = 16;
    two_nodes both(how);
    request many(IBV_WR_SEND);
    for (int i = 0; i < 3; ++i)
        many.from(both.left.entry(0, 8));
    EXPECT_EQ(many.post(both.a.get()), EINVAL);
    EXPECT_EQ(request(IBV_WR_SEND, 1, IBV_SEND_INLINE).from(both.left.entry(0, 17)).post(both.a.get()),
              EINVAL);
    EXPECT_EQ(request(IBV_WR_SEND_WITH_INV).from(both.left.entry(0, 8)).post(both.a.get()), EINVAL);
    EXPECT_EQ(request(IBV_WR_LOCAL_INV).post(both.a.get()), EINVAL);
    EXPECT_EQ(
        post_receive(both.a.get(), {both.left.entry(0, 8), both.left.entry(0, 8), both.left.entry(0, 8)}),
        EINVAL);
    EXPECT_EQ(post_receive(both.a.get(), {}), 0);
    EXPECT_EQ(post_receive(both.a.get(), {}), 0);
    EXPECT_EQ(post_receive(both.a.get(), {}), ENOMEM);
    // Requests before the failing one are posted; bad_wr points to the failing one.
    ibv_send_wr list[3]{};
    ibv_send_wr* bad = nullptr;
    auto entry = both.left.entry(0, 8);
    for (auto& wr : list) {
        wr.opcode = IBV_WR_SEND;
        wr.sg_list = &entry;
        wr.num_sge = 1;
        wr.next = &wr == &list[2] ? nullptr : &wr + 1;
    }
    EXPECT_EQ(ibv_post_send(both.a.get(), list, &bad), ENOMEM);
    EXPECT_EQ(bad, &list[2]);
}

TEST_F(objects_test, regions_that_cannot_be) {
    node here;
    const auto refused = [&](void* at, std::size_t length, int access) {
        errno = 0;
        const mr_handle made(ibv_reg_mr_iova2(here.pd.get(), at, length, reinterpret_cast<std::uint64_t>(at),
                                              static_cast<unsigned>(access)));
        return made ? 0 : errno;
    };
    auto* bytes = here.memory.data();
    EXPECT_EQ(refused(bytes, 0, 0), EINVAL);
    EXPECT_EQ(refused(bytes, 100, IBV_ACCESS_REMOTE_WRITE), EINVAL) << "remote write needs local write";
    EXPECT_EQ(refused(bytes, 100, IBV_ACCESS_REMOTE_ATOMIC), EINVAL);
    EXPECT_EQ(refused(bytes, 100, IBV_ACCESS_MW_BIND), EOPNOTSUPP);
    EXPECT_EQ(refused(bytes, 100, IBV_ACCESS_ON_DEMAND), EOPNOTSUPP);
    EXPECT_EQ(refused(bytes, 100, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING), 0)
        << "optional: may be ignored";
    EXPECT_EQ(refused(reinterpret_cast<void*>(4096), 4096, 0), EFAULT);
    void* hole = ::mmap(nullptr, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ::munmap(static_cast<char*>(hole) + 4096, 4096);
    EXPECT_EQ(refused(hole, 3 * 4096, 0), EFAULT);
    EXPECT_EQ(refused(hole, 4096, 0), 0);
    ::mprotect(hole, 4096, PROT_READ);
    EXPECT_EQ(refused(hole, 4096, 0), 0) << "reading is all it asks";
    EXPECT_EQ(refused(hole, 4096, IBV_ACCESS_LOCAL_WRITE), EFAULT);
    ::munmap(hole, 4096);
    ::munmap(static_cast<char*>(hole) + 8192, 4096);
}

TEST_F(objects_test, what_the_device_does_not_do) {
    node here;
    EXPECT_EQ(ibv_alloc_mw(here.pd.get(), IBV_MW_TYPE_1), nullptr);
    EXPECT_EQ(errno, EOPNOTSUPP);
    ibv_xrcd_init_attr xrcd{};
    EXPECT_EQ(ibv_open_xrcd(here.context.get(), &xrcd), nullptr);
    EXPECT_EQ(errno, EOPNOTSUPP);
    const auto qp = here.make_qp();
    ibv_gid gid{};
    EXPECT_EQ(ibv_attach_mcast(qp.get(), &gid, 0), EOPNOTSUPP);
    ibv_device_attr_ex attributes{};
    ASSERT_EQ(ibv_query_device_ex(here.context.get(), nullptr, &attributes), 0);
    EXPECT_EQ(attributes.odp_caps.general_caps, 0U);
    EXPECT_EQ(attributes.orig_attr.max_mw, 0);
    ibv_qp_init_attr raw{};
    raw.qp_type = IBV_QPT_RAW_PACKET;
    raw.send_cq = raw.recv_cq = here.cq.get();
    EXPECT_EQ(ibv_create_qp(here.pd.get(), &raw), nullptr);
    EXPECT_EQ(errno, EOPNOTSUPP);
    EXPECT_EQ(ibv_alloc_dm(here.context.get(), nullptr), nullptr);
}

TEST_F(objects_test, null_region_discards_writes_and_reads_zeros) {
    two_nodes both;
    auto* null = ibv_alloc_null_mr(both.right.pd.get());
    ASSERT_NE(null, nullptr);
    const mr_handle owned(null);
    ASSERT_EQ(post_receive(both.b.get(), {{0, 10, null->lkey}, both.right.entry(0, 10)}), 0);
    both.left.memory[9] = 1;
    both.left.memory[10] = 2;
    ASSERT_EQ(request(IBV_WR_SEND).from(both.left.entry(0, 20)).post(both.a.get()), 0);
    EXPECT_EQ(both.right.expect_wc().byte_len, 20U);
    EXPECT_EQ(both.right.memory[0], 2) << "the first ten bytes went nowhere";
    (void)both.left.expect_wc();
    const mr_handle source(ibv_alloc_null_mr(both.left.pd.get()));
    ASSERT_TRUE(source);
    std::memset(both.right.memory.data(), 7, 40);
    const auto remote = both.right.address_of(both.b.get());
    ASSERT_EQ(request(IBV_WR_RDMA_WRITE)
                  .from(both.left.entry(9, 1))
                  .from({0, 20, source->lkey})
                  .at(remote.memory, remote.key)
                  .post(both.a.get()),
              0);
    (void)both.left.expect_wc();
    EXPECT_EQ(both.right.memory[0], 1);
    EXPECT_EQ(std::count(both.right.memory.begin() + 1, both.right.memory.begin() + 21, 0), 20);
    EXPECT_EQ(both.right.memory[21], 7);
}

TEST_F(objects_test, resizing_a_completion_queue_keeps_what_is_in_it) {
    two_nodes both;
    const auto remote = both.right.address_of(both.b.get());
    for (std::uint64_t i = 0; i < 10; ++i)
        ASSERT_EQ(request(IBV_WR_RDMA_WRITE, i)
                      .from(both.left.entry(0, 8))
                      .at(remote.memory, remote.key)
                      .post(both.a.get()),
                  0);
    EXPECT_EQ(ibv_resize_cq(both.left.cq.get(), 8), EINVAL) << "ten lie there";
    ASSERT_EQ(ibv_resize_cq(both.left.cq.get(), 1000), 0);
    EXPECT_GE(both.left.cq->cqe, 1000);
    for (std::uint64_t i = 0; i < 10; ++i)
        EXPECT_EQ(both.left.expect_wc().wr_id, i);
    EXPECT_EQ(ibv_resize_cq(both.left.cq.get(), 0), EINVAL);
}

TEST_F(objects_test, nothing_is_left_in_the_lab) {
    {
        two_nodes both({}, {}, {}, true);
        EXPECT_FALSE(std::filesystem::is_empty(lab() / "hca"));
    }
    EXPECT_TRUE(std::filesystem::is_empty(lab() / "hca"));
}

} // namespace
