// SPDX-License-Identifier: BSD-3-Clause
#include "src/connection/slab_memory.hpp"

#include "src/error/try.hpp"

namespace gaudi {

result<slab_memory> slab_memory::make(const nic_core& nic, const copy_engine& engine, unsigned slabs,
                                      std::uint32_t slab_bytes) {
    slab_memory made(engine, slab_bytes);
    GAUDI_TRY(made.memory_, mapping::anonymous(std::size_t{slabs} * slab_bytes));
    GAUDI_TRY(made.pinned_, made.engine_.pin(made.memory_.bytes()));
    GAUDI_TRY(made.region_, nic.register_host(made.memory_.bytes()));
    return made;
}

} // namespace gaudi
