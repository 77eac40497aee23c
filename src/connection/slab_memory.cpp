// SPDX-License-Identifier: BSD-3-Clause
#include "src/connection/slab_memory.hpp"

#include "src/error/try.hpp"

namespace gaudi {

result<slab_memory> slab_memory::make(const nic_core& nic, const copy_engine& engine, unsigned slabs,
                                      std::uint32_t slab_bytes) {
    slab_memory memory(engine, slab_bytes);
    // Not inherited by a child of fork, which would otherwise get the pages that the NIC and the device use
    // (gotcha 29).
    GAUDI_TRY(memory.memory_, mapping::anonymous(std::size_t{slabs} * slab_bytes));
    GAUDI_TRY(memory.pinned_, memory.engine_.pin(memory.memory_.bytes()));
    GAUDI_TRY(memory.region_, nic.register_host(memory.memory_.bytes()));
    return memory;
}

} // namespace gaudi
