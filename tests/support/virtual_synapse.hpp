// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "abi/scal.h"
#include "abi/synapse.h"

#include <cstdint>
#include <cstdlib>
#include <dlfcn.h>
#include <stdexcept>
#include <string>

// The lab's SynapseAI in this process, as a program that dlopens it has it: it acquires a device and
// allocates all of its memory.
class virtual_synapse {
public:
    // `bus_id`: of the device; empty: the first that is free. `scope`: RTLD_LOCAL as Python has it, or
    // RTLD_GLOBAL.
    explicit virtual_synapse(const char* bus_id = "", int scope = RTLD_GLOBAL)
        : library_(::dlopen(VIRTUAL_SYNAPSE, RTLD_NOW | scope)),
          scal_(::dlopen("libscal.so", RTLD_NOW | RTLD_NOLOAD)) {
        if (library_ == nullptr || scal_ == nullptr)
            throw std::runtime_error("the virtual SynapseAI cannot be loaded");
        // The tests break the device on purpose; the vendor's library would kill the process.
        ::setenv("TERMINATE_SYNAPSE_UPON_DFA", "1", 1);
        check(find<decltype(synInitialize)>("synInitialize")(), "synInitialize");
        if (const auto status = find<decltype(synDeviceAcquire)>("synDeviceAcquire")(&id_, bus_id);
            status != synSuccess) {
            find<decltype(synDestroy)>("synDestroy")();
            check(status, "synDeviceAcquire");
        }
        scal_handle_t scal = nullptr;
        scal_pool_handle_t pool = nullptr;
        if (find<decltype(scal_get_handle_from_fd)>("scal_get_handle_from_fd")(fd(), &scal) != SCAL_SUCCESS ||
            find<decltype(scal_get_pool_handle_by_name)>("scal_get_pool_handle_by_name")(
                scal, "global_hbm", &pool) != SCAL_SUCCESS ||
            find<decltype(scal_pool_get_infoV2)>("scal_pool_get_infoV2")(pool, &pool_) != SCAL_SUCCESS)
            throw std::runtime_error("SCAL does not know the device");
    }
    ~virtual_synapse() {
        find<decltype(synDestroy)>("synDestroy")();
        ::dlclose(scal_);
        ::dlclose(library_);
    }
    virtual_synapse(const virtual_synapse&) = delete;
    virtual_synapse& operator=(const virtual_synapse&) = delete;

    // Where SynapseAI allocates.
    [[nodiscard]] std::uint64_t pool() const { return pool_.device_base_address; }
    [[nodiscard]] std::uint64_t pool_size() const { return pool_.totalSize; }
    [[nodiscard]] std::uint64_t mapping() const { return pool_.device_base_allocated_address; }
    [[nodiscard]] int fd() const {
        synDeviceInfoV2 info{};
        check(find<decltype(synDeviceGetInfoV2)>("synDeviceGetInfoV2")(id_, &info), "synDeviceGetInfoV2");
        return static_cast<int>(info.fd);
    }
    [[nodiscard]] std::uint64_t allocate(std::uint64_t size) const {
        std::uint64_t address = 0;
        check(find<decltype(synDeviceMalloc)>("synDeviceMalloc")(id_, size, 0, 0, &address),
              "synDeviceMalloc");
        return address;
    }

    // Of the lab alone: copies that ran, ranges of host memory that are mapped, and calls that fail from now
    // on.
    [[nodiscard]] std::uint64_t copied() const { return find<std::uint64_t()>("gaudi_lab_synapse_copied")(); }
    [[nodiscard]] std::uint64_t mapped() const { return find<std::uint64_t()>("gaudi_lab_synapse_mapped")(); }
    void arm_faults(const char* script) const {
        if (find<int(const char*)>("gaudi_lab_synapse_arm_faults")(script) != 0 ||
            find<int(const char*)>("gaudi_lab_scal_arm_faults")(script) != 0)
            throw std::runtime_error(std::string("not a fault script: ") + script);
    }

    template <typename F>
    F* find(const char* name) const {
        for (void* each : {library_, scal_})
            if (auto* const found = ::dlsym(each, name); found != nullptr)
                return reinterpret_cast<F*>(found);
        throw std::runtime_error(std::string("SynapseAI has no ") + name);
    }

private:
    static void check(int status, const char* call) {
        if (status != synSuccess)
            throw std::runtime_error(std::string(call) + " answers " + std::to_string(status));
    }

    void *library_, *scal_;
    synDeviceId id_ = 0;
    scal_memory_pool_infoV2 pool_{};
};
