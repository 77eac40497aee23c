// SPDX-License-Identifier: BSD-3-Clause
#include "lab/os/copy.hpp"

#include "lab/os/system.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace lab {

#if defined(__x86_64__)
namespace {

constexpr std::uint64_t cache_line = 64;

// Streaming stores do not read what they overwrite. On one machine they reach half as much bandwidth again,
// on another only half of it.
void copy_past_the_cache(std::byte* to, const std::byte* from, std::uint64_t length) {
    const auto head = -reinterpret_cast<std::uintptr_t>(to) % cache_line;
    std::memcpy(to, from, head);
    to += head;
    from += head;
    length -= head;
    _mm_sfence();
    for (; length >= cache_line; to += cache_line, from += cache_line, length -= cache_line) {
        const auto* source = reinterpret_cast<const __m128i*>(from);
        auto* target = reinterpret_cast<__m128i*>(to);
        _mm_prefetch(reinterpret_cast<const char*>(from + 32 * cache_line), _MM_HINT_T0);
        const auto a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1),
                   c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
        _mm_stream_si128(target, a);
        _mm_stream_si128(target + 1, b);
        _mm_stream_si128(target + 2, c);
        _mm_stream_si128(target + 3, d);
    }
    _mm_sfence();
    std::memcpy(to, from, length);
}

// Measures which of the two is faster on this machine while copying: tries both alternately at first, then
// uses the better one, and tries the other again from time to time.
class choice {
public:
    [[nodiscard]] bool streams() {
        const auto count = copies_.fetch_add(1, std::memory_order_relaxed);
        constexpr std::uint32_t trials = 8, again = 64;
        if (count < trials)
            return count % 2 != 0;
        const bool better =
            cost_[1].load(std::memory_order_relaxed) < cost_[0].load(std::memory_order_relaxed);
        return (count % again == 0) != better;
    }
    // Keeps the best recent cost: another program may have slowed a copy down.
    void note(bool streamed, std::uint64_t ns, std::uint64_t bytes) {
        auto& cost = cost_[streamed ? 1 : 0];
        const auto seen = (ns << 20) / bytes + 1, before = cost.load(std::memory_order_relaxed);
        cost.store(before == 0 ? seen : std::min(seen, before + before / 16), std::memory_order_relaxed);
    }

private:
    std::atomic<std::uint32_t> copies_{0};
    std::array<std::atomic<std::uint64_t>, 2> cost_{}; // ns per MiB; 0: unknown
};

} // namespace
#endif

void copy_bytes(std::byte* to, const std::byte* from, std::uint64_t length, [[maybe_unused]] bool large) {
#if defined(__x86_64__)
    const bool apart = to + length <= from || from + length <= to;
    if (large && length >= cache_line && apart) {
        static std::array<choice, 65> by_size;
        auto& best = by_size[static_cast<std::size_t>(std::bit_width(length))];
        const bool streamed = best.streams();
        const auto begin = now_ns();
        if (streamed)
            copy_past_the_cache(to, from, length);
        else
            std::memcpy(to, from, length);
        best.note(streamed, now_ns() - begin, length);
        return;
    }
#endif
    std::memmove(to, from, length);
}

} // namespace lab
