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

// What processes that share one context of a device must know of each other, in memory shared by all of them:
// how far its submissions are, so that none exceeds the driver's limit, where the next one would spin inside
// hl-thunk; and what each member has mapped, so that the owner can undo it when the member dies.
class shared_context {
public:
    static constexpr unsigned members = 16, most_mappings = 256;

    static result<std::shared_ptr<shared_context>> make();
    // From the owner's descriptor of it.
    static result<std::shared_ptr<shared_context>> of(unique_fd descriptor);
    explicit shared_context(shared_memory memory) : memory_(std::move(memory)) {}

    [[nodiscard]] int descriptor() const { return memory_.descriptor(); }

    void submitted(std::uint64_t sequence);
    [[nodiscard]] std::uint64_t latest() const;
    // The processes that may submit, the owner included.
    [[nodiscard]] unsigned participants() const;

    // The owner's side. A number for a new member; none: all are taken.
    [[nodiscard]] std::optional<unsigned> admit();
    // Undoes what a member left, once nothing that was submitted so far is in flight. False: something is.
    [[nodiscard]] bool reap(const hlthunk_api& api, int fd, unsigned member, std::uint64_t most_in_flight);
    [[nodiscard]] bool holds_nothing(unsigned member) const;

    // The member's side: `handle` is 0 for host memory. False: it may map no more.
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
    std::uint64_t finished_ = 0; // the owner's: every submission up to here has ended
};

// A process's part in a context that may be shared: as its owner, or as a member.
class context_membership {
public:
    // None while the context is not shared.
    [[nodiscard]] shared_context* shared() const { return shared_.load(std::memory_order_acquire); }
    // The owner begins to share.
    result<shared_context*> open();
    // Another process's context. `host` must live as long as this.
    void join(std::shared_ptr<shared_context> context, unsigned member, std::shared_ptr<void> host);
    [[nodiscard]] unsigned member() const { return member_; }

    // Before the driver is called again. The owner's sequence counts also before it shares.
    void submitted(std::uint64_t sequence);
    // A member's mappings are written down, for the owner to undo. False: it may map no more.
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
