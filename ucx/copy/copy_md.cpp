// SPDX-License-Identifier: BSD-3-Clause
#include "ucx/copy/copy_md.hpp"

#include <gaudi/ipc.hpp>
#include <gaudi/nic.hpp>

#include "ucx/base/publisher.hpp"
#include "ucx/base/transport.hpp"
#include "ucx/copy/copy_keys.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <unistd.h>

namespace gaudi_ucx {
namespace {

// Memory that SynapseAI took after this domain was opened becomes known here.
bool attach_late(uct_gaudi_copy_md_t& md, std::uint64_t address) {
    if (!in_device_space(address))
        return false;
    auto found = gaudi::attach_devices();
    if (found.empty())
        return false;
    const std::lock_guard guard(md.mutex);
    for (auto& device : found)
        if (std::find(md.attached.begin(), md.attached.end(), device) == md.attached.end())
            md.attached.push_back(std::move(device));
    return true;
}

ucs_sys_device_t sys_device(const uct_gaudi_copy_md_t& md, unsigned index) {
    return md.module->sys_devices[index % uct_gaudi_module::most_devices];
}

// An hl-thunk that cannot export: UCX then stages. Whether a driver would refuse shows only on a device that
// is open, long after UCX has asked. The first generation, whose export is another call, is none of UCX's.
bool library_exports() {
    static const bool found = [] {
        const auto driver = gaudi::loaded_driver();
        return !driver || std::find(driver->missing.begin(), driver->missing.end(),
                                    "hlthunk_device_mapped_memory_export_dmabuf_fd") == driver->missing.end();
    }();
    return found;
}

// ---- query, allocation ----

ucs_status_t uct_gaudi_copy_md_query(uct_md_h tl_md, uct_md_attr_v2_t* attr) {
    return guarded([&] {
        const auto& md = copy_md(tl_md);
        md.module->ucx.uct_md_base_md_query(attr);
        constexpr std::uint64_t gaudi_type = 1ULL << UCS_MEMORY_TYPE_GAUDI,
                                host = 1ULL << UCS_MEMORY_TYPE_HOST;
        attr->flags = UCT_MD_FLAG_ALLOC | UCT_MD_FLAG_REG |
                      UCT_MD_FLAG_NEED_MEMH; // staging buffers come registered, and stay pinned
        attr->reg_mem_types = host | gaudi_type;
        attr->access_mem_types = host | gaudi_type; // without host, no worker finds a way across memory types
        attr->alloc_mem_types = gaudi_type;
        attr->detect_mem_types = gaudi_type;
        attr->cache_mem_types = gaudi_type;
        const bool gives = md.dmabuf == UCS_YES || (md.dmabuf != UCS_NO && library_exports());
        attr->dmabuf_mem_types = gives ? gaudi_type : 0;
        attr->max_alloc = SIZE_MAX;
        attr->rkey_packed_size = sizeof(memory_key);
        attr->reg_cost = {110e-9,
                          0}; // as bench measures it: a key is made, and memory pinned at its first use
        return UCS_OK;
    });
}

} // namespace

std::shared_ptr<gaudi::device> opened_devices::find(const gaudi::device_choice& choice) {
    const std::lock_guard guard(mutex_);
    const auto* index = std::get_if<gaudi::by_index>(&choice);
    for (const auto& [known, device] : by_index_)
        if ((index != nullptr ? known == index->index : std::holds_alternative<gaudi::first_free>(choice)) &&
            !device->lost())
            return device;
    return nullptr;
}

void opened_devices::add(const std::shared_ptr<gaudi::device>& device) {
    const auto index = device->info().index;
    const std::lock_guard guard(mutex_);
    by_index_.insert_or_assign(index, device);
}

void opened_devices::let_go_of_lost() {
    const std::lock_guard guard(mutex_);
    std::erase_if(by_index_, [](const auto& each) { return each.second->lost(); });
}

namespace {

gaudi::result<std::shared_ptr<gaudi::device>> device_for(uct_gaudi_copy_md_t& md, ucs_sys_device_t wanted) {
    auto choice = md.choice;
    if (wanted != UCS_SYS_DEVICE_ID_UNKNOWN)
        for (unsigned index = 0; index < uct_gaudi_module::most_devices; ++index)
            if (md.module->sys_devices[index] == wanted)
                choice = gaudi::by_index{index};
    if (auto known = md.opened.find(choice)) // what is open already costs no question to the driver
        return known;
    md.module->holders.let_go_of_lost();
    const std::lock_guard guard(md.opened.opening);
    auto made = gaudi::open_device(choice);
    // Whoever opened it may be about to offer it.
    for (int tries = 0;
         md.share_device && !made && made.error().code() == gaudi::errc::device_busy && tries < 100;
         ++tries) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        made = gaudi::open_device(choice);
    }
    if (!made)
        return made;
    md.opened.add(*made);
    if (md.share_device)
        if (const auto offered = gaudi::offer_device(**made);
            !offered) // a guest itself, or a first generation
            gaudi_log(*md.module, DEBUG, "{}", offered.error().message());
    return made;
}

// Whether the driver will answer the same the next time.
bool is_lasting(const gaudi::error& refusal) {
    const auto reason = refusal.system_error();
    return reason != ENOMEM && reason != EAGAIN && reason != EINTR && reason != EBUSY;
}

// Whether a NIC can register memory of this device, found out once a device by exporting a page of it: UCX
// leaves memory that cannot be registered to its staging protocols. An address that is not allocated proves
// nothing.
bool is_registrable(uct_gaudi_copy_md_t& md, unsigned device_index, std::uint64_t address) {
    auto& known = *md.module->observer;
    if (const auto found = known.registrable(device_index))
        return *found || md.dmabuf == UCS_YES;
    if (md.dmabuf == UCS_NO || !library_exports()) {
        known.set_registrable(device_index, md.dmabuf == UCS_YES);
        return md.dmabuf == UCS_YES;
    }
    const auto device = gaudi::find_open_device(device_index);
    if (!device || device->lost())
        return true;
    const auto exported = device->export_memory(gaudi::device_address(address), 1);
    if (exported)
        ::close(exported->fd);
    else if (exported.error().kind() != gaudi::error_kind::unsupported || !is_lasting(exported.error()))
        return true;
    else if (md.dmabuf != UCS_YES)
        (void)failed(*md.module, exported.error(),
                     md.module->told_of_exports.exchange(true) ? UCS_LOG_LEVEL_DIAG : UCS_LOG_LEVEL_WARN,
                     "over NICs Gaudi memory goes through host memory");
    const bool registrable = exported.has_value() || md.dmabuf == UCS_YES; // which fails at the registration
    known.set_registrable(device_index, registrable);
    return registrable;
}

// Where NICs are, and none of them takes DMA-BUFs, what goes over them is copied: that is said once.
void warn_of_staging(uct_gaudi_copy_md_t& md) {
    if (md.dmabuf == UCS_NO || !library_exports() || md.module->told_of_nics.exchange(true))
        return;
    const auto nics = gaudi::list_nics();
    const auto usable = [](const auto& nic) { return nic.active && !nic.of_gaudi; };
    if (nics && std::any_of(nics->begin(), nics->end(), usable) && !any_nic())
        gaudi_log(
            *md.module, WARN,
            "no NIC here registers DMA-BUFs (of those that are active, {} is the first): over NICs Gaudi "
            "memory goes through host memory (UCX_GAUDI_COPY_DMABUF=no says that this is known)",
            std::find_if(nics->begin(), nics->end(), usable)->name);
}

ucs_status_t uct_gaudi_copy_mem_alloc(uct_md_h tl_md, size_t* length_p, void** address_p,
                                      ucs_memory_type_t mem_type, ucs_sys_device_t sys_dev, unsigned flags,
                                      const char* name, uct_mem_h* memh_p) {
    return guarded([&]() -> ucs_status_t {
        auto& md = copy_md(tl_md);
        auto& module = *md.module;
        const auto level = level_of(flags);
        if (mem_type != UCS_MEMORY_TYPE_GAUDI)
            return UCS_ERR_UNSUPPORTED;
        if ((flags & UCT_MD_MEM_FLAG_FIXED) != 0) {
            gaudi_log_at(module, level,
                         "{} bytes of Gaudi memory at the fixed address {}: the driver places memory itself",
                         *length_p, fmt::ptr(*address_p));
            return UCS_ERR_UNSUPPORTED;
        }
        auto made = std::make_unique<uct_gaudi_memh_t>();
        auto device = device_for(md, sys_dev);
        if (!device)
            return failed(module, device.error(), level,
                          std::holds_alternative<gaudi::first_free>(md.choice)
                              ? "Gaudi memory"
                              : fmt::format("Gaudi memory (UCX_GAUDI_COPY_DEVICE={})", md.device_setting));
        if (md.heap_chunk != 0)
            (*device)->heap().set_chunk(md.heap_chunk);
        auto buffer = (*device)->heap().allocate_pages(*length_p);
        if (!buffer)
            return failed(module, buffer.error(), level, "Gaudi memory");
        if (md.dmabuf == UCS_YES)
            if (const auto exported = buffer->dmabuf(); !exported)
                return failed(module, exported.error(), level, "UCX_GAUDI_COPY_DMABUF=yes");
        made->key = memory_key::make(memory_key::device, buffer->address().value(), buffer->size());
        made->key.device_index = gaudi::known_memory().device_of(buffer->address()).value_or(0);
        made->key.generation = buffer->generation();
        made->key.seal();
        made->buffer = std::move(*buffer);
        made->device = std::move(*device);
        *address_p = reinterpret_cast<void*>(made->key.base);
        *length_p = made->key.length;
        warn_of_staging(md);
        module.counters.allocations.fetch_add(1, std::memory_order_relaxed);
        module.counters.allocated_bytes.fetch_add(made->key.length, std::memory_order_relaxed);
        gaudi_log(module, TRACE, "allocated {} bytes at {:#x} on device {} for {}", made->key.length,
                  made->key.base, made->key.device_index, name != nullptr ? name : "");
        *memh_p = made.release();
        return UCS_OK;
    });
}

ucs_status_t uct_gaudi_copy_mem_free(uct_md_h, uct_mem_h memh) {
    return guarded([&] {
        delete static_cast<uct_gaudi_memh_t*>(memh);
        return UCS_OK;
    });
}

// ---- questions about memory ----

// The DMA-BUF of the range, for whoever asked: UCX closes it.
ucs_status_t give_dmabuf(uct_gaudi_copy_md_t& md, gaudi::device& device, std::uint64_t address, size_t length,
                         uct_md_mem_attr_v2_t* attr) {
    attr->dmabuf_fd = UCT_DMABUF_FD_INVALID;
    attr->dmabuf_offset = 0;
    if (md.dmabuf == UCS_NO)
        return UCS_OK;
    if (const auto status = refuse_lost(*md.module, device, UCS_LOG_LEVEL_ERROR, "DMA-BUF of Gaudi memory");
        status != UCS_OK)
        return status;
    const auto exported = device.export_memory(gaudi::device_address(address), length);
    if (!exported) {
        const auto& why = exported.error();
        if (md.dmabuf == UCS_YES)
            return failed(*md.module, why, UCS_LOG_LEVEL_ERROR, "UCX_GAUDI_COPY_DMABUF=yes");
        // What is no memory at all is an error for everybody.
        if (const auto status = status_of(why); status == UCS_ERR_INVALID_ADDR)
            return failed(*md.module, why, UCS_LOG_LEVEL_DIAG, "no DMA-BUF");
        (void)failed(*md.module, why,
                     md.module->told_of_exports.exchange(true) ? UCS_LOG_LEVEL_DIAG : UCS_LOG_LEVEL_WARN,
                     "no DMA-BUF, so that no NIC reaches this memory");
        return UCS_OK;
    }
    md.module->counters.exports.fetch_add(1, std::memory_order_relaxed);
    attr->dmabuf_offset = exported->offset;
    if ((attr->field_mask & UCT_MD_MEM_ATTR_V2_FIELD_DMABUF_FD) != 0)
        attr->dmabuf_fd = exported->fd;
    else
        ::close(exported->fd);
    return UCS_OK;
}

ucs_status_t uct_gaudi_copy_mem_query(uct_md_h tl_md, const void* pointer, size_t length,
                                      uct_md_mem_attr_v2_t* attr) {
    return guarded([&]() -> ucs_status_t {
        auto& md = copy_md(tl_md);
        const auto address = number(pointer);
        const auto where = locate_or_attach(md, address);
        if (!where.device)
            return UCS_ERR_INVALID_ADDR;
        const auto mask = attr->field_mask;
        // Freed memory is still no host memory: the type is right for every address of a device.
        attr->mem_type = UCS_MEMORY_TYPE_GAUDI;
        attr->sys_dev = sys_device(md, where.index);
        if ((mask & UCT_MD_MEM_ATTR_V2_FIELD_MEM_FLAGS) != 0)
            attr->mem_flags = is_registrable(md, where.index, address) ? UCS_MEM_FLAG_REGISTRABLE : 0;
        if ((mask & (UCT_MD_MEM_ATTR_V2_FIELD_BASE_ADDRESS | UCT_MD_MEM_ATTR_V2_FIELD_ALLOC_LENGTH)) != 0) {
            const auto known = gaudi::known_memory().find(gaudi::device_address(address));
            const auto base = known ? known->base.value() : address;
            const auto size = known ? known->length : length;
            if ((mask & UCT_MD_MEM_ATTR_V2_FIELD_BASE_ADDRESS) != 0)
                attr->base_address = reinterpret_cast<void*>(base);
            if ((mask & UCT_MD_MEM_ATTR_V2_FIELD_ALLOC_LENGTH) != 0)
                attr->alloc_length = size;
        }
        if ((mask & (UCT_MD_MEM_ATTR_V2_FIELD_DMABUF_FD | UCT_MD_MEM_ATTR_V2_FIELD_DMABUF_OFFSET)) == 0)
            return UCS_OK;
        auto device = gaudi::find_open_device(where.index);
        if (!device)
            return UCS_ERR_INVALID_ADDR;
        const auto status = give_dmabuf(md, *device, address, length, attr);
        if (status == UCS_OK || !was_let_go(device) || !attach_again(md, address))
            return status;
        device = gaudi::find_open_device(locate(address).index);
        return device ? give_dmabuf(md, *device, address, length, attr) : UCS_ERR_INVALID_ADDR;
    });
}

ucs_status_t uct_gaudi_copy_detect_memory_type(uct_md_h tl_md, const void* pointer, size_t,
                                               ucs_memory_type_t* mem_type_p) {
    return guarded([&]() -> ucs_status_t {
        if (!locate_or_attach(copy_md(tl_md), number(pointer)).device)
            return UCS_ERR_INVALID_ADDR;
        *mem_type_p = UCS_MEMORY_TYPE_GAUDI;
        return UCS_OK;
    });
}

// ---- opening and closing ----

std::string statistics_line(const uct_gaudi_module& module) {
    const auto& counted = module.counters;
    return fmt::format(
        "gaudi_copy: {} allocations, {} bytes; {} registrations; {} DMA-BUFs given; staged {} bytes by "
        "short, "
        "{} by bcopy, {} by zcopy operations, {} of them by a NIC in loopback, {} by gaudi_dma; {} frees "
        "announced",
        counted.allocations.load(), counted.allocated_bytes.load(), counted.registrations.load(),
        counted.exports.load(), counted.short_bytes.load(), counted.bcopy_bytes.load(),
        counted.zcopy_bytes.load(), counted.loopback_bytes.load(), counted.dma_bytes.load(),
        counted.frees_announced.load());
}

void uct_gaudi_copy_md_close(uct_md_h tl_md) {
    auto* md = &copy_md(tl_md);
    if (md->statistics) // asked for, whatever the log level
        (void)guarded([&] {
            md->module->write(UCS_LOG_LEVEL_PRINT, __FILE__, __LINE__, "uct_gaudi_copy_md_close",
                              statistics_line(*md->module));
            return UCS_OK;
        });
    delete md;
}

uct_md_ops_t md_ops = {
    .close = uct_gaudi_copy_md_close,
    .query = uct_gaudi_copy_md_query,
    .mem_alloc = uct_gaudi_copy_mem_alloc,
    .mem_free = uct_gaudi_copy_mem_free,
    .mem_advise = [](uct_md_h, uct_mem_h, void*, size_t, unsigned) { return UCS_ERR_UNSUPPORTED; },
    .mem_reg = uct_gaudi_copy_mem_reg,
    .mem_dereg = uct_gaudi_copy_mem_dereg,
    .mem_query = uct_gaudi_copy_mem_query,
    .mkey_pack = uct_gaudi_copy_mkey_pack,
    .mem_attach = uct_gaudi_copy_mem_attach,
    .detect_memory_type = uct_gaudi_copy_detect_memory_type,
    .mem_elem_pack = [] { return UCS_ERR_UNSUPPORTED; },
    .mem_elem_release = [] {},
};

ucs_status_t uct_gaudi_copy_md_open(uct_component_t* component, const char*, const uct_md_config_t* tl_config,
                                    uct_md_h* md_p) {
    return guarded([&]() -> ucs_status_t {
        auto& module = module_of(component);
        auto made = std::make_unique<uct_gaudi_copy_md_t>();
        made->super = {&md_ops, component};
        made->module = &module;
        const auto wrong =
            apply_copy_settings(*made, *reinterpret_cast<const uct_gaudi_copy_md_config_t*>(tl_config));
        if (!wrong.empty()) {
            gaudi_log(module, ERROR, "{}", wrong);
            return UCS_ERR_INVALID_PARAM;
        }
        made->attached = gaudi::attach_devices();
        module.holders.add(made->opened);
        publisher::start(module);
        *md_p = &made.release()->super;
        return UCS_OK;
    });
}

void show_counter(void*, ucs_string_buffer_t* text, void* arg, uint64_t) {
    // The only function of UCX that is called without a module at hand: the argument is it.
    const auto* module = static_cast<const uct_gaudi_module*>(arg);
    (void)guarded([&] {
        module->ucx.ucs_string_buffer_appendf(text, "%s\n", statistics_line(*module).c_str());
        return UCS_OK;
    });
}

void show_devices(void*, ucs_string_buffer_t* text, void* arg, uint64_t) {
    const auto* module = static_cast<const uct_gaudi_module*>(arg);
    (void)guarded([&] {
        for (unsigned index = 0; index < uct_gaudi_module::most_devices; ++index)
            if (const auto device = gaudi::find_open_device(index)) {
                const auto held = device->heap().statistics();
                module->ucx.ucs_string_buffer_appendf(
                    text, "%u %s: %lu bytes in %lu buffers, %lu chunks, %lu exported\n", index,
                    device->info().bus_id.c_str(), held.buffer_bytes, held.buffers, held.chunks,
                    held.exports);
                if (const auto engine = device->copies_in_use())
                    for (const auto& queue : engine->queues())
                        module->ucx.ucs_string_buffer_appendf(
                            text, "  queue %u: %lu bytes, busy for %.3f ms, %u packets on it\n", queue.queue,
                            queue.bytes, static_cast<double>(queue.busy_ns) / 1e6, queue.depth);
            }
        return UCS_OK;
    });
}

void uct_gaudi_copy_md_vfs_init(uct_md_h tl_md) {
    auto& module = *copy_md(tl_md).module;
    module.ucx.ucs_vfs_obj_add_ro_file(tl_md, show_counter, &module, 0, "counters");
    module.ucx.ucs_vfs_obj_add_ro_file(tl_md, show_devices, &module, 0, "devices");
}

} // namespace

