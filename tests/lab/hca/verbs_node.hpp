// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <memory>
#include <optional>
#include <poll.h>
#include <sys/resource.h>
#include <thread>
#include <vector>

extern "C" {
int gaudi_lab_hca_arm_faults(const char* script);
unsigned long gaudi_lab_hca_faults_fired(void);
}

namespace testing_support {

template <auto Destroy>
struct destroyer {
    template <typename T>
    void operator()(T* handle) const {
        EXPECT_EQ(Destroy(handle), 0) << std::strerror(errno);
    }
};
using context_handle = std::unique_ptr<ibv_context, destroyer<ibv_close_device>>;
using pd_handle = std::unique_ptr<ibv_pd, destroyer<ibv_dealloc_pd>>;
using mr_handle = std::unique_ptr<ibv_mr, destroyer<ibv_dereg_mr>>;
using cq_handle = std::unique_ptr<ibv_cq, destroyer<ibv_destroy_cq>>;
using channel_handle = std::unique_ptr<ibv_comp_channel, destroyer<ibv_destroy_comp_channel>>;
using srq_handle = std::unique_ptr<ibv_srq, destroyer<ibv_destroy_srq>>;
using qp_handle = std::unique_ptr<ibv_qp, destroyer<ibv_destroy_qp>>;
using ah_handle = std::unique_ptr<ibv_ah, destroyer<ibv_destroy_ah>>;

constexpr int all_access =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

constexpr int local_access = IBV_ACCESS_LOCAL_WRITE; // int: the macros of verbs.h mix enumerations

// What a peer needs to connect. Trivially copyable, for use in shared memory.
struct address {
    std::uint32_t qp_number = 0;
    std::uint16_t lid = 0;
    std::uint32_t psn = 0;
    std::uint64_t memory = 0;
    std::uint32_t key = 0;
    ibv_gid gid{};
    bool by_gid = false;
};

struct connect_options {
    std::uint8_t timeout = 10; // 4 ms
    std::uint8_t retries = 1;
    std::uint8_t rnr_retry = 7;
    std::uint8_t rnr_timer = 12; // 0.64 ms
    unsigned access = all_access;
    std::uint8_t rd_atomic = 8;
};

struct qp_options {
    ibv_qp_type type = IBV_QPT_RC;
    std::uint32_t depth = 64;
    std::uint32_t entries = 4;
    std::uint32_t inline_bytes = 128;
    bool signal_all = false;
    ibv_srq* srq = nullptr;
    ibv_cq* cq = nullptr;
};

inline context_handle open_first() {
    int count = 0;
    auto** list = ibv_get_device_list(&count);
    EXPECT_NE(list, nullptr);
    context_handle opened(count > 0 ? ibv_open_device(list[0]) : nullptr);
    ibv_free_device_list(list);
    return opened;
}

// An opened NIC with a protection domain, a completion queue and a registered buffer.
class node {
public:
    explicit node(std::size_t bytes = 65536, int depth = 256, bool with_channel = false)
        : context(open_first()), pd(ibv_alloc_pd(context.get())),
          channel(with_channel ? ibv_create_comp_channel(context.get()) : nullptr),
          cq(ibv_create_cq(context.get(), depth, nullptr, channel.get(), 0)), memory(bytes),
          mr(ibv_reg_mr(pd.get(), memory.data(), memory.size(), all_access)) {
        EXPECT_TRUE(pd && cq && mr) << std::strerror(errno);
    }

    [[nodiscard]] qp_handle make_qp(const qp_options& how = {}) const {
        ibv_qp_init_attr wanted{};
        wanted.qp_type = how.type;
        wanted.send_cq = wanted.recv_cq = how.cq != nullptr ? how.cq : cq.get();
        wanted.srq = how.srq;
        wanted.sq_sig_all = how.signal_all;
        wanted.cap = {how.depth, how.depth, how.entries, how.entries, how.inline_bytes};
        qp_handle made(ibv_create_qp(pd.get(), &wanted));
        EXPECT_TRUE(made) << std::strerror(errno);
        return made;
    }

    [[nodiscard]] address address_of(const ibv_qp* qp) const {
        ibv_port_attr port{};
        EXPECT_EQ(ibv_query_port(context.get(), 1, &port), 0);
        address made;
        made.qp_number = qp->qp_num;
        made.lid = port.lid;
        made.psn = qp->qp_num & 0xffff;
        made.memory = reinterpret_cast<std::uint64_t>(memory.data());
        made.key = mr->rkey;
        made.by_gid = port.link_layer == IBV_LINK_LAYER_ETHERNET;
        EXPECT_EQ(ibv_query_gid(context.get(), 1, 0, &made.gid), 0);
        return made;
    }

