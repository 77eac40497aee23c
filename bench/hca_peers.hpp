// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "bench/table.hpp"
#include "lab/dmabuf.h"
#include "tests/support/hlthunk_functions.h"

#include <infiniband/verbs.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace bench {

constexpr std::size_t kib = 1024, mib = 1024 * kib;
constexpr std::uint64_t dram_page = 768 * mib;
constexpr int all_access =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

[[noreturn]] inline void fail(const char* what) {
    std::perror(what);
    std::exit(1);
}

template <typename T>
T* checked(T* handle, const char* what) {
    if (handle == nullptr)
        fail(what);
    return handle;
}

// Memory that the two processes of a measurement share.
struct exchange {
    struct address {
        std::uint32_t qp_number, key;
        std::uint16_t lid;
        ibv_gid gid;
        std::uint64_t memory;
    } of[2];
    std::atomic<int> arrived[2];
    std::atomic<bool> stop;
    alignas(64) std::atomic<std::uint32_t> line; // of the raw ping-pong
    struct alignas(4096) {
        std::atomic<std::uint32_t> line;
    } lines[2]; // of the ping-pong with one line per direction
    double figure;
};

inline exchange& new_exchange() {
    void* at = ::mmap(nullptr, sizeof(exchange), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return *new (at) exchange{};
}

inline void pin(std::size_t core) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    ::sched_setaffinity(0, sizeof(set), &set); // best effort: it makes the figures steadier
}

// A queue pair with everything that it needs.
class end_point {
public:
    end_point() {
        auto** list = checked(ibv_get_device_list(nullptr), "ibv_get_device_list");
        context = checked(ibv_open_device(list[0]), "ibv_open_device");
        ibv_free_device_list(list);
        pd = checked(ibv_alloc_pd(context), "ibv_alloc_pd");
        cq = checked(ibv_create_cq(context, 4096, nullptr, nullptr, 0), "ibv_create_cq");
        ibv_qp_init_attr wanted{};
        wanted.qp_type = IBV_QPT_RC;
        wanted.send_cq = wanted.recv_cq = cq;
        wanted.cap = {1024, 1024, 1, 1, 64};
        qp = checked(ibv_create_qp(pd, &wanted), "ibv_create_qp");
    }
    ~end_point() {
        ibv_destroy_qp(qp);
        ibv_destroy_cq(cq);
        if (mr != nullptr)
            ibv_dereg_mr(mr);
        ibv_dealloc_pd(pd);
        ibv_close_device(context);
    }
    end_point(const end_point&) = delete;
    end_point& operator=(const end_point&) = delete;

    void use(void* memory, std::size_t bytes) {
        mr = checked(ibv_reg_mr(pd, memory, bytes, all_access), "ibv_reg_mr");
        at = reinterpret_cast<std::uint64_t>(memory);
    }
    void use_dmabuf(int fd, std::uint64_t address, std::size_t bytes) {
        mr = checked(ibv_reg_dmabuf_mr(pd, 0, bytes, address, fd, all_access), "ibv_reg_dmabuf_mr");
        at = address;
    }

