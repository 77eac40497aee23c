// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/copy_engine.hpp>

#include "src/connection/work_request.hpp"
#include "src/os/internals.hpp"
#include "src/os/mapping.hpp"
#include "src/rdma/nic_core.hpp"

namespace gaudi {

// Host memory between a device's copy engine and the NIC, in slabs of one size, pinned for the engine and
// registered with the NIC. Copies from and to it must have completed before it is destroyed.
class slab_memory {
public:
    static result<slab_memory> make(const nic_core& nic, const copy_engine& engine, unsigned slabs,
                                    std::uint32_t slab_bytes);

    [[nodiscard]] copy_engine& engine() { return engine_; }
    [[nodiscard]] bool serves(const copy_engine& engine) const { return core_of(engine_) == core_of(engine); }
    [[nodiscard]] std::uint32_t slab_bytes() const { return slab_bytes_; }
    // The first bytes of a slab.
    [[nodiscard]] std::span<std::byte> of(unsigned slab, std::uint32_t bytes) const {
        return memory_.bytes().subspan(std::size_t{slab} * slab_bytes_, bytes);
    }
    [[nodiscard]] std::uint64_t address_of(unsigned slab) const {
        return reinterpret_cast<std::uintptr_t>(of(slab, 0).data());
    }
    // A slab as the NIC addresses it.
    [[nodiscard]] local_part part(unsigned slab) const {
        return {address_of(slab), region_->lkey, static_cast<int>(slab)};
    }

private:
    slab_memory(const copy_engine& engine, std::uint32_t slab_bytes)
        : engine_(engine), slab_bytes_(slab_bytes) {}

    // Members are destroyed in reverse order: this order is required.
    mapping memory_;
    copy_engine engine_;
    pinned_memory pinned_;
    mr_handle region_;
    std::uint32_t slab_bytes_;
};

} // namespace gaudi
