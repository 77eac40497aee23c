// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "src/hl/hlthunk_api.hpp"
#include "src/os/shared_memory.hpp"

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

namespace gaudi {

// What processes that share one context of a device must know of each other: how far its submissions are, so
// that nobody runs into the driver's limit, where the next one would spin inside hl-thunk; and what each
// guest has mapped, so that the owner can undo it when the guest dies. In memory shared by all of them.
class context_ledger {
public:
    static constexpr unsigned guests = 16, most_held = 256;

    static result<std::shared_ptr<context_ledger>> make();
    // From the owner's descriptor of it.
    static result<std::shared_ptr<context_ledger>> of(unique_fd descriptor);
    explicit context_ledger(shared_memory memory) : memory_(std::move(memory)) {}

    [[nodiscard]] int descriptor() const { return memory_.descriptor(); }

    void submitted(std::uint64_t sequence);
    [[nodiscard]] std::uint64_t latest() const;
    // Everybody who may submit, the owner included.
    [[nodiscard]] unsigned participants() const;

    // The owner's side. Nothing: all places are taken.
    [[nodiscard]] std::optional<unsigned> admit();
    // Undoes what the guest left, once nothing that was submitted so far is in flight. False: something is.
    [[nodiscard]] bool reap(const hlthunk_api& api, int fd, unsigned guest, std::uint64_t most_in_flight);
    [[nodiscard]] bool holds_nothing(unsigned guest) const;

    // The guest's side: `handle` is 0 for host memory. False: no place left.
    [[nodiscard]] bool hold(unsigned guest, std::uint64_t address, std::uint64_t handle);
    void let_go(unsigned guest, std::uint64_t address);

private:
    struct held {
        std::atomic<std::uint64_t> address, handle;
    };
    struct place {
        std::atomic<std::uint32_t> taken;
        held mappings[most_held];
    };
    struct contents {
        std::atomic<std::uint64_t> latest;
        std::atomic<std::uint32_t> participants;
        place places[guests];
    };

    [[nodiscard]] contents& shared() const { return *reinterpret_cast<contents*>(memory_.data()); }

    shared_memory memory_;
    std::uint64_t finished_ = 0; // the owner's: every submission up to here is
};

} // namespace gaudi
