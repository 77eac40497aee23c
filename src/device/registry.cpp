// SPDX-License-Identifier: BSD-3-Clause
// The registry keeps weak references: what is open is owned by those who use it, and every caller of one
// device gets the same context, because the driver allows no second one (gotcha 1).
#include "src/device/registry.hpp"

#include "src/device/context_joiner.hpp"
#include "src/error/try.hpp"
#include "src/hl/discovery.hpp"
#include "src/hl/synapse.hpp"
#include "src/hl/visibility.hpp"
#include "src/memory/heap_core.hpp"
#include "src/os/deadline.hpp"
#include "src/os/internals.hpp"
#include "src/os/topology.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <fmt/format.h>
#include <pthread.h>
#include <thread>

namespace gaudi {
namespace {

// A driver may reset the device before it is closed.
constexpr std::chrono::seconds longest_close(30);

// Set by the layer above, which this one must not include: joining asks another process.
constinit context_joiner joiner = nullptr;

// Users may write a PCI address without its domain, and in capital letters.
std::string whole_bus_id(std::string text) {
    std::transform(text.begin(), text.end(), text.begin(),
                   [](unsigned char character) { return static_cast<char>(std::tolower(character)); });
    return text.size() == 7 ? "0000:" + text : text;
}

std::string text_of(const device_choice& choice) {
    if (const auto* index = std::get_if<by_index>(&choice))
        return fmt::format("index {}", index->index);
    if (const auto* bus = std::get_if<by_bus_id>(&choice))
        return fmt::format("bus id {}", bus->bus_id);
    if (const auto* module = std::get_if<by_module_id>(&choice))
        return fmt::format("module id {}", module->module_id);
    return "any device";
}

bool matches(const device_info& info, const device_choice& choice) {
    if (const auto* index = std::get_if<by_index>(&choice))
        return info.index == index->index;
    if (const auto* bus = std::get_if<by_bus_id>(&choice))
        return info.bus_id == whole_bus_id(bus->bus_id);
    if (const auto* module = std::get_if<by_module_id>(&choice))
        return info.module_id == module->module_id;
    return true;
}

std::string listed(const std::vector<device_info>& all) {
    std::string text;
    for (const auto& info : all)
        text += fmt::format("{}{} ({}, module {})", text.empty() ? "" : ", ", info.index, info.bus_id,
                            info.module_id);
    return text;
}

} // namespace

registry::registry() {
    // A child of fork has its parent's objects but not its context: it starts without open devices and finds
    // them busy. Nothing is locked around fork, because hl-thunk may have handlers of its own that would wait
    // for ours, and ours for them. State that another thread of the parent may have been changing is not
    // destroyed but constructed anew, in place: known_memory() has handed out references to the map.
    ::pthread_atfork(nullptr, nullptr, [] {
        new (&self().mutex_) std::mutex;
        new (&self().open_) decltype(open_);
        new (&self().map_) editable_address_map;
    });
}

void set_context_joiner(context_joiner provided) {
    joiner = provided;
}

registry& registry::self() {
    static auto* instance = new registry; // never destroyed: buffers with static storage may outlive it
    return *instance;
}

result<std::shared_ptr<const hlthunk_api>> registry::api() {
    const std::lock_guard guard(mutex_);
    if (!api_) {
        auto loaded = hlthunk_api::load();
        if (!loaded)
            return loaded;
        api_ = *loaded;
    }
    return api_;
}

result<registry::found_devices> registry::discover_devices() {
    GAUDI_TRY(const auto table, api());
    GAUDI_TRY(const auto seen, visibility::of_environment());
    GAUDI_TRY(auto all, discover(*table));
    return found_devices{table->path(), seen, std::move(all)};
}

result<std::vector<device_info>> registry::visible_devices() {
    GAUDI_TRY(auto discovered, discover_devices());
    std::erase_if(discovered.all, [&](const device_info& info) { return !discovered.seen.shows(info); });
    return std::move(discovered.all);
}

result<std::shared_ptr<device>> registry::open(const device_choice& wanted) {
    GAUDI_TRY(const auto discovered, discover_devices());
    const auto& [library, seen, all] = discovered;
    if (all.empty())
        return tl::unexpected(error(errc::no_device, fmt::format("{} finds no device", library)));
    auto choice = wanted;
    if (std::holds_alternative<first_free>(choice) && seen.own_module)
        choice = by_module_id{*seen.own_module};
    const auto* by = choice.index() != wanted.index() ? " (HLS_MODULE_ID)" : "";
    std::vector<device_info> candidates;
    bool hidden = false;
    for (const auto& info : all)
        if (matches(info, choice)) {
            if (seen.shows(info))
                candidates.push_back(info);
            else
                hidden = true;
        }
    if (candidates.empty() && hidden)
        return tl::unexpected(error(errc::device_hidden, text_of(choice) + by));
    if (candidates.empty())
        return tl::unexpected(error(errc::device_unknown,
                                    fmt::format("{}{}; there are: {}", text_of(choice), by, listed(all))));
    if (std::holds_alternative<first_free>(choice)) {
        const auto nodes = candidates.size() > 1 ? own_nodes() : std::set<int>{};
        std::stable_partition(candidates.begin(), candidates.end(), [&](const device_info& candidate) {
            return candidate.numa_node && nodes.contains(*candidate.numa_node);
        });
        return open_first_free(candidates);
    }
    return open_one(candidates.front(), true);
}

result<std::shared_ptr<device>> registry::open_first_free(const std::vector<device_info>& candidates) {
    {
        const std::lock_guard guard(mutex_);
        for (const auto& info : candidates) // prefer a device that is open in this process
            if (const auto entry = open_.find(info.bus_id); entry != open_.end())
                if (auto alive = entry->second.whole.lock(); alive && !alive->lost())
                    return alive;
    }
    std::string reasons;
    error last(errc::device_busy, "");
    for (const bool may_join : {false, true}) // prefer a context of this process to joining another's
        for (const auto& info : candidates) {
            auto opened = open_one(info, may_join);
            if (opened)
                return opened;
            if (may_join)
                continue;
            reasons += fmt::format("{}{}", reasons.empty() ? "" : "; ", opened.error().observed());
            last = opened.error();
        }
    return tl::unexpected(error(last.code(), reasons, last.system_error()));
}

result<std::shared_ptr<hl_device>> registry::open_or_attach(const std::shared_ptr<const hlthunk_api>& table,
                                                            const device_info& info,
                                                            const std::shared_ptr<hl_device>& joined) {
    // SynapseAI numbers its devices itself; a process rarely has more than one.
    for (std::uint32_t id = 0; id < most_synapse_devices; ++id)
        if (const auto synapse = find_synapse_device(id);
            synapse && bus_id_of(*table, synapse->fd) == info.bus_id) {
            // Opening the device would fail with EBUSY: SynapseAI in this process has it open (gotcha 36).
            auto attached = attach(table, synapse->fd, info, context_owner::synapse);
            if (!attached)
                return attached;
            (*attached)->locate_synapse_pool();
            // A pool that was not found is not published: its addresses are none of a Gaudi then.
            if (const auto& pool = (*attached)->synapse_pool())
                GAUDI_CHECK(map_.add_window(pool->base, pool->size, info.index));
            return attached;
        }
    auto opened = joined ? result<std::shared_ptr<hl_device>>(joined) : open_for_compute(table, info);
    if (opened)
        GAUDI_CHECK(map_.add_window((*opened)->slice().begin(), (*opened)->slice().size(), info.index));
    return opened;
}

result<std::shared_ptr<device>> registry::open_one(const device_info& info, bool may_join) {
    auto opened = open_alone(info, nullptr);
    if (opened || !may_join || opened.error().code() != errc::device_busy)
        return opened;
    // Without the lock: the joiner asks another process, and this process's broker may query devices
    // meanwhile.
    const auto table = api();
    if (!table || joiner == nullptr)
        return opened;
    const auto joined = joiner(*table, info);
    return joined ? open_alone(info, *joined) : opened;
}

result<std::shared_ptr<device>> registry::open_alone(const device_info& info,
                                                     const std::shared_ptr<hl_device>& joined) {
    GAUDI_TRY(const auto table, api());
    std::unique_lock lock(mutex_);
    // With the lock held while the driver opens the device: a second thread would otherwise find it busy, by
    // this process. So would this one while another closes it; for that it waits without the lock.
    auto& entry = open_[info.bus_id];
    for (const auto limit = deadline_after(longest_close);
         closing(entry) && std::chrono::steady_clock::now() < limit;) {
        const auto closed = entry.closed;
        lock.unlock();
        closed.wait_until(limit);
        lock.lock();
    }
    auto context = entry.context.lock();
    // A lost device becomes usable when its context has ended, for which everything that holds it must go.
    if (context && context->lost())
        return tl::unexpected(
            context->loss().describe("opening it again while something of it is still in use here"));
    if (auto alive = entry.whole.lock())
        return alive;
    if (!context) {
        GAUDI_TRY(context, open_or_attach(table, info, joined));
    }
    // The last heap has closed the window of its device; only the context has survived, by an engine for
    // instance.
    if (entry.heap.expired() && context->owned() && !map_.device_of(context->slice().begin()))
        GAUDI_CHECK(map_.add_window(context->slice().begin(), context->slice().size(), info.index));
    return assemble(entry, context);
}

bool registry::closing(const in_use& entry) {
    return entry.context.expired() && entry.closed.valid() &&
           entry.closed.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

std::shared_ptr<device> registry::assemble(in_use& entry, const std::shared_ptr<hl_device>& context) {
    // A buffer may have outlived the device object, or a copy engine both: the new object shares what is
    // left.
    auto heap = entry.heap.lock();
    if (!heap)
        heap = std::make_shared<heap_core>(context, map_);
    auto object = internals::wrap_shared<device>(context, heap);
    entry = {context->identity().index, object, context, heap, context->closed()};
    return object;
}

std::shared_ptr<device> registry::find_open(unsigned index) {
    const std::lock_guard guard(mutex_);
    for (auto& [bus_id, entry] : open_) {
        if (entry.index != index)
            continue;
        if (auto alive = entry.whole.lock())
            return alive;
        const auto context = entry.context.lock();
        if (context && !entry.heap.expired()) // only buffers are left; they still have memory on the device
            return assemble(entry, context);
    }
    return nullptr;
}

std::vector<std::shared_ptr<device>> registry::all_open() {
    std::vector<unsigned> indices;
    {
        const std::lock_guard guard(mutex_);
        // Looked up after unlocking: find_open() locks, and what it returns may be the last reference to a
        // device.
        for (const auto& [bus_id, entry] : open_)
            if (!entry.context.expired())
                indices.push_back(entry.index);
    }
    std::vector<std::shared_ptr<device>> all;
    for (const auto index : indices)
        if (auto opened = find_open(index))
            all.push_back(std::move(opened));
    return all;
}

std::vector<std::shared_ptr<device>> registry::attach_all() {
    std::vector<std::shared_ptr<device>> attached;
    // Without SynapseAI this costs a symbol lookup: UCX calls it for addresses that it does not know.
    if (!find_synapse_device(0))
        return attached;
    const auto all = visible_devices();
    const auto table = api();
    if (!all || !table)
        return attached;
    for (std::uint32_t id = 0; id < most_synapse_devices; ++id)
        if (const auto synapse = find_synapse_device(id))
            for (const auto& info : *all)
                if (info.bus_id == bus_id_of(**table, synapse->fd))
                    if (auto opened = open_one(info, false))
                        attached.push_back(*opened);
    return attached;
}

std::optional<device_choice> parse_device_choice(std::string_view text) {
    if (text.empty() || text == "auto")
        return first_free{};
    const bool module = text.starts_with("module:");
    const auto digits = module ? text.substr(7) : text;
    unsigned value = 0;
    const auto* end = digits.data() + digits.size();
    const auto [rest, wrong] = std::from_chars(digits.data(), end, value);
    if (wrong == std::errc{} && rest == end)
        return module ? device_choice(by_module_id{value}) : device_choice(by_index{value});
    if (!module && text.find(':') != text.npos)
        return by_bus_id{std::string(text)};
    return std::nullopt;
}

result<driver_library> loaded_driver() {
    GAUDI_TRY(const auto table, registry::self().api());
    return driver_library{table->path(), table->version(), table->tried(), table->missing()};
}

result<std::vector<device_info>> list_devices() {
    return registry::self().visible_devices();
}

std::vector<device_holder> holders_of(const device_info& info) {
    const auto table = registry::self().api();
    return table ? find_holders(**table, info.index) : std::vector<device_holder>{};
}

result<std::shared_ptr<device>> open_device(const device_choice& choice) {
    return registry::self().open(choice);
}

std::shared_ptr<device> find_open_device(unsigned index) {
    return registry::self().find_open(index);
}

std::vector<std::shared_ptr<device>> attach_devices() {
    return registry::self().attach_all();
}

void observe_memory(const std::shared_ptr<memory_observer>& observer) {
    registry::self().map().observe(observer);
}

const address_map& known_memory() {
    return registry::self().map();
}

} // namespace gaudi
