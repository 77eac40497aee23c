// SPDX-License-Identifier: BSD-3-Clause
#include "ucx/base/publisher.hpp"

#include <gaudi/device.hpp>

#include <algorithm>
#include <cstdio>
#include <mutex>

namespace gaudi_ucx {
namespace {

constexpr int accelerator_class = 2;
constexpr std::uint64_t gap =
    4096; // UCX joins neighbours of one type, and would forget which device they are

void* as_pointer(std::uint64_t address) {
    return reinterpret_cast<void*>(address); // UCX knows addresses by no other type
}

} // namespace

publisher::publisher(uct_gaudi_module& module) : module_(module) {}

void publisher::start(uct_gaudi_module& module) {
    static std::mutex mutex;
    const std::lock_guard guard(mutex);
    if (module.observer)
        return;
    if (const auto devices =
            gaudi::list_devices()) // a program may open the domain without asking for it first
        learn_sys_devices(module, *devices);
    ucs_memory_info_t info;
    module.ucx.ucs_memtype_cache_lookup(&info, 1, &info); // makes the cache: without one, updates are lost
    auto made = std::make_shared<publisher>(module);
    for (const auto& space : gaudi::address_spaces())
        made->set(space.base.value(), space.size, UCS_MEMORY_TYPE_UNKNOWN, UCS_SYS_DEVICE_ID_UNKNOWN);
    gaudi::observe_memory(made);
    module.observer = std::move(made);
}

void publisher::set(std::uint64_t base, std::uint64_t size, ucs_memory_type_t type,
                    ucs_sys_device_t sys_dev) {
    module_.ucx.ucs_memtype_cache_update(as_pointer(base), size, type, sys_dev, UCS_MEM_FLAG_REGISTRABLE);
}

void publisher::window_opens(const gaudi::memory_window& window) {
    set(window.base.value(), window.size - gap, UCS_MEMORY_TYPE_GAUDI,
        module_.sys_devices[window.device_index % uct_gaudi_module::most_devices]);
    gaudi_log(module_, DEBUG, "memory of device {}: {} bytes at {:#x}", window.device_index, window.size,
              window.base.value());
}

void publisher::window_closes(const gaudi::memory_window& window) {
    set(window.base.value(), window.size - gap, UCS_MEMORY_TYPE_UNKNOWN, UCS_SYS_DEVICE_ID_UNKNOWN);
}

bool publisher::memory_goes(gaudi::device_address base, std::uint64_t length) {
    const auto index = gaudi::known_memory().device_of(base).value_or(0);
    const auto sys_dev = module_.sys_devices[index % uct_gaudi_module::most_devices].load();
    ucm_event_t event{};
    event.mem_type.address = as_pointer(base.value());
    event.mem_type.size = length;
    event.mem_type.mem_type = UCS_MEMORY_TYPE_GAUDI;
    event.mem_type.sys_dev = sys_dev;
    module_.ucx.ucm_event_enter();
    module_.ucx.ucm_event_dispatch(UCM_EVENT_MEM_TYPE_FREE, &event);
    module_.ucx.ucm_event_leave();
    set(base.value(), length, UCS_MEMORY_TYPE_GAUDI, sys_dev); // the event took it out
    module_.counters.frees_announced.fetch_add(1, std::memory_order_relaxed);
    return true;
}

void learn_sys_devices(uct_gaudi_module& module, const std::vector<gaudi::device_info>& devices) {
    for (const auto& device : devices) {
        unsigned domain = 0, bus = 0, slot = 0, function = 0;
        if (std::sscanf(device.bus_id.c_str(), "%x:%x:%x.%x", &domain, &bus, &slot, &function) != 4)
            continue;
        const ucs_sys_bus_id_t id{static_cast<uint16_t>(domain), static_cast<uint8_t>(bus),
                                  static_cast<uint8_t>(slot), static_cast<uint8_t>(function)};
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
    return guarded([&]() -> ucs_status_t {
        auto& module = module_of(component);
        auto devices = gaudi::list_devices();
        // What is wrong with a setting is told to everybody; that there is no Gaudi, to who asks.
        const auto level = !devices && devices.error().kind() == gaudi::error_kind::invalid
                               ? UCS_LOG_LEVEL_WARN
                               : UCS_LOG_LEVEL_DEBUG;
        const bool none = devices && devices->empty();
        // The addresses of the first generation are physical ones, which host memory may have as well.
        if (devices)
            std::erase_if(*devices,
                          [](const auto& each) { return each.generation == gaudi::generation::gaudi; });
        if (!devices || devices->empty()) {
            if (!module.told_of_no_gaudi.exchange(true) || level == UCS_LOG_LEVEL_DEBUG)
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
