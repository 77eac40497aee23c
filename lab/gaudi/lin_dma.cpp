// SPDX-License-Identifier: BSD-3-Clause
#include "lab/gaudi/packets.hpp"
#include "lab/gaudi/submission.hpp"
#include "lab/os/copy.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <sys/uio.h>
#include <unistd.h>

namespace lab::gaudi {
namespace {

// Between two slices the engine checks whether its work was cancelled.
constexpr std::uint64_t slice = 4 * mib;
// From these sizes on, copies bypass the cache: larger data would be evicted before it is read.
constexpr std::uint64_t large_for_device = 8 << 20, large_for_host = 768 << 10, middling_for_host = 256 << 10;

// Host memory that is the target of medium-sized copies again and again, such as a program's staging buffers.
// If there are few, each is still in the cache when it is used again, and streaming stores would only evict
// it.
class familiar_targets {
public:
    // Whether so much was copied since the last copy to this address that it has left the cache.
    [[nodiscard]] bool gone_from_cache(std::uint64_t destination, std::uint64_t size) {
        const auto now = copied_.fetch_add(size, std::memory_order_relaxed) + size; // never 0
        const auto place = (destination / host_page * 0x9e3779b97f4a7c15) >> (64 - bits);
        const auto before = last_[place].exchange(now, std::memory_order_relaxed);
        return before != 0 && now - before >= cache_;
    }

private:
    // The size of the last-level cache; a default where it is unknown.
    static std::uint64_t cache_size() {
        const auto size = ::sysconf(_SC_LEVEL3_CACHE_SIZE);
        return size > 0 ? static_cast<std::uint64_t>(size) : 64 * mib;
    }

    static constexpr unsigned bits = 14;
    const std::uint64_t cache_ = cache_size();
    std::atomic<std::uint64_t> copied_{0};
    std::array<std::atomic<std::uint64_t>, 1 << bits> last_{}; // by a hash of the destination
};

struct dma_flags {
    bool memset;
    unsigned swap_bytes; // 0: none
};

dma_flags flags_of(generation kind, std::uint32_t control) {
    constexpr unsigned widths[] = {0, 2, 4, 8};
    return {(control >> 4 & 1) != 0, kind == generation::gaudi ? 0 : widths[control >> 1 & 3]};
}

bool fault(virtual_device& device, unsigned queue, std::uint64_t address, int error) {
    if (error == EFAULT)
        raise_page_fault(device, address, queue);
    else
        raise_storage_error(device, error);
    return false;
}

void swap_units(unsigned char* bytes, std::uint64_t length, unsigned width) {
    for (std::uint64_t i = 0; i + width <= length; i += width)
        std::reverse(bytes + i, bytes + i + width);
}

bool copy_pieces(const piece& to, const piece& from, std::uint64_t length, unsigned swap_bytes, bool large) {
    if (swap_bytes == 0 && to.bytes != nullptr && from.bytes != nullptr) {
        copy_bytes(reinterpret_cast<std::byte*>(to.bytes), reinterpret_cast<const std::byte*>(from.bytes),
                   length, large);
        return true;
    }
    if (swap_bytes == 0 && to.bytes != nullptr)
        return read_piece(from, to.bytes, length);
    if (swap_bytes == 0 && from.bytes != nullptr)
        return write_piece(to, from.bytes, length);
    std::vector<unsigned char> between(length);
    if (!read_piece(from, between.data(), length))
        return false;
    if (swap_bytes != 0)
        swap_units(between.data(), length, swap_bytes);
    return write_piece(to, between.data(), length);
}

// `cancelled` ends the work early.
template <typename F>
bool fill(virtual_device& device, unsigned queue, std::uint64_t destination, std::uint64_t size,
          std::uint64_t pattern, F&& cancelled) {
    std::vector<unsigned char> block(64 * kib);
    for (std::size_t i = 0; i < block.size(); i += 8)
        std::memcpy(block.data() + i, &pattern, 8);
    for (std::uint64_t done = 0; done < size;) {
        if (cancelled())
            return false;
        const auto length = std::min<std::uint64_t>(size - done, block.size());
        if (!write_memory(device, destination + done, {block.data(), length}))
            return fault(device, queue, destination + done, errno);
        done += length;
    }
    return true;
}

template <typename F>
bool copy(virtual_device& device, unsigned queue, std::uint64_t source, std::uint64_t destination,
          std::uint64_t size, unsigned swap_bytes, F&& cancelled) {
    const bool to_host =
        device.type.host_va.contains(destination) || device.type.host_huge_va.contains(destination);
    static familiar_targets targets;
    const bool large = size >= (to_host ? large_for_host : large_for_device) ||
                       (to_host && size >= middling_for_host && targets.gone_from_cache(destination, size));
    for (std::uint64_t done = 0; done < size;) {
        if (cancelled())
            return false;
        auto length = std::min<std::uint64_t>(size - done, slice);
        const auto from = translate(device, source + done, length);
        if (!from)
            return fault(device, queue, source + done, from.error());
        const auto to = translate(device, destination + done, from->length);
        if (!to)
            return fault(device, queue, destination + done, to.error());
        length = to->length;
        if (!copy_pieces(*to, *from, length, swap_bytes, large))
            return fault(device, queue, source + done, EFAULT);
        done += length;
    }
    return true;
}

} // namespace

bool run_lin_dma(submission& owner, unsigned queue, std::uint32_t size, std::uint32_t control,
                 std::uint64_t source, std::uint64_t destination) {
    auto& device = owner.device;
    const auto flags = flags_of(device.type.generation, control);
    if (device.type.generation == generation::gaudi)
        destination &= (1ULL << 56) - 1; // the top byte is a context id
    const auto cancelled = [&] { return owner.cancelled(); };
    return flags.memset ? fill(device, queue, destination, size, source, cancelled)
                        : copy(device, queue, source, destination, size, flags.swap_bytes, cancelled);
}

// A device's own schedulers belong to no queue that a user may submit to.
constexpr unsigned scheduler_queue = 0;

bool scheduler_copy(virtual_device& device, std::uint64_t source, std::uint64_t destination,
                    std::uint64_t size) {
    const auto lost = [&] { return device.state().status != HL_DEVICE_STATUS_OPERATIONAL; };
    return !lost() && copy(device, scheduler_queue, source, destination, size, 0, lost);
}

bool scheduler_fill(virtual_device& device, std::uint64_t destination, std::uint64_t size,
                    std::uint64_t pattern) {
    const auto lost = [&] { return device.state().status != HL_DEVICE_STATUS_OPERATIONAL; };
    return !lost() && fill(device, scheduler_queue, destination, size, pattern, lost);
}

} // namespace lab::gaudi
