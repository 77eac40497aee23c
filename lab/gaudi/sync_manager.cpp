// SPDX-License-Identifier: BSD-3-Clause
// Sync objects, monitors and fences of a Gaudi2, and the 32-bit writes that reach them.
#include "lab/gaudi/packets.hpp"
#include "lab/gaudi/submission.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

namespace lab::gaudi {
namespace {

// Register blocks, as offsets from the configuration space.
constexpr std::uint64_t sob_end = sob_block + 4 * sync_manager::sobs;
constexpr std::uint64_t monitor_stride = 4 * sync_manager::monitors;
constexpr std::uint64_t monitor_end = monitor_block + 6 * monitor_stride;
constexpr std::uint64_t fence_register = 0x290;
constexpr std::uint64_t doorbell = 0x4C17000; // MSI-X: a write raises the interrupt of that number

struct engine_base {
    unsigned first_queue;
    unsigned engine;
    std::uint64_t base;
};

// Engines in the order of their queue ids, four streams each; the base address of each queue manager.
std::vector<engine_base> make_engines() {
    std::vector<engine_base> engines;
    const auto add = [&](unsigned queue, std::uint64_t base) {
        engines.push_back({queue, static_cast<unsigned>(engines.size()), base});
    };
    add(0, 0x4C8A000);
    add(4, 0x4C9A000);
    constexpr unsigned first_queue[] = {8, 48, 84, 120};
    for (unsigned core = 0; core < 4; ++core) {
        const std::uint64_t shift = core * 0x200000;
        const auto queue = first_queue[core];
        add(queue, 0x41CA000 + shift);
        add(queue + 4, 0x41DA000 + shift);
        add(queue + 8, 0x40CA000 + shift);
        const unsigned tpcs = core == 0 ? 7 : 6;
        for (unsigned tpc = 0; tpc < tpcs; ++tpc)
            add(queue + 12 + 4 * tpc, 0x400A000 + tpc * 0x10000 + shift);
    }
    return engines;
}

const std::vector<engine_base>& engines() {
    static const auto table = make_engines();
    return table;
}

struct pending_write {
    std::uint64_t address;
    std::uint32_t value;
    bool add_64 = false; // increments a counter in memory instead
};

// Registers of the sync manager's completion queues: 64 of each, 4 bytes apart.
constexpr std::uint64_t cq_block = 0x411E050;
enum cq_field : std::uint64_t {
    base_low = 0,
    base_high = 0x100,
    lbw_low = 0x500,
    lbw_high = 0x600,
    lbw_data = 0x700,
    increment = 0x800
};

std::uint32_t& cq_register(context& state, cq_field field, std::uint32_t queue) {
    return state.cq_register[(field + 4 * (queue & 63)) / 4];
}

// Four sync objects of 15 bits each make one long counter; a monitor's target is spread over four monitors in
// the same way.
constexpr std::uint32_t long_bit = 1;
constexpr unsigned long_parts = 4, part_bits = 15;

bool long_condition_holds(const sync_manager& sync, unsigned id) {
    const auto& watched = sync.monitor_of[id];
    const auto group = (watched.arm & 0xff) | (watched.config >> 16 & 0xf) << 8;
    const auto first = group * 8 + ((watched.config >> 31) != 0 ? long_parts : 0);
    std::uint64_t value = 0, target = 0;
    if (first + long_parts > sync_manager::sobs || id + long_parts > sync_manager::monitors)
        return false;
    for (unsigned part = 0; part < long_parts; ++part) {
        value |= std::uint64_t{sync.sob[first + part] & 0x7fff} << part * part_bits;
        target |= std::uint64_t{sync.monitor_of[id + part].arm >> 17} << part * part_bits;
    }
    return (watched.arm >> 16 & 1) != 0 ? value == target : value >= target;
}

bool condition_holds(const sync_manager& sync, unsigned id) {
    const auto& watched = sync.monitor_of[id];
    if ((watched.config & long_bit) != 0)
        return long_condition_holds(sync, id);
    const auto group = (watched.arm & 0xff) | (watched.config >> 16 & 0xf) << 8;
    const auto mask = watched.arm >> 8 & 0xff;
    const auto target = watched.arm >> 17;
    const bool equal = (watched.arm >> 16 & 1) != 0;
    for (unsigned bit = 0; bit < 8; ++bit) {
        const auto sob = group * 8 + bit;
        if ((mask >> bit & 1) != 0 || sob >= sync_manager::sobs)
            continue;
        const auto value = sync.sob[sob] & 0x7fff;
        if (equal ? value != target : value < target)
            return false;
    }
    return true;
}

constexpr std::uint32_t armed_bit = 1;

void fire(context& state, unsigned id, std::vector<pending_write>& writes) {
    auto& sync = state.sync;
    sync.monitor_of[id].status &= ~armed_bit;
    --sync.armed;
    if (const auto& fired = sync.monitor_of[id]; (fired.config >> 4 & 1) != 0) {
        const auto queue = fired.payload_low;
        const auto base =
            std::uint64_t{cq_register(state, base_high, queue)} << 32 | cq_register(state, base_low, queue);
        writes.push_back({base, fired.payload_data, cq_register(state, increment, queue) != 0});
        if ((fired.config >> 8 & 1) != 0)
            writes.push_back({std::uint64_t{cq_register(state, lbw_high, queue)} << 32 |
                                  cq_register(state, lbw_low, queue),
                              cq_register(state, lbw_data, queue)});
        return;
    }
    const auto count = (sync.monitor_of[id].config >> 5 & 3) + 1;
    for (unsigned i = 0; i < count && id + i < sync_manager::monitors; ++i) {
        const auto& payload = sync.monitor_of[id + i];
        writes.push_back(
            {std::uint64_t{payload.payload_high} << 32 | payload.payload_low, payload.payload_data});
    }
}

void check_monitors(context& state, std::vector<pending_write>& writes) {
    auto& sync = state.sync;
    for (unsigned id = 0, left = sync.armed; left > 0 && id < sync_manager::monitors; ++id)
        if ((sync.monitor_of[id].status & armed_bit) != 0) {
            --left;
            if (condition_holds(sync, id))
                fire(state, id, writes);
        }
}

void write_sob(context& state, unsigned id, std::uint32_t value, std::vector<pending_write>& writes) {
    auto* sob = state.sync.sob;
    const bool add = (value >> 31) != 0, is_long = (value >> 24 & 1) != 0;
    auto carry = value & 0x7fff;
    for (unsigned part = 0; part < (is_long ? long_parts : 1) && id + part < sync_manager::sobs; ++part) {
        const auto sum = (add ? sob[id + part] : 0) + carry;
        sob[id + part] = sum & 0x7fff;
        carry = sum >> part_bits;
    }
    check_monitors(state, writes);
}

void write_monitor(context& state, std::uint64_t offset, std::uint32_t value,
                   std::vector<pending_write>& writes) {
    const auto field = offset / monitor_stride;
    const auto id = static_cast<unsigned>(offset % monitor_stride / 4);
    auto& sync = state.sync;
    auto& target = sync.monitor_of[id];
    std::uint32_t* const fields[] = {&target.payload_low, &target.payload_high, &target.payload_data,
                                     &target.arm,         &target.config,       &target.status};
    *fields[field] = value;
    if (field != 3)
        return;
    // The upper parts of a long target do not arm a monitor by themselves.
    for (unsigned part = 1; part < long_parts && part <= id; ++part)
        if (id % long_parts == part && (sync.monitor_of[id - part].config & long_bit) != 0)
            return;
    if ((target.status & armed_bit) == 0) {
        target.status |= armed_bit;
        ++sync.armed;
    }
    if (condition_holds(sync, id))
        fire(state, id, writes);
}

bool write_fence(context& state, std::uint64_t offset, std::uint32_t value) {
    for (const auto& engine : engines()) {
        if (offset < engine.base + fence_register ||
            offset >= engine.base + fence_register + 0x14 * context::fences)
            continue;
        const auto relative = offset - engine.base - fence_register;
        state.fence[engine.engine][relative % 0x14 / 4][relative / 0x14] += value;
        state.sync_changes.fetch_add(1);
        futex_wake(state.sync_changes);
        return true;
    }
    return false;
}

// The caller holds the context lock. Writes to registers that the lab does not model are accepted and
// ignored.
void write_register(context& state, std::uint64_t offset, std::uint32_t value,
                    std::vector<pending_write>& writes) {
    if (offset >= sob_block && offset < sob_end)
        write_sob(state, static_cast<unsigned>((offset - sob_block) / 4), value, writes);
    else if (offset >= monitor_block && offset < monitor_end)
        write_monitor(state, offset - monitor_block, value, writes);
    else if (offset >= cq_block && offset < cq_block + 4 * context::cq_registers)
        state.cq_register[(offset - cq_block) / 4] = value;
    else if (offset == doorbell) {
        auto& raised = state.interrupts[value % std::size(state.interrupts)];
        raised.fetch_add(1);
        futex_wake(raised);
    } else
        write_fence(state, offset, value);
}

bool store(virtual_device& device, const pending_write& write) {
    unsigned char bytes[8];
    if (!write.add_64) {
        std::memcpy(bytes, &write.value, sizeof(write.value));
        return write_memory(device, write.address, {bytes, sizeof(write.value)});
    }
    static std::mutex adding;
    const std::lock_guard guard(adding);
    std::uint64_t counter = 0;
    if (!read_memory(device, write.address, bytes))
        return false;
    std::memcpy(&counter, bytes, sizeof(counter));
    counter += write.value;
    std::memcpy(bytes, &counter, sizeof(counter));
    return write_memory(device, write.address, bytes);
}

} // namespace

queue_place place_of(unsigned queue) {
    for (const auto& engine : engines())
        if (queue >= engine.first_queue && queue < engine.first_queue + 4)
            return {engine.engine, queue - engine.first_queue};
    return {context::engines - 1, queue % 4}; // NIC and rotator queues: packets run, fences are not reachable
}

bool is_pci_dma(unsigned queue) {
    return queue < 8;
}

bool is_engine_dma(unsigned queue) {
    constexpr unsigned first[] = {8, 48, 84, 120};
    return std::any_of(std::begin(first), std::end(first),
                       [queue](unsigned id) { return queue >= id && queue < id + 8; });
}

bool write_word(virtual_device& device, std::uint64_t address, std::uint32_t value) {
    const auto& type = device.type;
    auto& state = device.state();
    std::vector<pending_write> writes{{address, value}};
    bool reached = true;
    // A write may trigger monitors whose payloads are writes again.
    for (std::size_t i = 0; i < writes.size() && i < 4096; ++i) {
        const auto next = writes[i];
        if (next.address >= type.cfg_base && next.address - type.cfg_base < type.cfg_size) {
            const context_lock lock(state);
            write_register(state, next.address - type.cfg_base, next.value, writes);
            continue;
        }
        if (!store(device, next)) {
            reached = false;
            continue;
        }
        serve_timestamps(device);
    }
    return reached;
}

bool run_fence(submission& owner, queue_place place, unsigned id, std::uint32_t target,
               std::uint32_t amount) {
    auto& state = owner.device.state();
    for (;;) {
        const auto seen = state.sync_changes.load();
        {
            const context_lock lock(state);
            auto& counter = state.fence[place.engine][place.stream][id];
            if (counter >= target) {
                counter -= std::min(counter, amount);
                return true;
            }
        }
        if (owner.cancelled())
            return false;
        const auto now = now_ns();
        if (now >= owner.deadline_ns) {
            raise_timeout(owner.device, owner.sequence, owner.reset_on_timeout);
            return false;
        }
        futex_wait(state.sync_changes, seen, std::min<std::uint64_t>(owner.deadline_ns - now, 50000000));
    }
}

} // namespace lab::gaudi
