// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/hca/shared_state.hpp"

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <pthread.h>
#include <tl/expected.hpp>

namespace lab::hca {

constexpr unsigned max_devices = 16;

struct segment_head {
    std::uint64_t magic;
    std::uint32_t version;
    std::uint32_t slot;
    std::uint64_t incarnation; // random, never 0
    std::int32_t process;
    std::uint32_t user;
    // A robust mutex that one thread of the owner holds until the process ends. The kernel marks it the
    // moment the process ends, however it ends, and every process sees that with one load.
    pthread_mutex_t life;
    std::atomic<std::uint32_t> qps_used, mrs_used; // one past the highest index ever used
    std::atomic<std::uint32_t> doorbell;           // the owner's guard thread sleeps on this
    std::atomic<std::uint64_t> qp_attention[max_qps / 64];
    std::atomic<std::uint32_t> srq_attention, cq_attention; // the guard thread must check all of them
    shared_lock atomics[64];               // around atomic operations on host memory, by address
    traffic_counters counted[max_devices]; // of the queue pairs that were destroyed
};

struct segment_layout {
    segment_head head;
    shared_qp qps[max_qps];
    shared_cq cqs[max_cqs];
    shared_srq srqs[max_srqs];
    shared_mr mrs[max_mrs];
};

constexpr std::uint64_t segment_page = 4096;
constexpr std::uint64_t arena_begin =
    (sizeof(segment_layout) + segment_page - 1) / segment_page * segment_page;
constexpr std::uint64_t segment_size = 16ULL << 30; // sparse

// The part of a lab's nics that belongs to one process: all its queue pairs, queues and regions, in one file
// <lab>/hca/SLOT that its peers map. Its content is not used after the owner ends, so the only clean-up after
// a killed process is to remove the file.
class segment {
public:
    segment(const segment&) = delete;
    segment& operator=(const segment&) = delete;
    ~segment();

    // Takes a free slot that `fits`; slots of dead processes count as free. errno on failure; EAGAIN: no free
    // slot.
    static tl::expected<std::shared_ptr<segment>, int> make(const std::filesystem::path& folder,
                                                            const std::function<bool(std::uint32_t)>& fits);
    // Maps the segment of a peer. ENOENT: no process has that slot; EACCES: the file belongs to another user.
    static tl::expected<std::shared_ptr<segment>, int> open(const std::filesystem::path& folder,
                                                            std::uint32_t slot);

    [[nodiscard]] segment_layout* operator->() const { return base_; }
    [[nodiscard]] segment_layout& operator*() const { return *base_; }
    [[nodiscard]] bool is_local() const { return is_local_; }
    [[nodiscard]] std::uint32_t slot() const { return base_->head.slot; }
    [[nodiscard]] hca::party party() const;
    // Whether the owner's process is alive. One load.
    [[nodiscard]] bool alive() const {
        return (reinterpret_cast<const std::atomic<std::uint32_t>&>(base_->head.life)
                    .load(std::memory_order_acquire) &
                0x3fffffff) != 0;
    }
    template <typename T>
    [[nodiscard]] T* at(std::uint64_t offset) const {
        return reinterpret_cast<T*>(reinterpret_cast<std::byte*>(base_) + offset);
    }
    // Wakes the owner's guard thread.
    void ring() const;

    // The rest is for the owner. Memory for rings: its offset, or ENOMEM when tmpfs or the segment is full.
    tl::expected<std::uint64_t, int> allocate(std::uint64_t bytes);
    void release(std::uint64_t offset);
    // Allocates storage for a record of a table, so that a full tmpfs is an error here and not a SIGBUS
    // later.
    tl::expected<void, int> claim(const void* record, std::size_t bytes);
    // Drops the file after a fork: it belongs to the parent, and the child must not keep its lock.
    void disown();

private:
    segment(std::filesystem::path file, int fd, segment_layout* base, bool local);

    std::filesystem::path file_;
    int fd_;
    segment_layout* base_;
    bool is_local_;
    std::mutex mutex_;
    std::map<std::uint64_t, std::uint64_t> free_;  // offset, size
    std::map<std::uint64_t, std::uint64_t> taken_; // offset, size
};

// Visits the segments of all live processes.
void for_each_user(const std::filesystem::path& folder, const std::function<void(segment&)>& visit);
// Wakes the guard threads of all processes, after a change to something that they check.
void ring_all(const std::filesystem::path& folder);
// Removes the files of processes that ended without removing them.
void sweep_segments(const std::filesystem::path& folder);

} // namespace lab::hca
