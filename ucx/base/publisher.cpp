// SPDX-License-Identifier: BSD-3-Clause
// Keeps UCX's cache of memory types true: UCX asks it before every transfer, and takes what it does not find
// there for host memory. Observers are called from any thread, so that calls into UCX here are those that UCX
// allows anywhere.
#include "ucx/base/publisher.hpp"

#include <gaudi/device.hpp>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <mutex>
#include <string>

namespace gaudi_ucx {
namespace {

constexpr int accelerator_class = 2;
// UCX merges adjacent ranges of one memory type and would lose the device of one of them (gotcha U4).
constexpr std::uint64_t gap = 4096;

void* as_pointer(std::uint64_t address) {
    return reinterpret_cast<void*>(address); // UCX passes addresses as pointers
}

} // namespace

publisher::publisher(uct_gaudi_module& module) : module_(module) {}

void publisher::start(uct_gaudi_module& module) {
    static std::mutex mutex;
    const std::lock_guard guard(mutex);
    if (module.observer)
        return;
    // A program may open the domain without querying it first.
    if (const auto devices = gaudi::list_devices())
        learn_sys_devices(module, *devices);
    ucs_memory_info_t info;
    module.ucx.ucs_memtype_cache_lookup(&info, 1, &info); // creates the cache: without one, updates are lost
    auto made = std::make_shared<publisher>(module);
    // All addresses that memory of a device could have: "unknown" makes UCX ask the memory domain, instead of
    // reading the memory with the CPU.
    for (const auto& space : gaudi::address_spaces())
        made->set_unknown(space.base.value(), space.size);
    gaudi::observe_memory(made);
    module.observer = std::move(made);
}

ucs_sys_device_t publisher::sys_device(unsigned device_index) const {
    return module_.sys_devices[device_index % uct_gaudi_module::most_devices];
}

void publisher::set_unknown(std::uint64_t base, std::uint64_t size) {
    module_.ucx.ucs_memtype_cache_update(as_pointer(base), size, UCS_MEMORY_TYPE_UNKNOWN,
                                         UCS_SYS_DEVICE_ID_UNKNOWN, 0);
}

void publisher::set(const gaudi::memory_window& range) {
    const auto found = registrable_.find(range.device_index);
    if (found == registrable_.end())
        return set_unknown(range.base.value(), range.size);
    module_.ucx.ucs_memtype_cache_update(as_pointer(range.base.value()), range.size, UCS_MEMORY_TYPE_GAUDI,
                                         sys_device(range.device_index),
                                         found->second ? UCS_MEM_FLAG_REGISTRABLE : 0);
}

std::optional<bool> publisher::registrable(unsigned device_index) {
    const std::lock_guard guard(mutex_);
    const auto found = registrable_.find(device_index);
    return found != registrable_.end() ? std::optional(found->second) : std::nullopt;
}

void publisher::set_registrable(unsigned device_index, bool registrable) {
    const std::lock_guard guard(mutex_);
    bool open = false;
    for (const auto& [base, window] : windows_)
        open = open || window.device_index == device_index;
    // Only while a window is open: otherwise the answer would outlive the device, and be wrong for the next
    // one.
    if (!open || !registrable_.emplace(device_index, registrable).second)
        return;
    for (const auto& [base, window] : windows_)
        if (window.device_index == device_index)
            set({window.base, window.size - gap, window.device_index});
}

void publisher::window_opens(const gaudi::memory_window& window) {
    const std::lock_guard guard(mutex_);
    windows_[window.base.value()] = window;
    set({window.base, window.size - gap, window.device_index});
    gaudi_log(module_, DEBUG, "memory of device {}: {} bytes at {:#x}", window.device_index, window.size,
              window.base.value());
}

void publisher::window_closes(const gaudi::memory_window& window) {
    const std::lock_guard guard(mutex_);
    windows_.erase(window.base.value());
    const bool last = std::none_of(windows_.begin(), windows_.end(), [&](const auto& each) {
        return each.second.device_index == window.device_index;
    });
    if (last)
        registrable_.erase(window.device_index);
    // Not removed: the addresses stay a device's, and no host memory can appear there.
    set_unknown(window.base.value(), window.size - gap);
}

bool publisher::memory_goes(gaudi::device_address base, std::uint64_t length) {
    const auto index = gaudi::known_memory().device_of(base).value_or(0);
    ucm_event_t event{};
    event.mem_type.address = as_pointer(base.value());
    event.mem_type.size = length;
    event.mem_type.mem_type = UCS_MEMORY_TYPE_GAUDI;
    event.mem_type.sys_dev = sys_device(index);
    // Without our mutex: UCX's handlers of this event take locks of their own.
    module_.ucx.ucm_event_enter();
    module_.ucx.ucm_event_dispatch(UCM_EVENT_MEM_TYPE_FREE, &event);
    module_.ucx.ucm_event_leave();
    {
        const std::lock_guard guard(mutex_);
        set({base, length, index}); // the event removed the range from the cache
    }
    module_.counters.frees_announced.fetch_add(1, std::memory_order_relaxed);
    return true;
}

namespace {

// Whether UCX will find the device in the PCI tree. A device that it cannot find is not passed to it: at log
// level debug UCX locks its topology lock twice for such a device and hangs (gotcha U17).
bool is_in_sysfs(const ucs_sys_bus_id_t& id) {
    std::ifstream vendor(fmt::format("/sys/bus/pci/devices/{:04x}:{:02x}:{:02x}.{:d}/vendor", id.domain,
                                     id.bus, id.slot, id.function));
    std::string text;
    return vendor >> text && text == "0x1da3"; // a virtual device may have the bus id of another PCI device
}

} // namespace

void learn_sys_devices(uct_gaudi_module& module, const std::vector<gaudi::device_info>& devices) {
    for (const auto& device : devices) {
        unsigned domain = 0, bus = 0, slot = 0, function = 0;
        if (std::sscanf(device.bus_id.c_str(), "%x:%x:%x.%x", &domain, &bus, &slot, &function) != 4 ||
            domain > UINT16_MAX) // UCX's field is too small and would name another device
            continue;
        const ucs_sys_bus_id_t id{static_cast<uint16_t>(domain), static_cast<uint8_t>(bus),
                                  static_cast<uint8_t>(slot), static_cast<uint8_t>(function)};
        if (!is_in_sysfs(id)) {
            gaudi_log(module, DEBUG, "{}: not in /sys/bus/pci/devices, UCX does not learn its location",
                      device.bus_id);
            continue;
        }
        ucs_sys_device_t found = UCS_SYS_DEVICE_ID_UNKNOWN;
        if (module.ucx.ucs_topo_find_device_by_bus_id(&id, &found) != UCS_OK)
            continue;
        const auto name = fmt::format("GAUDI_{}", device.index);
        module.ucx.ucs_topo_sys_device_set_name(found, name.c_str(), 10);
        if (module.ucx.ucs_topo_sys_device_set_class != nullptr)
            module.ucx.ucs_topo_sys_device_set_class(found, accelerator_class);
        module.sys_devices[device.index % uct_gaudi_module::most_devices] = found;
    }
}

ucs_status_t query_if_any_gaudi(uct_component_t* component, uct_md_resource_desc_t** resources_p,
                                unsigned* num_resources_p) {
    return no_throw([&]() -> ucs_status_t {
        auto& module = module_of(component);
        // Nothing is opened here: UCX queries every component of every process, also of those that never use
        // a Gaudi.
        auto devices = gaudi::list_devices();
        // A wrong setting is a warning; the absence of a Gaudi is logged at debug level only.
        const auto level = !devices && devices.error().kind() == gaudi::error_kind::invalid
                               ? UCS_LOG_LEVEL_WARN
                               : UCS_LOG_LEVEL_DEBUG;
        const bool none = devices && devices->empty();
        // Addresses of the first generation are physical and may coincide with host addresses.
        if (devices)
            std::erase_if(*devices,
                          [](const auto& each) { return each.generation == gaudi::generation::gaudi; });
        if (!devices || devices->empty()) {
            if (!module.logged_no_gaudi.exchange(true) || level == UCS_LOG_LEVEL_DEBUG)
                gaudi_log_at(module, level, "no Gaudi: {}",
                             !devices ? devices.error().message()
                             : none   ? "hl-thunk finds none, or none that HABANA_VISIBLE_DEVICES and "
                                        "HABANA_VISIBLE_MODULES show"
                                      : "none of the second generation or later");
            return module.ucx.uct_md_query_empty_md_resource(resources_p, num_resources_p);
        }
        learn_sys_devices(module, *devices);
        return module.ucx.uct_md_query_single_md_resource(component, resources_p, num_resources_p);
    });
}

} // namespace gaudi_ucx
