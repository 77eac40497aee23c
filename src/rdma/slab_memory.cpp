// SPDX-License-Identifier: BSD-3-Clause
#include "src/rdma/slab_memory.hpp"

namespace gaudi {

result<slab_memory> slab_memory::make(const nic_core& card, const copy_engine& engine, unsigned slabs,
                                      std::uint32_t slab_bytes) {
    slab_memory made(engine, slab_bytes);
    auto memory = mapping::anonymous(std::size_t{slabs} * slab_bytes);
    if (!memory)
        return tl::unexpected(memory.error());
    made.memory_ = std::move(*memory);
    auto pinned = made.engine_.pin(made.memory_.bytes());
    if (!pinned)
        return tl::unexpected(pinned.error());
    made.pinned_ = std::move(*pinned);
    auto region = card.register_host(made.memory_.bytes());
    if (!region)
        return tl::unexpected(region.error());
    made.region_ = std::move(*region);
    return made;
}

} // namespace gaudi
