// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/world/description.hpp"

#include <atomic>
#include <cstdint>
#include <filesystem>

namespace lab {

// Which ports of a lab's NICs have no link: one word in the file `ports`, a bit a port, which every process
// that uses the NICs maps and anybody of the lab may change.
class port_states {
public:
    port_states(port_states&& other) noexcept : word_(std::exchange(other.word_, nullptr)) {}
    port_states& operator=(port_states&&) = delete;
    ~port_states();

    // As the description has them.
    [[nodiscard]] static result<void> make(const std::filesystem::path& lab, const description& wanted);
    [[nodiscard]] static result<port_states> open(const std::filesystem::path& lab);

    [[nodiscard]] static constexpr std::uint64_t bit(unsigned card, unsigned port) {
        return 1ULL << (card * 2 + (port - 1) % 2);
    }
    [[nodiscard]] std::uint64_t down() const { return word_->load(std::memory_order_relaxed); }
    [[nodiscard]] bool is_up(unsigned card, unsigned port) const {
        const auto all = down();
        return all == 0 || (all & bit(card, port)) == 0;
    }
    void set(unsigned card, unsigned port, bool up) const;

private:
    explicit port_states(std::atomic<std::uint64_t>* word) : word_(word) {}

    std::atomic<std::uint64_t>* word_;
};

} // namespace lab
