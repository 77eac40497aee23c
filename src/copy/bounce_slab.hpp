// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/copy_engine.hpp>

#include "src/error/try.hpp"
#include "src/os/mapping.hpp"

#include <cstring>
#include <optional>
#include <vector>

namespace gaudi {

// Host memory that is mapped for the device, in pieces: small copies go through it and need no mapping of
// their own.
class bounce_slab {
public:
    static constexpr std::size_t piece = copy_engine::longest_bounced;
    // A piece in use.
    struct use {
        int index = -1;
        std::span<std::byte> deliver_to; // where the bytes are copied to on completion
    };

    bounce_slab() = default;
    static result<bounce_slab> make(std::size_t pieces) {
        bounce_slab slab;
        GAUDI_TRY(slab.memory_, mapping::anonymous(pieces * piece));
        for (std::size_t i = 0; i < pieces; ++i)
            slab.free_.push_back(static_cast<int>(i));
        return slab;
    }

    [[nodiscard]] std::span<std::byte> bytes() const { return memory_.bytes(); }
    // Allocates a piece for `memory` and returns its offset; nullopt: too large, or all pieces are in use.
    [[nodiscard]] std::optional<std::size_t> take(use& by, std::span<std::byte> memory, bool to_device) {
        if (memory.size() > piece || free_.empty())
            return std::nullopt;
        by.index = free_.back();
        free_.pop_back();
        const auto offset = offset_of(by);
        if (to_device)
            std::memcpy(bytes().data() + offset, memory.data(), memory.size());
        else
            by.deliver_to = memory;
        return offset;
    }
    // Frees the piece; `deliver`: first copies the bytes that the device wrote to their destination.
    void release(use& by, bool deliver) {
        if (by.index < 0)
            return;
        if (deliver && !by.deliver_to.empty())
            std::memcpy(by.deliver_to.data(), bytes().data() + offset_of(by), by.deliver_to.size());
        free_.push_back(by.index);
        by = {};
    }

private:
    [[nodiscard]] static std::size_t offset_of(const use& by) {
        return static_cast<std::size_t>(by.index) * piece;
    }

    mapping memory_;
    std::vector<int> free_;
};

} // namespace gaudi