    void connect_to_peer(exchange& where, int me) {
        ibv_port_attr port{};
        if (ibv_query_port(context, 1, &port) != 0)
            fail("ibv_query_port");
        auto& own = where.of[me];
        own = {qp->qp_num, mr->rkey, port.lid, {}, at};
        ibv_query_gid(context, 1, 0, &own.gid);
        where.arrived[me] = 1;
        while (where.arrived[1 - me] < 1)
            ::usleep(100);
        remote = where.of[1 - me];
        ibv_qp_attr values{};
        values.qp_state = IBV_QPS_INIT;
        values.port_num = 1;
        values.qp_access_flags = all_access;
        change(values, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
        values.qp_state = IBV_QPS_RTR;
        values.path_mtu = IBV_MTU_4096;
        values.dest_qp_num = remote.qp_number;
        values.max_dest_rd_atomic = 16;
        values.min_rnr_timer = 1;
        values.ah_attr.port_num = 1;
        values.ah_attr.dlid = remote.lid;
        values.ah_attr.is_global = port.link_layer == IBV_LINK_LAYER_ETHERNET;
        values.ah_attr.grh.dgid = remote.gid;
        change(values, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                           IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
        values.qp_state = IBV_QPS_RTS;
        values.timeout = 18;
        values.retry_cnt = values.rnr_retry = 7;
        values.max_rd_atomic = 16;
        change(values, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                           IBV_QP_MAX_QP_RD_ATOMIC);
        where.arrived[me] = 2;
        while (where.arrived[1 - me] < 2)
            ::usleep(100);
    }

    void write(std::uint64_t from, std::uint64_t to, std::uint32_t bytes,
               unsigned flags = IBV_SEND_SIGNALED) {
        post(IBV_WR_RDMA_WRITE, from, to, bytes, flags);
    }
    void read(std::uint64_t into, std::uint64_t from, std::uint32_t bytes) {
        post(IBV_WR_RDMA_READ, into, from, bytes, IBV_SEND_SIGNALED);
    }
    void post(ibv_wr_opcode what, std::uint64_t own, std::uint64_t to, std::uint32_t bytes, unsigned flags) {
        ibv_sge entry{own, bytes, mr->lkey};
        ibv_send_wr wr{}, *bad = nullptr;
        wr.opcode = what;
        wr.sg_list = &entry;
        wr.num_sge = 1;
        wr.send_flags = flags;
        wr.wr.rdma = {to, remote.key};
        if (ibv_post_send(qp, &wr, &bad) != 0)
            fail("ibv_post_send");
    }
    void send(std::uint32_t bytes) {
        ibv_sge entry{at, bytes, mr->lkey};
        ibv_send_wr wr{}, *bad = nullptr;
        wr.opcode = IBV_WR_SEND;
        wr.sg_list = &entry;
        wr.num_sge = 1;
        wr.send_flags = IBV_SEND_SIGNALED;
        if (ibv_post_send(qp, &wr, &bad) != 0)
            fail("ibv_post_send");
    }
    void receive(std::uint32_t bytes) {
        ibv_sge entry{at + 4096, bytes, mr->lkey};
        ibv_recv_wr wr{}, *bad = nullptr;
        wr.sg_list = &entry;
        wr.num_sge = 1;
        if (ibv_post_recv(qp, &wr, &bad) != 0)
            fail("ibv_post_recv");
    }
    // Polls until `count` completions were seen; receives and sends share the queue.
    void wait(int count) {
        ibv_wc done[16];
        while (count > 0) {
            const int got = ibv_poll_cq(cq, std::min(count, 16), done); // polls no more than `count`
            for (int i = 0; i < got; ++i)
                if (done[i].status != IBV_WC_SUCCESS) {
                    std::fprintf(stderr, "%s\n", ibv_wc_status_str(done[i].status));
                    std::exit(1);
                }
            count -= got;
        }
    }

    ibv_context* context;
    ibv_pd* pd;
    ibv_cq* cq;
    ibv_qp* qp;
    ibv_mr* mr = nullptr;
    std::uint64_t at = 0;
    exchange::address remote{};

private:
    void change(ibv_qp_attr& values, int mask) {
        if (const int error = ibv_modify_qp(qp, &values, mask); error != 0) {
            errno = error;
            fail("ibv_modify_qp");
        }
    }
};

// Memory of a virtual device, exported, and mapped here as the device itself sees it: it represents the
// device's side of a latency test.
struct gaudi_memory {
    explicit gaudi_memory(const char* bus_id) {
        for (int tries = 0; (fd = hlthunk_open(HLTHUNK_DEVICE_DONT_CARE, bus_id)) < 0 && tries < 500; ++tries)
            ::usleep(10000); // the device is reset after its last user
        handle = hlthunk_device_memory_alloc(fd, dram_page, 0, true, false);
        address = hlthunk_device_memory_map(fd, handle, 0);
        dmabuf = hlthunk_device_mapped_memory_export_dmabuf_fd(fd, address, dram_page, 0, HL_EXPORT_FLAGS);
        if (dmabuf < 0)
            fail("export");
        gaudi_lab_dmabuf head{};
        gaudi_lab_range range{};
        char path[4096];
        if (gaudi_lab_dmabuf_describe(dmabuf, &head, &range, 1, path, sizeof(path)) != 0)
            fail("describe");
        const int hbm = ::open(path, O_RDWR | O_CLOEXEC);
        auto* whole = ::mmap(nullptr, gaudi_lab_hbm_file_size(head.hbm_size), PROT_READ | PROT_WRITE,
                             MAP_SHARED, hbm, 0);
        if (whole == MAP_FAILED)
            fail("mmap");
        if (gaudi_lab_hbm_prepare(hbm, static_cast<unsigned char*>(whole), head.hbm_size, range.hbm_offset,
                                  128 * mib) != 0)
            fail("prepare");
        seen = static_cast<unsigned char*>(whole) + range.hbm_offset;
        whole_ = whole;
        whole_size_ = gaudi_lab_hbm_file_size(head.hbm_size);
        ::close(hbm);
    }
    ~gaudi_memory() {
        ::munmap(whole_, whole_size_);
        ::close(dmabuf);
        hlthunk_close(fd);
    }
    gaudi_memory(const gaudi_memory&) = delete;
    gaudi_memory& operator=(const gaudi_memory&) = delete;
    int fd = -1;
    std::uint64_t handle, address;
    int dmabuf;
    unsigned char* seen;

private:
    void* whole_;
    std::size_t whole_size_;
};

// Runs the peer in a process of its own; this process measures the figure.
inline void with_peer(exchange& where, const std::function<void()>& peer, const std::function<void()>& own) {
    const auto child = ::fork();
    if (child == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        pin(1);
        peer();
        std::_Exit(0);
    }
    pin(0);
    own();
    where.stop = true;
    ::waitpid(child, nullptr, 0);
}

} // namespace bench
