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
    // A robust mutex that one thread of the owner holds all its life: the kernel marks it the moment the
    // process ends, however it ends, and everybody sees that with one load.
    pthread_mutex_t life;
    std::atomic<std::uint32_t> qps_used, mrs_used; // behind the highest index ever used
    std::atomic<std::uint32_t> doorbell;           // what the owner's guard sleeps on
    std::atomic<std::uint64_t> qp_attention[max_qps / 64];
    std::atomic<std::uint32_t> srq_attention, cq_attention; // something to do: look through them
    shared_lock atomics[64];           // around atomic operations on host memory, by address
    way_counters counted[max_devices]; // of the queue pairs that are gone
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

// The part of a lab's NICs that belongs to one process: all its queue pairs, queues and regions, in one file
// <lab>/hca/SLOT that its peers map. It goes with its process: nothing in it outlives the owner, so nobody
// has to clean up after one that was killed beyond removing the file.
class segment {
public:
    segment(const segment&) = delete;
    segment& operator=(const segment&) = delete;
    ~segment();

    // Takes a free slot that `fits`, the leftovers of dead processes included. errno on failure; EAGAIN:
    // none.
    static tl::expected<std::shared_ptr<segment>, int> make(const std::filesystem::path& folder,
                                                            const std::function<bool(std::uint32_t)>& fits);
    // Maps that of a peer. ENOENT: nobody has that slot; EACCES: somebody else's file.
    static tl::expected<std::shared_ptr<segment>, int> open(const std::filesystem::path& folder,
                                                            std::uint32_t slot);

    [[nodiscard]] segment_layout* operator->() const { return base_; }
    [[nodiscard]] segment_layout& operator*() const { return *base_; }
    [[nodiscard]] bool ours() const { return ours_; }
    [[nodiscard]] std::uint32_t slot() const { return base_->head.slot; }
    [[nodiscard]] hca::party party() const;
    // Whether the owner's process lives. One load.
    [[nodiscard]] bool alive() const {
        return (reinterpret_cast<const std::atomic<std::uint32_t>&>(base_->head.life)
                    .load(std::memory_order_acquire) &
                0x3fffffff) != 0;
    }
    template <typename T>
    [[nodiscard]] T* at(std::uint64_t offset) const {
        return reinterpret_cast<T*>(reinterpret_cast<std::byte*>(base_) + offset);
    }
    // Wakes the owner's guard.
    void ring() const;

    // The rest is the owner's. Memory for rings: offset, or ENOMEM when tmpfs or the segment is full.
    tl::expected<std::uint64_t, int> allocate(std::uint64_t bytes);
    void release(std::uint64_t offset);
    // Storage for a record of a table, so that a full tmpfs is an error here and not a signal later.
    tl::expected<void, int> claim(const void* record, std::size_t bytes);
    // Forgets the file, after a fork: it is the parent's, and its lock must not live on in the child.
    void disown();

private:
    segment(std::filesystem::path file, int fd, segment_layout* base, bool ours);

    std::filesystem::path file_;
    int fd_;
    segment_layout* base_;
    bool ours_;
    std::mutex mutex_;
    std::map<std::uint64_t, std::uint64_t> free_;  // offset, size
    std::map<std::uint64_t, std::uint64_t> taken_; // offset, size
};

// The segments of the processes that live.
void for_each_user(const std::filesystem::path& folder, const std::function<void(segment&)>& visit);
// Wakes the guards of all processes, after something changed that they look at.
void ring_all(const std::filesystem::path& folder);
// Removes the files of processes that ended without doing so.
void sweep_segments(const std::filesystem::path& folder);

} // namespace lab::hca
