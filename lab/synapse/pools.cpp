// SPDX-License-Identifier: BSD-3-Clause
// Where SCAL lays its pools, by its public source and its default configuration. What programs allocate is in
// "global_hbm", which takes what the other pools leave, less 4 KiB.
#include "lab/synapse/pools.hpp"

#include "abi/hlthunk_functions.h"
#include "abi/scal.h"

#include <algorithm>
#include <sys/mman.h>

namespace lab::synapse {
namespace {

constexpr std::uint64_t kib = 1024, mib = 1024 * kib, gib = 1024 * mib;

// The device's processors reach pools through windows of this size, by a number in the low 32 bits of an
// address: mappings begin at that number of windows, on the next 4 GiB that suit the page size.
constexpr std::uint64_t window = 256 * mib, step = 4 * gib;

// The device's prefetcher may read one page beyond a tensor: the page after the last pool stays free.
constexpr std::uint64_t kept_free = 4 * kib;

// The parts of the device's addresses that the driver keeps for hints.
constexpr std::uint64_t gaudi2_hints = 0x1001500000000000, gaudi3_hints = 0x0201E00000000000,
                        gaudi2_host_hints = 0xFFF0780000000000, gaudi3_host_hints = 0xFF70780000000000;
constexpr std::uint64_t low_48_bits = (1ULL << 48) - 1;

constexpr std::uint64_t binary_bytes = 32 * mib, shared_bytes = 128 * mib, pdma_bytes = 72 * mib;
constexpr unsigned shared_window = 5, pdma_window = 6, host_window = 9;

std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) {
    return (value + unit - 1) / unit * unit;
}

// The next offset from `from` on with that window in its low bits.
std::uint64_t at_window(std::uint64_t from, unsigned number, std::uint64_t page) {
    const auto low = window * number;
    if (low < (from & (step - 1)))
        from += step;
    from = (from & ~(step - 1)) | low;
    while (from % page != 0)
        from += step;
    return from;
}

} // namespace

std::uint64_t pool_ranges::take(std::uint64_t size, std::uint64_t alignment) {
    std::uint64_t begin = 0;
    for (const auto& [offset, length] : ranges_) {
        if (offset >= begin && offset - begin >= size)
            break;
        begin = round_up(offset + length, alignment);
    }
    if (size == 0 || begin > size_ || size > size_ - begin)
        return none;
    ranges_.emplace(begin, size);
    taken_ += size;
    return begin;
}

bool pool_ranges::give_back(std::uint64_t offset) {
    const auto found = ranges_.find(offset);
    if (found == ranges_.end())
        return false;
    taken_ -= found->second;
    ranges_.erase(found);
    return true;
}

int device_pools::open(int fd) {
    fd_ = fd;
    hlthunk_hw_ip_info info{};
    if (hlthunk_get_hw_ip_info(fd, &info) != 0)
        return SCAL_FAILURE;
    const auto name = hlthunk_get_device_name_from_fd(fd);
    const auto page = info.device_mem_alloc_default_page_size;
    const int status = name == HLTHUNK_DEVICE_GAUDI2 && page != 0   ? open_gaudi2(info.dram_size, page)
                       : name == HLTHUNK_DEVICE_GAUDI3 && page != 0 ? open_gaudi3(info.dram_size, page)
                                                                    : int{SCAL_FAILURE};
    if (status != SCAL_SUCCESS) {
        close();
        return status;
    }
    std::sort(pools_.begin(), pools_.end(),
              [](const auto& one, const auto& other) { return one.name < other.name; });
    for (auto& pool : pools_)
        pool.ranges = pool_ranges(pool.size);
    return SCAL_SUCCESS;
}