located locate(std::uint64_t address) {
    const auto index = gaudi::known_memory().device_of(gaudi::device_address(address));
    return index ? located{true, *index} : located{};
}

bool was_let_go(std::shared_ptr<gaudi::device>& device) {
    if (!device || !device->attached() || !device->lost())
        return false;
    device.reset();
    return true;
}

bool attach_again(uct_gaudi_copy_md_t& md, std::uint64_t address) {
    {
        const std::lock_guard guard(md.mutex);
        std::erase_if(md.attached, [](const auto& each) { return each->lost(); });
    }
    return attach_late(md, address) && locate(address).device;
}

located locate_or_attach(uct_gaudi_copy_md_t& md, std::uint64_t address) {
    auto where = locate(address);
    if (!where.device && attach_late(md, address))
        where = locate(address);
    return where;
}

bool in_device_space(std::uint64_t address) {
    const auto spaces = gaudi::address_spaces();
    return std::any_of(spaces.begin(), spaces.end(),
                       [&](const auto& space) { return address - space.base.value() < space.size; });
}

void fill_copy_component(uct_gaudi_module& module) {
    auto& component = module.copy_component();
    component = {};
    std::strcpy(component.name, "gaudi_copy");
    component.query_md_resources = query_if_any_gaudi;
    component.md_open = uct_gaudi_copy_md_open;
    component.cm_open = [](uct_component_t*, uct_worker_h, const uct_cm_config_t*, uct_cm_h*) {
        return UCS_ERR_UNSUPPORTED;
    };
    component.rkey_unpack = uct_gaudi_copy_rkey_unpack;
    component.rkey_ptr = uct_gaudi_copy_rkey_ptr;
    component.rkey_release = uct_gaudi_copy_rkey_release;
    component.rkey_compare = uct_gaudi_copy_rkey_compare;
    component.md_config.name = "Gaudi copy memory domain";
    component.md_config.prefix = "GAUDI_COPY_";
    component.md_config.table = copy_md_settings(module.ucx);
    component.md_config.size = sizeof(uct_gaudi_copy_md_config_t);
    component.cm_config.name = "";
    component.cm_config.prefix = "";
    component.tl_list = {&component.tl_list, &component.tl_list};
    component.md_vfs_init = uct_gaudi_copy_md_vfs_init;
}

} // namespace gaudi_ucx
