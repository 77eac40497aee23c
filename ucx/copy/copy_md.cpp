// SPDX-License-Identifier: BSD-3-Clause
// The memory domain gaudi_copy: opening, query, statistics. Its memory is in copy_mem.cpp.
#include "ucx/copy/copy_md.hpp"

#include "ucx/base/component.hpp"
#include "ucx/base/publisher.hpp"
#include "ucx/base/settings.hpp"

#include <algorithm>
#include <cstring>

namespace gaudi_ucx {

bool library_exports() {
    static const bool found = [] {
        // Where hl-thunk is missing there is no Gaudi, and the answer does not matter.
        const auto driver = gaudi::loaded_driver();
        return !driver || std::find(driver->missing.begin(), driver->missing.end(),
                                    "hlthunk_device_mapped_memory_export_dmabuf_fd") == driver->missing.end();
    }();
    return found;
}

namespace {

ucs_status_t uct_gaudi_copy_md_query(uct_md_h tl_md, uct_md_attr_v2_t* attr) {
    return no_throw([&] {
        const auto& md = copy_md(tl_md);
        md.module->ucx.uct_md_base_md_query(attr);
        constexpr std::uint64_t gaudi_type = 1ULL << UCS_MEMORY_TYPE_GAUDI,
                                host = 1ULL << UCS_MEMORY_TYPE_HOST;
        // Staging buffers are passed with a memory handle, and stay pinned.
        attr->flags = UCT_MD_FLAG_ALLOC | UCT_MD_FLAG_REG | UCT_MD_FLAG_NEED_MEMH;
        attr->reg_mem_types = host | gaudi_type;
        // Without host memory here no worker finds a path between memory types.
        attr->access_mem_types = host | gaudi_type;
        attr->alloc_mem_types = gaudi_type;
        attr->detect_mem_types = gaudi_type;
        attr->cache_mem_types = gaudi_type;
        const bool exports = md.dmabuf == UCS_YES || (md.dmabuf != UCS_NO && library_exports());
        attr->dmabuf_mem_types = exports ? gaudi_type : 0;
        attr->max_alloc = SIZE_MAX;
        attr->rkey_packed_size = sizeof(memory_key);
        // As the benchmark measures it: registration makes a key; memory is pinned at its first use.
        attr->reg_cost = {110e-9, 0};
        return UCS_OK;
    });
}

std::string statistics_line(const uct_gaudi_module& module) {
    const auto& counted = module.counters;
    return fmt::format(
        "gaudi_copy: {} allocations, {} bytes; {} registrations; {} DMA-BUFs exported; staged {} bytes by "
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
    if (md->statistics) // requested by a setting: printed at any log level
        (void)no_throw([&] {
            md->module->write(UCS_LOG_LEVEL_PRINT, __FILE__, __LINE__, "uct_gaudi_copy_md_close",
                              statistics_line(*md->module));
            return UCS_OK;
        });
    delete md;
}

void show_counter(void*, ucs_string_buffer_t* text, void* arg, uint64_t) {
    // UCX passes no module to this function: the argument is the module.
    const auto* module = static_cast<const uct_gaudi_module*>(arg);
    (void)no_throw([&] {
        module->ucx.ucs_string_buffer_appendf(text, "%s\n", statistics_line(*module).c_str());
        return UCS_OK;
    });
}

void show_devices(void*, ucs_string_buffer_t* text, void* arg, uint64_t) {
    const auto* module = static_cast<const uct_gaudi_module*>(arg);
    (void)no_throw([&] {
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

ucs_status_t uct_gaudi_copy_rkey_release(uct_component_t*, uct_rkey_t rkey, void*) {
    delete reinterpret_cast<memory_key*>(rkey);
    return UCS_OK;
}

ucs_status_t uct_gaudi_copy_rkey_compare(uct_component_t*, uct_rkey_t first, uct_rkey_t second,
                                         const uct_rkey_compare_params_t*, int* result) {
    *result = std::memcmp(reinterpret_cast<const void*>(first), reinterpret_cast<const void*>(second),
                          sizeof(memory_key));
    return UCS_OK;
}

uct_md_ops_t* md_ops() {
    static uct_md_ops_t ops = [] {
        uct_md_ops_t made{};
        made.close = uct_gaudi_copy_md_close;
        made.query = uct_gaudi_copy_md_query;
        fill_mem_ops(made);
        return made;
    }();
    return &ops;
}

ucs_status_t uct_gaudi_copy_md_open(uct_component_t* component, const char*, const uct_md_config_t* tl_config,
                                    uct_md_h* md_p) {
    return no_throw([&]() -> ucs_status_t {
        auto& module = module_of(component);
        auto made = std::make_unique<uct_gaudi_copy_md_t>();
        made->super = {md_ops(), component};
        made->module = &module;
        const auto wrong =
            apply_copy_settings(*made, *reinterpret_cast<const uct_gaudi_copy_md_config_t*>(tl_config));
        if (!wrong.empty())
            return refuse_setting(module, wrong);
        made->attached.attach();
        module.loss.add(made->opened);
        // Last: it tells UCX of memory, which UCX may query at once.
        publisher::start(module);
        *md_p = &made.release()->super;
        return UCS_OK;
    });
}

} // namespace

void register_copy_md(uct_gaudi_module& module) {
    register_component(module, module.copy_component(), "gaudi_copy",
                       {"Gaudi copy memory domain", "GAUDI_COPY_", copy_md_settings(module.ucx),
                        sizeof(uct_gaudi_copy_md_config_t)},
                       {uct_gaudi_copy_md_open, uct_gaudi_copy_rkey_unpack, uct_gaudi_copy_rkey_release,
                        uct_gaudi_copy_rkey_compare, uct_gaudi_copy_md_vfs_init});
}

} // namespace gaudi_ucx
