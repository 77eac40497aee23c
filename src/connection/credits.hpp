// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <span>

namespace gaudi {

// Credits tell a sender what it may send: a ring of 8-byte words in the sender's memory, which the receiver's
// NIC writes. A receive is one word with its whole length, then one word for each part that the receiver has
// posted to its NIC. Each word carries the lap of the ring it belongs to, so that it is valid or not by
// itself: no counter and no order between words is needed.
struct credit {
    static constexpr std::uint32_t ring_words = 1024;
    static constexpr std::uint64_t length_mask = (1ULL << 48) - 1;
    using ring = std::array<std::uint64_t, ring_words>;

    enum class kind : std::uint8_t { receive = 1, part = 2 };

    static std::uint64_t encode(std::uint64_t index, kind what, std::uint64_t length) {
        return lap_of(index) << 56 | static_cast<std::uint64_t>(what) << 48 | (length & length_mask);
    }
    // The length in a word, if it is the word with this index and of this kind.
    static std::optional<std::uint64_t> decode(std::uint64_t word, std::uint64_t index, kind what) {
        if (word >> 56 != lap_of(index) || (word >> 48 & 0xff) != static_cast<std::uint64_t>(what))
            return {};
        return word & length_mask;
    }

private:
    // 1 to 255: fresh memory is 0.
    static std::uint64_t lap_of(std::uint64_t index) { return index / ring_words % 255 + 1; }
};

// The sender's side: the peer's receives, in order, one of which is open at a time and is filled part by
// part.
class peer_credits {
public:
    peer_credits(credit::ring& words, std::uint32_t segment) : words_(words), segment_(segment) {}

    // A word that came over TCP instead of by RDMA.
    void store(std::uint64_t index, std::uint64_t word) { words_[index % credit::ring_words] = word; }

    // Opens the peer's next receive if none is open. False while the peer has not announced one.
    bool open_receive() {
        if (open_)
            return true;
        const auto length = word_of(credit::kind::receive);
        if (!length)
            return false;
        ++index_;
        open_ = true;
        length_ = *length;
        used_ = 0;
        return true;
    }
    [[nodiscard]] bool is_open() const { return open_; }
    [[nodiscard]] std::uint64_t length() const { return length_; }
    // Whether the next part of the open receive is posted at the peer.
    [[nodiscard]] bool part_available() const { return word_of(credit::kind::part).has_value(); }
    // Uses that part for the next message. Using the last part closes the receive.
    void use_part() {
        ++index_;
        used_ += std::min<std::uint64_t>(segment_, length_ - used_);
        open_ = used_ < length_;
    }

private:
    [[nodiscard]] std::optional<std::uint64_t> word_of(credit::kind kind) const {
        const std::atomic_ref word(words_[index_ % credit::ring_words]); // the peer's NIC writes it
        return credit::decode(word.load(std::memory_order_acquire), index_, kind);
    }

    credit::ring& words_;
    const std::uint32_t segment_;
    std::uint64_t index_ = 0; // the next word to read
    bool open_ = false;
    std::uint64_t length_ = 0, used_ = 0; // of the open receive
};

// The receiver's side: words for the peer. Each is announced, then sent, then consumed by an arriving
// message.
class local_credits {
public:
    explicit local_credits(credit::ring& words) : words_(words) {}

    void announce(credit::kind kind, std::uint64_t length) {
        words_[announced_ % credit::ring_words] = credit::encode(announced_, kind, length);
        ++announced_;
    }
    void consume(unsigned words) { consumed_ += words; }
    // Whether to send now. Words are held back until they are as many as the peer has not used yet, so that
    // few large writes carry them.
    [[nodiscard]] bool due() const {
        const auto waiting = announced_ - sent_;
        return waiting != 0 && waiting >= sent_ - consumed_;
    }
    [[nodiscard]] bool all_sent() const { return sent_ == announced_; }

    // The next unsent words that are contiguous in the ring.
    struct run {
        std::uint64_t index = 0;
        std::span<const std::uint64_t> words;
    };
    [[nodiscard]] run next_run() const {
        const auto place = sent_ % credit::ring_words;
        const auto count = std::min<std::uint64_t>(announced_ - sent_, credit::ring_words - place);
        return {sent_, std::span(words_).subspan(place, count)};
    }
    void sent(std::uint64_t words) { sent_ += words; }

private:
    credit::ring& words_;
    std::uint64_t announced_ = 0, sent_ = 0, consumed_ = 0;
};

} // namespace gaudi
