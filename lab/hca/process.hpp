// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/hca/segment.hpp"
#include "lab/hca/table.hpp"
#include "lab/world/folder.hpp"
#include "lab/world/ports.hpp"

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

namespace lab::hca {

// A segment of another process, with the descriptors that this process opened for it. Shared by the queue
// pairs that are connected to it.
class peer {
public:
    explicit peer(std::shared_ptr<segment> memory, std::filesystem::path folder);
    ~peer();
    peer(const peer&) = delete;
    peer& operator=(const peer&) = delete;

    [[nodiscard]] segment& memory() const { return *memory_; }
    // Writes an event into a completion channel of that process. False: the channel could not be opened or is
    // full.
    bool signal(std::uint32_t channel, std::uint64_t event);

private:
    std::shared_ptr<segment> memory_;
    std::filesystem::path folder_;
    std::mutex mutex_;
    std::unordered_map<std::uint32_t, int> channels_;
};

// Memory of a virtual device, mapped as a whole.
struct hbm_view {
    int fd = -1;
    unsigned char* base = nullptr;
    std::uint64_t size = 0;      // of the memory
    std::uint64_t file_size = 0; // including the granule states
};

class wire;
struct context;
struct queue_pair;
struct completion_queue;
struct shared_receive_queue;

// This process as a member of the lab: one object from the first device opened to the last one closed.
class process : public std::enable_shared_from_this<process> {
public:
    ~process();
    process(const process&) = delete;
    process& operator=(const process&) = delete;

    // Joins the lab, or returns the existing object. errno on failure.
    static tl::expected<std::shared_ptr<process>, int> join();
    // At process exit: writes the report if the process has not closed its devices.
    static void report_left();
    // Whether its handles may be used in this process: false in a forked child.
    [[nodiscard]] bool present() const { return current_.load(std::memory_order_relaxed) == this; }

    [[nodiscard]] segment& own() const { return *own_; }
    [[nodiscard]] const std::shared_ptr<peer>& self() const { return self_; }
    [[nodiscard]] const folder& lab() const { return lab_; }
    [[nodiscard]] std::filesystem::path hca_folder() const { return lab_.path() / "hca"; }

    [[nodiscard]] const port_states& ports() const { return ports_; }
    // Whether the port of a queue pair has a link.
    [[nodiscard]] bool has_link(const shared_qp& qp) const { return ports_.is_up(qp.device, qp.port); }

    // The process that owns this slot now; nullptr if there is none, or if this user may not open its
    // segment.
    [[nodiscard]] std::shared_ptr<peer> find_peer(std::uint32_t slot, int* error = nullptr);
    // nullptr: the memory cannot be mapped.
    [[nodiscard]] const hbm_view* hbm(std::uint32_t gaudi, std::uint64_t size);

    // The device whose memory hbm() has mapped here, and the offset in it. `bytes` is memory of a device.
    struct hbm_place {
        std::uint32_t gaudi = 0;
        std::uint64_t size = 0, offset = 0;
    };
    [[nodiscard]] hbm_place place_of(const std::byte* bytes) const;

    // Connections to other hosts; nullptr where no nic has an Ethernet link.
    [[nodiscard]] wire* network() const { return network_.get(); }
    // Whether a GID belongs to a nic of this lab: its queue pairs are reached through memory.
    [[nodiscard]] bool is_local(const std::uint8_t* gid) const;

    // Local objects by index, for the guard thread. Changing them needs the mutex.
    std::mutex objects;
    std::vector<queue_pair*> qps;
    std::vector<completion_queue*> cqs;
    std::vector<shared_receive_queue*> srqs;
    std::vector<context*> contexts;
    port_states::changes ports_reported; // changes for which events were raised
    std::uint32_t qps_in_use = 0;        // one past the highest index ever used
    std::uint32_t next_serial = 1;
    std::atomic<std::uint32_t> next_pd{1};
    place_table qp_places{max_qps}, cq_places{max_cqs}, srq_places{max_srqs}, region_places{max_mrs, 1},
        channel_places{max_channels};
    std::atomic<std::uint32_t> qps_made{0}, cqs_made{0}, srqs_made{0}, regions_in_use{0}, pds_made{0},
        ahs_made{0};

    // Makes the guard thread run the waiting requests at this time at the latest.
    void run_at(std::uint64_t when_ns);
    void ring() { own_->ring(); }

private:
    process(folder lab, port_states ports, std::shared_ptr<segment> own, std::unique_ptr<wire> network);
    void guard();
    static bool party_is_dead(party holder);
    static void after_fork();

    static inline std::atomic<process*> current_{nullptr};
    bool reported_ = false; // the report was written
    static inline std::mutex joining_;
    static inline std::weak_ptr<process> joined_;

    folder lab_;
    port_states ports_;
    std::shared_ptr<segment> own_;
    std::shared_ptr<peer> self_;
    std::unique_ptr<wire> network_;
    std::vector<std::array<std::uint8_t, 16>> gids_; // of all nics
    std::mutex peers_mutex_;
    std::unordered_map<std::uint32_t, std::weak_ptr<peer>> peers_;
    std::vector<std::shared_ptr<peer>> recent_; // keeps the peers of datagrams mapped for a while
    std::mutex hbm_mutex_;
    std::array<std::atomic<const hbm_view*>, lab::max_gaudis> hbm_{};
    std::atomic<std::uint64_t> run_at_ns_{UINT64_MAX};
    std::atomic<bool> ending_{false};
    std::atomic<bool> guarding_{false};
    std::thread guard_;
};

} // namespace lab::hca
