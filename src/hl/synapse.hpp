// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/address.hpp>

#include <cstdint>
#include <optional>

namespace gaudi {

// What a SynapseAI in this process reports about the device that it has acquired.
struct synapse_device {
    std::uint32_t id = 0; // SynapseAI's number of the device
    int fd = -1;
    device_address pool_base; // the address at which its HBM pool is mapped
    std::uint64_t pool_size = 0;
};

// How many of its device numbers are tried; a process rarely has more than one device.
constexpr std::uint32_t most_synapse_devices = 8;

// Finds libSynapse in this process with dlsym: this library neither links nor loads it. nullopt: there is
// none, or it has not acquired device `synapse_id`.
[[nodiscard]] std::optional<synapse_device> find_synapse_device(std::uint32_t synapse_id);
// The SynapseAI device with this descriptor.
[[nodiscard]] std::optional<synapse_device> find_synapse_device_of(int fd);

// SynapseAI's functions for copies, as its public header declares them.
struct synapse_copies {
    enum status : int { success = 0, device_reset = 17, busy = 22 };
    enum direction : int { host_to_dram, dram_to_host, dram_to_dram };
    using handle = void*;

    int (*synStreamCreateGeneric)(handle* stream, std::uint32_t device, std::uint32_t flags) = nullptr;
    int (*synStreamDestroy)(handle stream) = nullptr;
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
