// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace lab::synapse {

// The free and taken ranges of a pool: first fit. Offsets count from the start of the pool.
class pool_ranges {
public:
    static constexpr std::uint64_t none = UINT64_MAX;

    explicit pool_ranges(std::uint64_t size) : size_(size) {}
    // The offset of `size` bytes, or none.
    std::uint64_t take(std::uint64_t size, std::uint64_t alignment);
    bool give_back(std::uint64_t offset);
    [[nodiscard]] std::uint64_t left() const { return size_ - taken_; }

private:
    std::uint64_t size_;
    std::uint64_t taken_ = 0;
    std::map<std::uint64_t, std::uint64_t> ranges_; // taken: offset, length
};

// A pool as SCAL has it.
struct memory_pool {
    std::string name;
    std::uint64_t size = 0;
    std::uint64_t base = 0;    // device address at which it begins
    std::uint64_t mapping = 0; // device address of the driver's mapping that it lies in
    void* host = nullptr;      // of a pool in host memory
    pool_ranges ranges{0};
};

// What SCAL takes of a device when it starts: the mappings, and the pools in them.
class device_pools {
public:
    // Allocates and maps as SCAL does on this generation. Returns 0 or a SCAL_ error, and then holds nothing.
    int open(int fd);
    // Unmaps and frees. Returns false where the driver refuses, while a DMA-BUF of it lives.
    bool close();

    [[nodiscard]] std::vector<memory_pool>& all() { return pools_; }

private:
    struct mapping {
        std::uint64_t handle = 0, address = 0;
    };
    int map_device(std::uint64_t size, std::uint64_t hint);
    int map_host(memory_pool& pool, std::uint64_t hint);
    int open_gaudi2(std::uint64_t dram, std::uint64_t page);
    int open_gaudi3(std::uint64_t dram, std::uint64_t page);

    int fd_ = -1;
    std::vector<mapping> mappings_;
    std::vector<memory_pool> pools_; // in the order of their names, which is that of their numbers
    void* host_ = nullptr;
    std::size_t host_bytes_ = 0;
};

} // namespace lab::synapse
