// SPDX-License-Identifier: BSD-3-Clause
#include "src/ipc/owner_slabs.hpp"

#include "src/error/try.hpp"
#include "src/ipc/owner_link.hpp"

namespace gaudi {

result<std::optional<owner_slabs::slab>> owner_slabs::acquire(owner_link& link) {
    {
        const std::lock_guard guard(attaching_);
        if (memory_.data() == nullptr) {
            GAUDI_TRY(auto memory, shared_memory::make("gaudi-direct slabs", count * slab_bytes));
            const int passed[] = {memory.descriptor()};
            GAUDI_CHECK(link.ask(attach_slab_request{count * slab_bytes}, passed));
            memory.drop_descriptor();
            // After the answer: a slab that the owner has not mapped must not be used.
            memory_ = std::move(memory);
            for (std::uint64_t i = 0; i < count; ++i)
                release(i * slab_bytes);
        }
    }
    const std::lock_guard guard(mutex_);
    if (free_.empty())
        return std::optional<slab>();
    const auto offset = free_.back();
    free_.pop_back();
    return slab{memory_.bytes().subspan(offset, slab_bytes), offset};
}

void owner_slabs::release(std::uint64_t offset) {
    const std::lock_guard guard(mutex_);
    free_.push_back(offset);
}

} // namespace gaudi
