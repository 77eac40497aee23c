// SPDX-License-Identifier: BSD-3-Clause
// How the engine reaches host memory: pinned before, through the slab, or mapped for one copy.
#include "src/copy/queue_core.hpp"

#include "src/error/try.hpp"
#include "src/os/internals.hpp"

#include <cstring>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

namespace gaudi {
namespace {

// Whether every page is mapped in this process.
bool is_mapped(std::span<const std::byte> memory) {
    constexpr std::uintptr_t page = 4096;
    const auto begin = reinterpret_cast<std::uintptr_t>(memory.data()) / page * page;
    const auto length = reinterpret_cast<std::uintptr_t>(memory.data()) + memory.size() - begin;
    std::vector<unsigned char> residency((length + page - 1) / page);
    return ::mincore(reinterpret_cast<void*>(begin), length, residency.data()) == 0;
}

} // namespace

std::optional<std::uint64_t> queue_core::pinned_address(const void* begin, std::size_t length) const {
    const auto wanted = reinterpret_cast<std::uintptr_t>(begin);
    auto found = pinned_.upper_bound(wanted);
    if (found == pinned_.begin())
        return std::nullopt;
    --found;
    if (wanted + length > found->second.end)
        return std::nullopt;
    return found->second.address + (wanted - found->first);
}

result<host_mapping> queue_core::map_for_copy(queue_operation& owner, std::span<std::byte> memory,
                                              bool writes) {
    auto mapped = device_->map_host(memory);
    if (mapped || !writes || mapped.error().code() != errc::host_range_invalid)
        return mapped;
    // The driver pins host memory for writing. A source that is only read-only (constants, a mapped file) is
    // duplicated. The kernel copies it, so that an address that is not mapped remains an error and does not
    // crash.
    if (!is_mapped(memory))
        return mapped;
    GAUDI_TRY(auto duplicate, mapping::anonymous(memory.size()));
    std::size_t done = 0;
    while (done < memory.size()) {
        const iovec to{duplicate.bytes().data() + done, memory.size() - done},
            from{memory.data() + done, memory.size() - done};
        const auto copied = ::process_vm_readv(::getpid(), &to, 1, &from, 1, 0);
        if (copied <= 0)
            return mapped;
        done += static_cast<std::size_t>(copied);
    }
    owner.duplicate = std::move(duplicate);
    return device_->map_host(owner.duplicate.bytes());
}

result<std::uint64_t> queue_core::reach_host(std::uint32_t slot, std::span<std::byte> memory, bool writes) {
    if (const auto address = pinned_address(memory.data(), memory.size())) {
        ++statistics_.pinned;
        return *address;
    }
    auto& owner = operations_[slot];
    if (const auto offset = slab_.take(owner.bounce, memory, writes)) {
        ++statistics_.bounced;
        return mapped_slab_.address().value() + *offset;
    }
    GAUDI_TRY(auto mapped, map_for_copy(owner, memory, writes));
    ++statistics_.mapped;
    owner.mapped = std::move(mapped);
    return owner.mapped.address().value();
}

result<pinned_memory> queue_core::pin(std::span<std::byte> memory) {
    GAUDI_TRY(auto mapped, device_->map_host(memory));
    const auto begin = reinterpret_cast<std::uintptr_t>(memory.data());
    {
        const std::lock_guard guard(mutex_);
        pinned_.emplace(begin, pinned_range{begin + memory.size(), mapped.address().value()});
    }
    return internals::wrap<pinned_memory>(
        std::make_unique<mapped_pin>(shared_from_this(), std::move(mapped)));
}

void queue_core::unpin(const host_mapping& gone) {
    const std::lock_guard guard(mutex_);
    const auto [first, last] = pinned_.equal_range(reinterpret_cast<std::uintptr_t>(gone.bytes().data()));
    for (auto entry = first; entry != last; ++entry)
        if (entry->second.address == gone.address().value()) {
            pinned_.erase(entry);
            return;
        }
}

} // namespace gaudi