// One mapping of the whole memory, at window 5. The pools follow each other in it: the binaries, the pool
// that processors share, and global_hbm.
int device_pools::open_gaudi2(std::uint64_t dram, std::uint64_t page) {
    if (dram < binary_bytes + shared_bytes + kept_free)
        return SCAL_FAILURE;
    auto hints = gaudi2_hints;
    if ((hints & low_48_bits) % page != 0)
        hints += 1ULL << 44;
    memory_pool host{"host_shared", shared_bytes};
    if (const int status = map_host(host, gaudi2_host_hints + window * host_window); status != SCAL_SUCCESS)
        return status;
    const auto offset = at_window(window * host_window + shared_bytes, shared_window, page);
    if (const int status = map_device(dram, hints + offset); status != SCAL_SUCCESS)
        return status;
    const auto mapped = hints + offset;
    const auto global = mapped + binary_bytes + shared_bytes;
    pools_.push_back({"hbm_binary", binary_bytes, mapped, mapped});
    pools_.push_back({"hbm_shared", shared_bytes, mapped + binary_bytes, mapped});
    pools_.push_back({"global_hbm", dram - binary_bytes - shared_bytes - kept_free, global, mapped});
    pools_.push_back(host);
    return SCAL_SUCCESS;
}

// One mapping for each pool, in the order of their names.
int device_pools::open_gaudi3(std::uint64_t dram, std::uint64_t page) {
    const auto others =
        round_up(binary_bytes, page) + round_up(shared_bytes, page) + round_up(pdma_bytes, page);
    const auto usable = dram / page * page;
    if (usable < others + kept_free)
        return SCAL_FAILURE;
    struct wanted {
        const char* name;
        std::uint64_t size;
        unsigned window_number;
    };
    std::uint64_t offset = 0;
    for (const auto& [name, size, number] :
         {wanted{"global_hbm", usable - others - kept_free, 0},
          wanted{"hbm_binary", round_up(binary_bytes, page), 0},
          wanted{"hbm_pdma", round_up(pdma_bytes, page), pdma_window},
          wanted{"hbm_shared", round_up(shared_bytes, page), shared_window}}) {
        offset = at_window(offset, number, page);
        const auto address = gaudi3_hints + offset;
        if (const int status = map_device(size, address); status != SCAL_SUCCESS)
            return status;
        pools_.push_back({name, size, address, address});
        offset += size;
    }
    memory_pool host{"host_shared", shared_bytes};
    const int status = map_host(host, gaudi3_host_hints + at_window(offset, host_window, 1));
    pools_.push_back(host);
    return status;
}

int device_pools::map_device(std::uint64_t size, std::uint64_t hint) {
    mapping added;
    added.handle = hlthunk_device_memory_alloc(fd_, size, 0, false, false);
    if (added.handle == 0)
        return SCAL_OUT_OF_MEMORY;
    added.address = hlthunk_device_memory_map(fd_, added.handle, hint);
    mappings_.push_back(added);
    // Other parts of SCAL know the address beforehand: any other is useless.
    return added.address == hint ? SCAL_SUCCESS : SCAL_FAILURE;
}

int device_pools::map_host(memory_pool& pool, std::uint64_t hint) {
    // Shared memory has small pages, for which the hint is. The virtual driver takes what begins at a huge
    // page for one: the pool begins after the first page.
    const auto bytes = pool.size + 4 * kib;
    void* const memory =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return SCAL_FAILURE;
    host_ = memory;
    host_bytes_ = bytes;
    const bool huge = reinterpret_cast<std::uintptr_t>(memory) % (2 * mib) == 0;
    pool.host = static_cast<char*>(memory) + (huge ? 4 * kib : 0);
    if (::madvise(memory, bytes, MADV_DONTFORK) != 0)
        return SCAL_FAILURE;
    pool.base = pool.mapping = hlthunk_host_memory_map(fd_, pool.host, hint, pool.size);
    if (pool.base != 0)
        mappings_.push_back({0, pool.base});
    return pool.base == hint ? SCAL_SUCCESS : SCAL_FAILURE;
}

bool device_pools::close() {
    bool all_released = true;
    for (const auto& [handle, address] : mappings_) {
        const bool released = (address == 0 || hlthunk_memory_unmap(fd_, address) == 0) &&
                              (handle == 0 || hlthunk_device_memory_free(fd_, handle) == 0);
        all_released = all_released && released;
    }
    mappings_.clear();
    pools_.clear();
    if (host_ != nullptr)
        ::munmap(host_, host_bytes_);
    host_ = nullptr;
    return all_released;
}

} // namespace lab::synapse
