// SPDX-License-Identifier: BSD-3-Clause
#include "lab/os/copy.hpp"

#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace lab {

void copy_bytes(std::byte* to, const std::byte* from, std::uint64_t length,
                [[maybe_unused]] std::uint64_t large) {
#if defined(__x86_64__)
    constexpr std::uint64_t line = 64;
    const bool apart = to + length <= from || from + length <= to;
    if (length >= large && length >= line && apart) {
        // Streaming stores do not read what they overwrite: half as much again of the memory's bandwidth.
        const auto head = -reinterpret_cast<std::uintptr_t>(to) % line;
        std::memcpy(to, from, head);
        to += head;
        from += head;
        length -= head;
        _mm_sfence();
        for (; length >= line; to += line, from += line, length -= line) {
            const auto* source = reinterpret_cast<const __m128i*>(from);
            auto* target = reinterpret_cast<__m128i*>(to);
            _mm_prefetch(reinterpret_cast<const char*>(from + 8 * line), _MM_HINT_NTA);
            const auto a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1),
                       c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
            _mm_stream_si128(target, a);
            _mm_stream_si128(target + 1, b);
            _mm_stream_si128(target + 2, c);
            _mm_stream_si128(target + 3, d);
        }
        _mm_sfence();
    }
#endif
    std::memmove(to, from, length);
}

} // namespace lab
