// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/world/description.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>

namespace lab {

// Which ports of a lab's nics have no link: in the file `ports`, which every process that uses the nics maps
// and any process of the lab may change.
class port_states {
public:
    static constexpr unsigned ports_of_hca = 2, most = max_hcas * ports_of_hca;

    port_states(port_states&& other) noexcept : shared_(std::exchange(other.shared_, nullptr)) {}
    port_states& operator=(port_states&&) = delete;
    ~port_states();

    // The path of the file, and its initial contents: the ports as described.
    [[nodiscard]] static std::filesystem::path file_of(const std::filesystem::path& lab);
    [[nodiscard]] static std::string text_of(const description& wanted);
    [[nodiscard]] static result<port_states> open(const std::filesystem::path& lab);

    // One bit per port.
    [[nodiscard]] std::uint64_t down() const { return shared_->down.load(std::memory_order_relaxed); }
    [[nodiscard]] bool is_up(unsigned hca, unsigned port) const {
        return (down() >> index_of(hca, port) & 1) == 0;
    }
    void set(unsigned hca, unsigned port, bool up) const;

    // How often each port has changed; odd: it is down.
    using changes = std::array<std::uint32_t, most>;
    [[nodiscard]] changes seen() const;

private:
    struct contents {
        std::atomic<std::uint64_t> down;
        std::array<std::atomic<std::uint32_t>, most> changes;
    };
    explicit port_states(contents* shared) : shared_(shared) {}
    [[nodiscard]] static constexpr unsigned index_of(unsigned hca, unsigned port) {
        return hca * ports_of_hca + (port - 1) % ports_of_hca;
    }

    contents* shared_;
};

} // namespace lab
