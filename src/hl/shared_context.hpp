// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "src/hl/hlthunk_api.hpp"
#include "src/os/shared_memory.hpp"

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

namespace gaudi {

// What the processes that share one context of a device must know of each other, in memory that all of them
// map: the latest submission, so that together they stay below the driver's limit, beyond which a submission
// spins inside hl-thunk; and what each member has mapped, so that the owner can unmap it when the member
// dies.
class shared_context {
public:
    static constexpr unsigned members = 16, most_mappings = 256;

    static result<std::shared_ptr<shared_context>> make();
    // Maps the memory of the descriptor that the owner passed.
    static result<std::shared_ptr<shared_context>> of(unique_fd descriptor);
    explicit shared_context(shared_memory memory) : memory_(std::move(memory)) {}

    [[nodiscard]] int descriptor() const { return memory_.descriptor(); }

    void submitted(std::uint64_t sequence);
    [[nodiscard]] std::uint64_t latest() const;
    // The number of processes that may submit, the owner included.
    [[nodiscard]] unsigned participants() const;

    // For the owner: a number for a new member; nullopt: all are in use.
    [[nodiscard]] std::optional<unsigned> admit();
    // For the owner: unmaps and frees what a member left, once every submission so far has completed. False:
    // one is still in flight.
    [[nodiscard]] bool reap(const hlthunk_api& api, int fd, unsigned member, std::uint64_t most_in_flight);
    [[nodiscard]] bool holds_nothing(unsigned member) const;

    // For a member: records a mapping; `handle` is 0 for host memory. False: the member has too many
    // mappings.
    [[nodiscard]] bool note_mapping(unsigned member, std::uint64_t address, std::uint64_t handle);
    void forget_mapping(unsigned member, std::uint64_t address);

private:
    struct mapped_range {
        std::atomic<std::uint64_t> address, handle;
    };
    struct member_record {
        std::atomic<std::uint32_t> taken;
        mapped_range mappings[most_mappings];
    };
    struct contents {
        std::atomic<std::uint64_t> latest;
        std::atomic<std::uint32_t> participants;
        member_record records[members];
    };

    [[nodiscard]] contents& shared() const { return *reinterpret_cast<contents*>(memory_.data()); }

    shared_memory memory_;
    std::uint64_t finished_ = 0; // for the owner: every submission up to this one has completed
};

// The part of this process in a context that may be shared: as its owner, or as a member.
class context_membership {
public:
    // nullptr while the context is not shared.
    [[nodiscard]] shared_context* shared() const { return shared_.load(std::memory_order_acquire); }
    // For the owner: starts sharing the context.
    result<shared_context*> open();
    // Joins another process's context. `host` stays alive as long as this object.
    void join(std::shared_ptr<shared_context> context, unsigned member, std::shared_ptr<void> host);
    [[nodiscard]] unsigned member() const { return member_; }

    // Records a submission; to be called before the next driver call. The owner's submissions count also
    // before the context is shared.
    void submitted(std::uint64_t sequence);
    // Records a mapping of a member, for the owner to undo; does nothing for the owner. False: the member has
    // too many mappings.
    [[nodiscard]] bool note_mapping(std::uint64_t address, std::uint64_t handle);
    void forget_mapping(std::uint64_t address);

private:
    std::shared_ptr<void> host_;
    std::mutex mutex_;
    std::shared_ptr<shared_context> kept_; // set once
    std::atomic<shared_context*> shared_{nullptr};
    bool is_member_ = false;
    unsigned member_ = 0;
    std::atomic<std::uint64_t> last_sequence_{0};
};

} // namespace gaudi
