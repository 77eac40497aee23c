// SPDX-License-Identifier: BSD-3-Clause
#include "src/hl/context_ledger.hpp"

#include "src/error/try.hpp"

#include <algorithm>

namespace gaudi {

result<std::shared_ptr<context_ledger>> context_ledger::make() {
    GAUDI_TRY(auto memory, shared_memory::make("gaudi-direct context", sizeof(contents)));
    auto made = std::make_shared<context_ledger>(std::move(memory));
    made->shared().participants = 1;
    return made;
}

result<std::shared_ptr<context_ledger>> context_ledger::of(unique_fd descriptor) {
    GAUDI_TRY(auto memory, shared_memory::of(std::move(descriptor), sizeof(contents)));
    memory.drop_descriptor();
    return std::make_shared<context_ledger>(std::move(memory));
}

void context_ledger::submitted(std::uint64_t sequence) {
    auto& latest = shared().latest;
    auto seen = latest.load(std::memory_order_relaxed);
    while (seen < sequence && !latest.compare_exchange_weak(seen, sequence)) {
    }
}

std::uint64_t context_ledger::latest() const {
    return shared().latest.load();
}

unsigned context_ledger::participants() const {
    return std::clamp<unsigned>(shared().participants.load(), 1, guests + 1);
}

std::optional<unsigned> context_ledger::admit() {
    for (unsigned guest = 0; guest < guests; ++guest)
        if (shared().places[guest].taken.exchange(1) == 0) {
            shared().participants.fetch_add(1);
            return guest;
        }
    return std::nullopt;
}

bool context_ledger::holds_nothing(unsigned guest) const {
    const auto& mappings = shared().places[guest].mappings;
    return std::all_of(std::begin(mappings), std::end(mappings),
                       [](const held& each) { return each.address.load() == 0; });
}

bool context_ledger::reap(const hlthunk_api& api, int fd, unsigned guest, std::uint64_t most_in_flight) {
    const auto last = latest();
    const auto busy = [&](std::uint64_t sequence) {
        std::uint32_t status = HL_WAIT_CS_STATUS_BUSY;
        return api.wait_for_cs(fd, sequence, 0, &status) == 0 && status == HL_WAIT_CS_STATUS_BUSY;
    };
    finished_ =
        std::max(finished_, last > most_in_flight ? last - most_in_flight : 0); // the driver let the last in
    for (; finished_ < last; ++finished_)
        if (busy(finished_ + 1))
            return false;
    for (unsigned i = 1; i <= participants(); ++i) // it may have died before it wrote its last one down
        if (busy(last + i))
            return false;
    auto& left = shared().places[guest];
    for (auto& mapped : left.mappings)
        if (const auto address = mapped.address.exchange(0); address != 0) {
            api.memory_unmap(fd, address);
            if (const auto handle = mapped.handle.exchange(0); handle != 0)
                api.device_memory_free(fd, handle);
        }
    left.taken.store(0);
    shared().participants.fetch_sub(1);
    return true;
}

bool context_ledger::hold(unsigned guest, std::uint64_t address, std::uint64_t handle) {
    for (auto& mapped : shared().places[guest].mappings)
        if (std::uint64_t none = 0; mapped.address.load(std::memory_order_relaxed) == 0 &&
                                    mapped.address.compare_exchange_strong(none, address)) {
            mapped.handle.store(handle);
            return true;
        }
    return false;
}

void context_ledger::let_go(unsigned guest, std::uint64_t address) {
    for (auto& mapped : shared().places[guest].mappings)
        if (mapped.address.load(std::memory_order_relaxed) == address) {
            mapped.handle.store(0);
            mapped.address.store(0);
            return;
        }
}

} // namespace gaudi
