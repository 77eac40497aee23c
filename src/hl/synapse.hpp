// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/device_info.hpp>

#include <cstdint>
#include <optional>
#include <vector>

namespace gaudi {

// A device that a SynapseAI in this process has acquired.
struct synapse_device {
    std::uint32_t id = 0; // SynapseAI's number of the device
    int fd = -1;
    // Of its device information.
    std::uint64_t pool_size = 0, dram_base = 0, global_hbm_base = 0;
};

// How many of its device numbers are tried; a process rarely has more than one device.
constexpr std::uint32_t most_synapse_devices = 8;

// Finds libSynapse in this process with dlsym: this library neither links nor loads it. nullopt: there is
// none, or it has not acquired device `synapse_id`.
[[nodiscard]] std::optional<synapse_device> find_synapse_device(std::uint32_t synapse_id);
// The SynapseAI device with this descriptor.
[[nodiscard]] std::optional<synapse_device> find_synapse_device_of(int fd);

// Where its pool may be, the most reliable answer first: SCAL, the device information where it is set, and on
// Gaudi, whose addresses are physical, the start of the memory. No answer is proof: export a page of it.
// `page`: the driver's unit of allocation.
[[nodiscard]] std::vector<synapse_pool> possible_pools(const synapse_device& device, generation kind,
                                                       std::uint64_t page);

// SynapseAI's functions for copies, as its public header declares them.
struct synapse_copies {
    enum direction : int { host_to_dram, dram_to_host, dram_to_dram };
    using handle = void*;

    int (*synStreamCreateGeneric)(handle* stream, std::uint32_t device, std::uint32_t flags) = nullptr;
    int (*synStreamDestroy)(handle stream) = nullptr;
    int (*synStreamSynchronize)(handle stream) = nullptr;
    int (*synMemCopyAsync)(handle stream, std::uint64_t from, std::uint64_t size, std::uint64_t to,
                           int direction) = nullptr;
    int (*synHostMap)(std::uint32_t device, std::uint64_t size, const void* memory) = nullptr;
    int (*synHostUnmap)(std::uint32_t device, const void* memory) = nullptr;
    int (*synEventCreate)(handle* event, std::uint32_t device, std::uint32_t flags) = nullptr;
    int (*synEventDestroy)(handle event) = nullptr;
    int (*synEventRecord)(handle event, handle stream) = nullptr;
    int (*synEventQuery)(handle event) = nullptr;
};
// nullopt: a function is missing.
[[nodiscard]] std::optional<synapse_copies> find_synapse_copies();

} // namespace gaudi
