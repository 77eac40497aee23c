// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/address.hpp>

#include <cstdint>
#include <optional>

namespace gaudi {

// What a SynapseAI in this process says about the device it has acquired.
struct synapse_device {
    int fd = -1;
    device_address pool_base; // where its HBM pool is mapped
    std::uint64_t pool_size = 0;
};

// Looks for libSynapse in this process with dlsym: it is never linked and never loaded by us. nullopt: there
// is none, or it has not acquired device `synapse_id`.
[[nodiscard]] std::optional<synapse_device> find_synapse_device(std::uint32_t synapse_id);

} // namespace gaudi
