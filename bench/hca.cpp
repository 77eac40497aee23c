// SPDX-License-Identifier: BSD-3-Clause
// The virtual HCA: each figure beside what the machine itself does in the same run.
#include "bench/table.hpp"
#include "lab/dmabuf.h"
#include "tests/support/hlthunk_functions.h"

#include <infiniband/verbs.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

using bench::clock;
using bench::table;

constexpr std::size_t kib = 1024, mib = 1024 * kib;
constexpr std::uint64_t dram_page = 768 * mib;
constexpr int all_access =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

[[noreturn]] void give_up(const char* what) {
    std::perror(what);
    std::exit(1);
}

template <typename T>
T* checked(T* handle, const char* what) {
    if (handle == nullptr)
        give_up(what);
    return handle;
}

// What two processes of a measurement share.
struct meeting {
    struct address {
        std::uint32_t qp_number, key;
        std::uint16_t lid;
        ibv_gid gid;
        std::uint64_t memory;
    } of[2];
    std::atomic<int> arrived[2];
    std::atomic<bool> stop;
    alignas(64) std::atomic<std::uint32_t> line; // of the raw ping-pong
    double figure;
};

meeting& new_meeting() {
    void* at = ::mmap(nullptr, sizeof(meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return *new (at) meeting{};
}

void pin(std::size_t core) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    ::sched_setaffinity(0, sizeof(set), &set); // best effort: it steadies the figures
}

// A queue pair with all that it needs.
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

    void meet(meeting& where, int me) {
        ibv_port_attr port{};
        if (ibv_query_port(context, 1, &port) != 0)
            give_up("ibv_query_port");
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
        ibv_sge entry{from, bytes, mr->lkey};
        ibv_send_wr wr{}, *bad = nullptr;
        wr.opcode = IBV_WR_RDMA_WRITE;
        wr.sg_list = &entry;
        wr.num_sge = 1;
        wr.send_flags = flags;
        wr.wr.rdma = {to, remote.key};
        if (ibv_post_send(qp, &wr, &bad) != 0)
            give_up("ibv_post_send");
    }
    void send(std::uint32_t bytes) {
        ibv_sge entry{at, bytes, mr->lkey};
        ibv_send_wr wr{}, *bad = nullptr;
        wr.opcode = IBV_WR_SEND;
        wr.sg_list = &entry;
        wr.num_sge = 1;
        wr.send_flags = IBV_SEND_SIGNALED;
        if (ibv_post_send(qp, &wr, &bad) != 0)
            give_up("ibv_post_send");
    }
    void receive(std::uint32_t bytes) {
        ibv_sge entry{at + 4096, bytes, mr->lkey};
        ibv_recv_wr wr{}, *bad = nullptr;
        wr.sg_list = &entry;
        wr.num_sge = 1;
        if (ibv_post_recv(qp, &wr, &bad) != 0)
            give_up("ibv_post_recv");
    }
    // Polls until `count` completions of the wanted kind were seen; receives and sends share the queue.
    void wait(int count) {
        ibv_wc done[16];
        while (count > 0) {
            const int got = ibv_poll_cq(cq, std::min(count, 16), done); // what comes later is for later
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
    meeting::address remote{};

private:
    void change(ibv_qp_attr& values, int mask) {
        if (const int error = ibv_modify_qp(qp, &values, mask); error != 0) {
            errno = error;
            give_up("ibv_modify_qp");
        }
    }
};

// Memory of a virtual Gaudi, exported, and mapped here as the device itself sees it: this stands for the
// device's side of a latency test.
struct gaudi_memory {
    explicit gaudi_memory(const char* bus_id) {
        for (int tries = 0; (fd = hlthunk_open(HLTHUNK_DEVICE_DONT_CARE, bus_id)) < 0 && tries < 500; ++tries)
            ::usleep(10000); // it resets after its last user
        handle = hlthunk_device_memory_alloc(fd, dram_page, 0, true, false);
        address = hlthunk_device_memory_map(fd, handle, 0);
        dmabuf = hlthunk_device_mapped_memory_export_dmabuf_fd(fd, address, dram_page, 0, HL_EXPORT_FLAGS);
        if (dmabuf < 0)
            give_up("export");
        gaudi_lab_dmabuf head{};
        gaudi_lab_range range{};
        char path[4096];
        if (gaudi_lab_dmabuf_describe(dmabuf, &head, &range, 1, path, sizeof(path)) != 0)
            give_up("describe");
        const int hbm = ::open(path, O_RDWR | O_CLOEXEC);
        auto* whole = ::mmap(nullptr, gaudi_lab_hbm_file_size(head.hbm_size), PROT_READ | PROT_WRITE,
                             MAP_SHARED, hbm, 0);
        if (whole == MAP_FAILED)
            give_up("mmap");
        if (gaudi_lab_hbm_prepare(hbm, static_cast<unsigned char*>(whole), head.hbm_size, range.hbm_offset,
                                  128 * mib) != 0)
            give_up("prepare");
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

// A peer in a process of its own; the figure is measured by this one.
void with_peer(meeting& where, const std::function<void()>& peer, const std::function<void()>& own) {
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

double gbps(std::size_t bytes, double nanoseconds) {
    return static_cast<double>(bytes) / nanoseconds;
}

std::string size_of(std::size_t bytes) {
    return bytes >= mib ? fmt::format("{} MiB", bytes / mib) : fmt::format("{} KiB", bytes / kib);
}

void wait_for_stop(meeting& where) {
    while (!where.stop)
        ::usleep(1000);
}

void device_bandwidth(table& out) {
    auto& where = new_meeting();
    with_peer(
        where,
        [&] {
            gaudi_memory gaudi("0000:1a:00.0");
            end_point here;
            here.use_dmabuf(gaudi.dmabuf, gaudi.address, 128 * mib);
            here.meet(where, 1);
            wait_for_stop(where);
        },
        [&] {
            auto* source = static_cast<unsigned char*>(std::aligned_alloc(4096, 64 * mib));
            auto* target = static_cast<unsigned char*>(
                ::mmap(nullptr, 64 * mib, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
            std::memset(source, 1, 64 * mib);
            std::memset(target, 2, 64 * mib);
            end_point here;
            here.use(source, 64 * mib);
            here.meet(where, 0);
            for (const auto bytes : {64 * kib, 256 * kib, mib, 4 * mib, 64 * mib}) {
                const auto limit = bench::nanoseconds_per([&](std::size_t) {
                    std::memcpy(target, source, bytes);
                    asm volatile("" ::: "memory");
                });
                const auto ours = bench::nanoseconds_per([&](std::size_t) {
                    here.write(here.at, here.remote.memory, static_cast<std::uint32_t>(bytes));
                    here.wait(1);
                });
                const auto goal = bytes >= mib ? 0.95 : 0.75;
                out.row(fmt::format("write into a DMA-BUF region, {}", size_of(bytes)),
                        fmt::format("{:.1f} GB/s", gbps(bytes, ours)),
                        fmt::format("memcpy: {:.1f} GB/s; ratio {:.2f}, goal {:.2f}", gbps(bytes, limit),
                                    limit / ours, goal),
                        limit / ours >= goal);
            }
        });
}

void anonymous_bandwidth(table& out) {
    auto& where = new_meeting();
    with_peer(
        where,
        [&] {
            auto* memory = std::aligned_alloc(4096, 64 * mib);
            std::memset(memory, 3, 64 * mib);
            end_point here;
            here.use(memory, 64 * mib);
            here.meet(where, 1);
            where.line = static_cast<std::uint32_t>(::getpid());
            wait_for_stop(where);
        },
        [&] {
            auto* memory = std::aligned_alloc(4096, 64 * mib);
            std::memset(memory, 4, 64 * mib);
            end_point here;
            here.use(memory, 64 * mib);
            here.meet(where, 0);
            while (where.line == 0)
                ::usleep(100);
            for (const auto bytes : {64 * kib, mib, 4 * mib, 64 * mib}) {
                const iovec near{memory, bytes}, far{reinterpret_cast<void*>(here.remote.memory), bytes};
                const auto limit = bench::nanoseconds_per([&](std::size_t) {
                    if (::process_vm_writev(static_cast<pid_t>(where.line), &near, 1, &far, 1, 0) < 0)
                        give_up("process_vm_writev");
                });
                const auto ours = bench::nanoseconds_per([&](std::size_t) {
                    here.write(here.at, here.remote.memory, static_cast<std::uint32_t>(bytes));
                    here.wait(1);
                });
                out.row(fmt::format("write into anonymous memory, {}", size_of(bytes)),
                        fmt::format("{:.1f} GB/s", gbps(bytes, ours)),
                        fmt::format("process_vm_writev: {:.1f} GB/s; ratio {:.2f}, goal 0.85",
                                    gbps(bytes, limit), limit / ours),
                        limit / ours >= 0.85);
            }
        });
}

constexpr std::uint32_t turns = 200000;

// One way, by two processes that hand a cache line to each other.
double raw_ping_pong() {
    auto& where = new_meeting();
    double best = 1e18;
    with_peer(
        where,
        [&] {
            for (std::uint32_t i = 0; i < 5 * turns; ++i) {
                while (where.line.load(std::memory_order_acquire) != 2 * i + 1) {
                }
                where.line.store(2 * i + 2, std::memory_order_release);
            }
        },
        [&] {
            for (std::uint32_t round = 0; round < 5; ++round) {
                const auto begin = clock::now();
                for (std::uint32_t i = round * turns; i < (round + 1) * turns; ++i) {
                    where.line.store(2 * i + 1, std::memory_order_release);
                    while (where.line.load(std::memory_order_acquire) != 2 * i + 2) {
                    }
                }
                const std::chrono::duration<double, std::nano> taken = clock::now() - begin;
                best = std::min(best, taken.count() / turns / 2);
            }
        });
    return best;
}

// Both sides watch the memory of their own Gaudi and write two bytes into that of the other.
double write_ping_pong() {
    auto& where = new_meeting();
    constexpr std::uint32_t rounds = 5;
    const auto play = [&](const char* bus_id, int me) {
        gaudi_memory gaudi(bus_id);
        end_point here;
        here.use_dmabuf(gaudi.dmabuf, gaudi.address, mib);
        std::atomic_ref mine(*reinterpret_cast<std::uint16_t*>(gaudi.seen));
        std::atomic_ref next(*reinterpret_cast<std::uint16_t*>(gaudi.seen + 4096));
        mine = 0;
        here.meet(where, me);
        double best = 1e18;
        for (std::uint32_t round = 0; round < rounds; ++round) {
            const auto begin = clock::now();
            for (std::uint32_t i = 0; i < turns; ++i) {
                const auto number = static_cast<std::uint16_t>(round * turns + i + 1);
                const auto answer = [&] {
                    next.store(number, std::memory_order_relaxed);
                    here.write(gaudi.address + 4096, here.remote.memory, 2);
                    here.wait(1);
                };
                if (me == 0)
                    answer();
                while (mine.load(std::memory_order_acquire) != number) {
                }
                if (me == 1)
                    answer();
            }
            const std::chrono::duration<double, std::nano> taken = clock::now() - begin;
            best = std::min(best, taken.count() / turns / 2);
        }
        where.arrived[me] = 3;
        while (where.arrived[1 - me] < 3)
            ::usleep(100);
        return best;
    };
    double best = 0;
    with_peer(
        where, [&] { (void)play("0000:1a:00.0", 1); }, [&] { best = play("0000:19:00.0", 0); });
    return best;
}

double send_ping_pong() {
    auto& where = new_meeting();
    const auto play = [&](const char* bus_id, int me) {
        gaudi_memory gaudi(bus_id);
        end_point here;
        here.use_dmabuf(gaudi.dmabuf, gaudi.address, mib);
        here.meet(where, me);
        for (int i = 0; i < 64; ++i)
            here.receive(64);
        double best = 1e18;
        for (int round = 0; round < 5; ++round) {
            const auto begin = clock::now();
            for (std::uint32_t i = 0; i < turns / 4; ++i) {
                if (me == 0)
                    here.send(2);
                here.wait(me == 0 ? 2 : 1); // its own send, and what came
                here.receive(64);
                if (me == 1) {
                    here.send(2);
                    here.wait(1);
                }
            }
            const std::chrono::duration<double, std::nano> taken = clock::now() - begin;
            best = std::min(best, taken.count() / (turns / 4) / 2);
        }
        where.arrived[me] = 3;
        while (where.arrived[1 - me] < 3)
            ::usleep(100);
        return best;
    };
    double best = 0;
    with_peer(
        where, [&] { (void)play("0000:1a:00.0", 1); }, [&] { best = play("0000:19:00.0", 0); });
    return best;
}

void latencies(table& out) {
    const auto raw = raw_ping_pong();
    const auto ours = write_ping_pong();
    out.row("2 B write, one way, device memory", fmt::format("{:.0f} ns", ours),
            fmt::format("raw cache line: {:.0f} ns; ratio {:.2f}, goal 1.5", raw, ours / raw),
            ours <= 1.5 * raw);
    const auto sent = send_ping_pong();
    out.row("2 B send, one way, device memory", fmt::format("{:.0f} ns", sent), "goal 600 ns", sent <= 600);
}

void message_rate(table& out) {
    auto& where = new_meeting();
    with_peer(
        where,
        [&] {
            gaudi_memory gaudi("0000:1a:00.0");
            end_point here;
            here.use_dmabuf(gaudi.dmabuf, gaudi.address, mib);
            here.meet(where, 1);
            wait_for_stop(where);
        },
        [&] {
            gaudi_memory gaudi("0000:19:00.0");
            end_point here;
            here.use_dmabuf(gaudi.dmabuf, gaudi.address, mib);
            here.meet(where, 0);
            constexpr std::size_t list = 64;
            ibv_sge entry{gaudi.address, 8, here.mr->lkey};
            std::array<ibv_send_wr, list> all{};
            for (std::size_t i = 0; i < list; ++i) {
                all[i].opcode = IBV_WR_RDMA_WRITE;
                all[i].sg_list = &entry;
                all[i].num_sge = 1;
                all[i].wr.rdma = {here.remote.memory + 8 * i, here.remote.key};
                all[i].next = i + 1 < list ? &all[i + 1] : nullptr;
            }
            all[list - 1].send_flags = IBV_SEND_SIGNALED;
            const auto batched = bench::nanoseconds_per([&](std::size_t) {
                                     ibv_send_wr* bad = nullptr;
                                     if (ibv_post_send(here.qp, all.data(), &bad) != 0)
                                         give_up("ibv_post_send");
                                     here.wait(1);
                                 }) /
                                 list;
            out.row("8 B writes, device memory, in lists of 64", fmt::format("{:.1f} M/s", 1000 / batched),
                    "goal 10 M/s", batched <= 100);
            const auto alone = bench::nanoseconds_per([&](std::size_t) {
                here.write(gaudi.address, here.remote.memory, 8);
                here.wait(1);
            });
            out.row("8 B write, posted and polled one by one", fmt::format("{:.1f} M/s", 1000 / alone), "");
        });
}

void registration(table& out) {
    end_point here;
    constexpr std::size_t bytes = 1024 * mib;
    void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    std::memset(memory, 1, bytes);
    const auto ours = bench::nanoseconds_per([&](std::size_t) {
        auto* mr = checked(ibv_reg_mr(here.pd, memory, bytes, all_access), "ibv_reg_mr");
        ibv_dereg_mr(mr);
    });
    ::munmap(memory, bytes);
    out.row("register and deregister 1 GiB", fmt::format("{:.1f} us", ours / 1000), "goal 50 us",
            ours <= 50000);
}

// The other host is a second lab that has the next address of the loopback network.
void tcp(table& out) {
    double limit = 0;
    if (auto* pipe = ::popen("(iperf3 -s -1 -B 127.0.0.1 -p 46999 >/dev/null 2>&1 &) ; sleep 0.5; "
                             "LD_PRELOAD= iperf3 -c 127.0.0.1 -p 46999 -l 1M -t 2 -f m 2>/dev/null | awk "
                             "'/receiver/ {print $7}'",
                             "r")) {
        double mbit = 0;
        if (std::fscanf(pipe, "%lf", &mbit) == 1)
            limit = mbit / 8 / 1000;
        ::pclose(pipe);
    }
    auto& where = new_meeting();
    const auto enter = [](const char* name, const char* address) {
        ::setenv("GAUDI_LAB", name, 1);
        const auto file = fmt::format("/tmp/{}-{}.lab", name, ::getpid());
        if (auto* out_file = std::fopen(file.c_str(), "w"); out_file != nullptr) {
            std::fprintf(out_file, "gaudis = 0\nhcas = 1\nlink_layer = ethernet\naddress = %s\n", address);
            std::fclose(out_file);
        }
        const auto made = std::system(fmt::format("LD_PRELOAD= '{}' lab run --lab {} --config {} -- true",
                                                  std::getenv("GAUDI_DIRECT_TOOL"), name, file)
                                          .c_str());
        ::unlink(file.c_str());
        if (made != 0)
            give_up("lab run");
    };
    with_peer(
        where,
        [&] {
            enter("bench-far", "127.0.0.2");
            auto* memory = std::aligned_alloc(4096, 64 * mib);
            std::memset(memory, 3, 64 * mib);
            end_point here;
            here.use(memory, 64 * mib);
            here.meet(where, 1);
            wait_for_stop(where);
        },
        [&] {
            const std::string before = std::getenv("GAUDI_LAB") != nullptr ? std::getenv("GAUDI_LAB") : "";
            enter("bench-near", "127.0.0.1");
            auto* memory = std::aligned_alloc(4096, 64 * mib);
            std::memset(memory, 4, 64 * mib);
            end_point here;
            here.use(memory, 64 * mib);
            here.meet(where, 0);
            constexpr int window = 16;
            const auto each = bench::nanoseconds_per([&](std::size_t) {
                                  for (std::size_t i = 0; i < window; ++i)
                                      here.write(here.at + i * mib, here.remote.memory + i * mib, mib);
                                  here.wait(window);
                              }) /
                              window;
            out.row("write over TCP, 1 MiB, 16 in flight", fmt::format("{:.2f} GB/s", gbps(mib, each)),
                    limit == 0 ? std::string("iperf3 is not there: no limit")
                               : fmt::format("iperf3 -l 1M: {:.2f} GB/s; ratio {:.2f}, goal 0.75", limit,
                                             gbps(mib, each) / limit),
                    limit == 0 ? std::nullopt : std::optional(gbps(mib, each) >= 0.75 * limit));
            const auto small = bench::nanoseconds_per([&](std::size_t) {
                here.write(here.at, here.remote.memory, 8);
                here.wait(1);
            });
            out.row("8 B write over TCP and back", fmt::format("{:.1f} us", small / 1000), "");
            ::setenv("GAUDI_LAB", before.c_str(), 1);
        });
}

} // namespace

int main() {
    table out("gaudi-direct: the virtual HCA");
    registration(out);
    device_bandwidth(out);
    anonymous_bandwidth(out);
    latencies(out);
    message_rate(out);
    tcp(out);
    out.print();
    return 0;
}