    // The next completion; nullopt if none arrives within the limit.
    [[nodiscard]] std::optional<ibv_wc> wait(std::chrono::milliseconds limit = std::chrono::seconds(20),
                                             ibv_cq* from = nullptr) const {
        const auto end = std::chrono::steady_clock::now() + limit;
        ibv_wc done{};
        do {
            const int count = ibv_poll_cq(from != nullptr ? from : cq.get(), 1, &done);
            EXPECT_GE(count, 0);
            if (count == 1)
                return done;
            std::this_thread::yield();
        } while (std::chrono::steady_clock::now() < end);
        return std::nullopt;
    }
    [[nodiscard]] ibv_wc expect_wc(ibv_wc_status status = IBV_WC_SUCCESS) const {
        const auto done = wait();
        EXPECT_TRUE(done) << "no completion";
        if (!done)
            return ibv_wc{};
        EXPECT_EQ(done->status, status)
            << ibv_wc_status_str(done->status) << " (wr_id " << done->wr_id << ")";
        return *done;
    }
    void expect_none() const {
        ibv_wc done{};
        EXPECT_EQ(ibv_poll_cq(cq.get(), 1, &done), 0)
            << "wr_id " << done.wr_id << ": " << ibv_wc_status_str(done.status);
    }

    [[nodiscard]] ibv_sge entry(std::size_t offset, std::size_t length) const {
        return {reinterpret_cast<std::uint64_t>(memory.data() + offset), static_cast<std::uint32_t>(length),
                mr->lkey};
    }

