// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/device.hpp>

#include <cstdint>
#include <dlfcn.h>
#include <stdexcept>
#include <string>

// The fake SynapseAI of tests/support/fake_synapse.cpp, with the first free device.
class fake_synapse {
public:
    static constexpr std::uint64_t pool_size = 1536ULL << 20;

    explicit fake_synapse(const char* file) : library_(::dlopen(file, RTLD_NOW | RTLD_GLOBAL)) {
        const auto acquire = find<int(const char*, std::uint64_t)>("fake_synapse_acquire");
        for (const auto& each : gaudi::expect(gaudi::list_devices()))
            if (acquire(each.bus_id.c_str(), pool_size) == 0)
                return;
        throw std::runtime_error("SynapseAI finds no device that is free");
    }
    ~fake_synapse() { find<void()>("fake_synapse_release")(); }
    fake_synapse(const fake_synapse&) = delete;
    fake_synapse& operator=(const fake_synapse&) = delete;

    // All of its memory.
    [[nodiscard]] std::uint64_t pool() const { return find<std::uint64_t()>("fake_synapse_pool")(); }

private:
    template <typename F>
    F* find(const char* name) const {
        auto* const found = library_ != nullptr ? ::dlsym(library_, name) : nullptr;
        if (found == nullptr)
            throw std::runtime_error(std::string("SynapseAI has no ") + name);
        return reinterpret_cast<F*>(found);
    }
    void* library_;
};