    context_handle context;
    pd_handle pd;
    channel_handle channel;
    cq_handle cq;
    std::vector<unsigned char> memory;
    mr_handle mr;
};

inline int to_init(ibv_qp* qp, unsigned access = all_access, std::uint32_t qkey = 0x1111) {
    ibv_qp_attr values{};
    values.qp_state = IBV_QPS_INIT;
    values.port_num = 1;
    values.qp_access_flags = access;
    values.qkey = qkey;
    return ibv_modify_qp(qp, &values,
                         IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                             (qp->qp_type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS));
}

inline int to_rtr(ibv_qp* qp, const address& peer, const connect_options& how = {}) {
    ibv_qp_attr values{};
    values.qp_state = IBV_QPS_RTR;
    int mask = IBV_QP_STATE;
    if (qp->qp_type != IBV_QPT_UD) {
        values.path_mtu = IBV_MTU_1024;
        values.dest_qp_num = peer.qp_number;
        values.rq_psn = peer.psn;
        values.ah_attr.dlid = peer.lid;
        values.ah_attr.port_num = 1;
        values.ah_attr.is_global = peer.by_gid;
        values.ah_attr.grh.dgid = peer.gid;
        values.ah_attr.grh.hop_limit = 64;
        mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    }
    if (qp->qp_type == IBV_QPT_RC) {
        values.max_dest_rd_atomic = how.rd_atomic;
        values.min_rnr_timer = how.rnr_timer;
        mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    }
    return ibv_modify_qp(qp, &values, mask);
}

inline int to_rts(ibv_qp* qp, std::uint32_t psn, const connect_options& how = {}) {
    ibv_qp_attr values{};
    values.qp_state = IBV_QPS_RTS;
    values.sq_psn = psn;
    int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
    if (qp->qp_type == IBV_QPT_RC) {
        values.timeout = how.timeout;
        values.retry_cnt = how.retries;
        values.rnr_retry = how.rnr_retry;
        values.max_rd_atomic = how.rd_atomic;
        mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    }
    return ibv_modify_qp(qp, &values, mask);
}

inline void connect(ibv_qp* qp, const address& own, const address& peer, const connect_options& how = {}) {
    EXPECT_EQ(to_init(qp, how.access), 0) << std::strerror(errno);
    EXPECT_EQ(to_rtr(qp, peer, how), 0) << std::strerror(errno);
    EXPECT_EQ(to_rts(qp, own.psn, how), 0) << std::strerror(errno);
}

inline int to_state(ibv_qp* qp, ibv_qp_state state) {
    ibv_qp_attr values{};
    values.qp_state = state;
    return ibv_modify_qp(qp, &values, IBV_QP_STATE);
}

inline ibv_qp_state state_of(ibv_qp* qp) {
    ibv_qp_attr values{};
    ibv_qp_init_attr init{};
    EXPECT_EQ(ibv_query_qp(qp, &values, IBV_QP_STATE, &init), 0);
    return values.qp_state;
}

// Waits until the queue pair has this state: an error of the peer arrives asynchronously.
inline bool reaches(ibv_qp* qp, ibv_qp_state state) {
    for (int i = 0; i < 10000; ++i) {
        if (state_of(qp) == state)
            return true;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
}

// A send work request; each member function fills one part.
struct request {
    ibv_send_wr wr{};
    std::vector<ibv_sge> entries;

    explicit request(ibv_wr_opcode opcode, std::uint64_t id = 1, unsigned flags = IBV_SEND_SIGNALED) {
        wr.opcode = opcode;
        wr.wr_id = id;
        wr.send_flags = flags;
    }
    request& from(const ibv_sge& entry) {
        entries.push_back(entry);
        return *this;
    }
    request& at(std::uint64_t address, std::uint32_t key) {
        wr.wr.rdma.remote_addr = address;
        wr.wr.rdma.rkey = key;
        return *this;
    }
    request& atomic(std::uint64_t address, std::uint32_t key, std::uint64_t compare_add,
                    std::uint64_t swap = 0) {
        wr.wr.atomic.remote_addr = address;
        wr.wr.atomic.rkey = key;
        wr.wr.atomic.compare_add = compare_add;
        wr.wr.atomic.swap = swap;
        return *this;
    }
    request& immediate(std::uint32_t value) {
        wr.imm_data = value;
        return *this;
    }
    int post(ibv_qp* qp) {
        wr.sg_list = entries.data();
        wr.num_sge = static_cast<int>(entries.size());
        ibv_send_wr* bad = nullptr;
        return ibv_post_send(qp, &wr, &bad);
    }
};

inline int post_receive(ibv_qp* qp, std::vector<ibv_sge> entries, std::uint64_t id = 100) {
    ibv_recv_wr wr{};
    ibv_recv_wr* bad = nullptr;
    wr.wr_id = id;
    wr.sg_list = entries.data();
    wr.num_sge = static_cast<int>(entries.size());
    return ibv_post_recv(qp, &wr, &bad);
}

inline int post_receive(ibv_srq* srq, std::vector<ibv_sge> entries, std::uint64_t id = 100) {
    ibv_recv_wr wr{};
    ibv_recv_wr* bad = nullptr;
    wr.wr_id = id;
    wr.sg_list = entries.data();
    wr.num_sge = static_cast<int>(entries.size());
    return ibv_post_srq_recv(srq, &wr, &bad);
}

// Two nodes in this process with connected queue pairs.
struct two_nodes {
    explicit two_nodes(const qp_options& how = {}, const connect_options& left_how = {},
                       const connect_options& right_how = {}, bool with_channels = false)
        : left(65536, depth_for(how), with_channels), right(65536, depth_for(how), with_channels),
          a(left.make_qp(how)), b(right.make_qp(how)) {
        connect(a.get(), left.address_of(a.get()), right.address_of(b.get()), left_how);
        connect(b.get(), right.address_of(b.get()), left.address_of(a.get()), right_how);
    }
    static int depth_for(const qp_options& how) { return std::max(256, static_cast<int>(how.depth)); }
    node left, right;
    qp_handle a, b;
};

// Gets and acknowledges the next asynchronous event; nullopt if none arrives within the limit.
inline std::optional<ibv_async_event>
next_whole_event(ibv_context* context, std::chrono::milliseconds limit = std::chrono::seconds(10)) {
    pollfd waiting{context->async_fd, POLLIN, 0};
    if (::poll(&waiting, 1, static_cast<int>(limit.count())) != 1)
        return std::nullopt;
    ibv_async_event event{};
    EXPECT_EQ(ibv_get_async_event(context, &event), 0);
    ibv_ack_async_event(&event);
    return event;
}
inline std::optional<ibv_event_type> next_event(ibv_context* context,
                                                std::chrono::milliseconds limit = std::chrono::seconds(10)) {
    const auto event = next_whole_event(context, limit);
    return event ? std::optional(event->event_type) : std::nullopt;
}

// The RLIMIT_NOFILE that allows `room` more descriptors. The limit applies to descriptor numbers, and
// inherited descriptors may have any number.
inline rlim_t limit_leaving(rlim_t room) {
    rlim_t limit = 0;
    for (rlim_t free = 0;; ++limit) {
        const bool taken = ::fcntl(static_cast<int>(limit), F_GETFD) != -1;
        if (!taken && free++ == room)
            return limit;
    }
}

// Allows only `room` more descriptors during its lifetime.
class descriptors_left {
public:
    explicit descriptors_left(rlim_t room) {
        ::getrlimit(RLIMIT_NOFILE, &before_);
        auto tight = before_;
        tight.rlim_cur = limit_leaving(room);
        EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &tight), 0);
    }
    ~descriptors_left() { ::setrlimit(RLIMIT_NOFILE, &before_); }
    descriptors_left(const descriptors_left&) = delete;
    descriptors_left& operator=(const descriptors_left&) = delete;

private:
    rlimit before_{};
};

} // namespace testing_support
