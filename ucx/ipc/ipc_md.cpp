// SPDX-License-Identifier: BSD-3-Clause
// The memory domain of gaudi_ipc. Registration shares nothing; packing a key does. Keys that UCX may
// invalidate have a handle of their own, all others of one allocation share one.
#include "ucx/ipc/ipc_md.hpp"

#include <gaudi/device.hpp>

#include "ucx/base/component.hpp"
#include "ucx/base/memory.hpp"
#include "ucx/base/operations.hpp"
#include "ucx/base/publisher.hpp"
#include "ucx/base/settings.hpp"

#include <cstring>

namespace gaudi_ucx {
namespace {

struct uct_gaudi_ipc_md_config_t {
    uct_md_config_t super;
    char* give;
    char* allow;
    unsigned imports;
    int statistics;
};

// Registered memory, with the handles in the keys that were packed of it.
struct uct_gaudi_ipc_memh_t {
    shared_handles::memory memory;
    std::mutex mutex;
    bool uses_common = false;      // of the domain's shared_handles
    gaudi::memory_handle separate; // in keys that UCX may invalidate
};

// As sent to the peer: the handle, and the address at which it begins in the owner.
struct ipc_key {
    gaudi::memory_handle handle;
    std::uint64_t base;
};

ucs_status_t uct_gaudi_ipc_md_query(uct_md_h tl_md, uct_md_attr_v2_t* attr) {
    ipc_md(tl_md).module->ucx.uct_md_base_md_query(attr);
    constexpr std::uint64_t gaudi_type = 1ULL << UCS_MEMORY_TYPE_GAUDI;
    attr->flags =
        UCT_MD_FLAG_REG | UCT_MD_FLAG_NEED_RKEY | UCT_MD_FLAG_INVALIDATE | UCT_MD_FLAG_INVALIDATE_RMA;
    // Only device memory is shared; host memory is the local side of a copy and needs no registration.
    attr->reg_mem_types = gaudi_type;
    attr->cache_mem_types = gaudi_type;
    // Host memory works as well. If it were listed here, UCX would compare this transport with those for host
    // memory, and would not select it for Gaudi memory.
    attr->access_mem_types = gaudi_type;
    attr->rkey_packed_size = sizeof(ipc_key);
    return UCS_OK;
}

ucs_status_t uct_gaudi_ipc_mem_reg(uct_md_h tl_md, void* address, size_t length,
                                   const uct_md_mem_reg_params_t* params, uct_mem_h* memh_p) {
    return no_throw([&]() -> ucs_status_t {
        auto& module = *ipc_md(tl_md).module;
        const auto flags = (params->field_mask & UCT_MD_MEM_REG_FIELD_FLAGS) != 0 ? params->flags : 0;
        const auto at = gaudi::device_address(number(address));
        auto made = std::make_unique<uct_gaudi_ipc_memh_t>();
        const auto known = gaudi::known_memory().find_pages(at, length);
        const auto pool = gaudi::known_memory().window_at(at);
        const auto device = pool ? gaudi::find_open_device(pool->device_index) : nullptr;
        if (known) {
            made->memory = {known->base, known->length, known->generation};
        } else if (device && device->attached()) { // SynapseAI's: its allocations are not known
            made->memory = {at, length, 0};
        } else {
            return failed(module, known.error(), level_of(flags), "registration for other processes");
        }
        *memh_p = made.release();
        return UCS_OK;
    });
}

ucs_status_t uct_gaudi_ipc_mem_dereg(uct_md_h tl_md, const uct_md_mem_dereg_params_t* params) {
    return no_throw([&]() -> ucs_status_t {
        if ((params->field_mask & UCT_MD_MEM_DEREG_FIELD_MEMH) == 0 || params->memh == nullptr)
            return UCS_ERR_INVALID_PARAM;
        const std::unique_ptr<uct_gaudi_ipc_memh_t> gone(static_cast<uct_gaudi_ipc_memh_t*>(params->memh));
        auto& md = ipc_md(tl_md);
        auto status = UCS_OK;
        const auto expect_no_copies = [&](const gaudi::result<void>& ended) {
            if (ended || ended.error().code() != gaudi::errc::leased)
                return;
            gaudi_log(*md.module, ERROR, "deregistration of memory: {}", ended.error().message());
            status = UCS_ERR_TIMED_OUT;
        };
        // Both wait for copies in flight: after deregistration UCX may free the memory.
        if (gaudi::is_shared(gone->separate))
            expect_no_copies(gaudi::revoke_handle(gone->separate));
        if (gone->uses_common)
            expect_no_copies(md.handles.release(gone->memory));
        const bool invalidate = (params->field_mask & UCT_MD_MEM_DEREG_FIELD_FLAGS) != 0 &&
                                (params->flags & UCT_MD_MEM_DEREG_FLAG_INVALIDATE) != 0;
        if (invalidate && (params->field_mask & UCT_MD_MEM_DEREG_FIELD_COMPLETION) != 0)
            complete(params->comp, status);
        return UCS_OK;
    });
}

ucs_status_t uct_gaudi_ipc_mkey_pack(uct_md_h tl_md, uct_mem_h tl_memh, void*, size_t,
                                     const uct_md_mkey_pack_params_t* params, void* buffer) {
    return no_throw([&]() -> ucs_status_t {
        auto& memh = *static_cast<uct_gaudi_ipc_memh_t*>(tl_memh);
        const bool separate = params != nullptr && (params->field_mask & UCT_MD_MKEY_PACK_FIELD_FLAGS) != 0 &&
                              (params->flags & UCT_MD_MKEY_PACK_FLAG_INVALIDATE_RMA) != 0;
        const std::lock_guard guard(memh.mutex);
        auto handle = gaudi::result<gaudi::memory_handle>(memh.separate);
        if (!separate)
            handle = ipc_md(tl_md).handles.acquire(memh.memory, memh.uses_common);
        else if (!gaudi::is_shared(memh.separate)) // the first key, or the owner has revoked the handle
            handle = gaudi::share_separately(memh.memory.base, memh.memory.length);
        if (!handle)
            return failed(*ipc_md(tl_md).module, handle.error(), UCS_LOG_LEVEL_ERROR, "sharing memory");
        if (separate)
            memh.separate = *handle;
        const ipc_key key{*handle, memh.memory.base.value()};
        std::memcpy(buffer, &key, sizeof(key));
        return UCS_OK;
    });
}

ucs_status_t uct_gaudi_ipc_rkey_unpack(uct_component_t* component, const void* buffer,
                                       const uct_rkey_unpack_params_t*, uct_rkey_t* rkey_p, void** handle_p) {
    return no_throw([&]() -> ucs_status_t {
        ipc_key key;
        std::memcpy(&key, buffer, sizeof(key));
        // The bytes are a peer's. Opening is left to the first use, because it asks the owner.
        if (const auto valid = gaudi::check_handle(key.handle); !valid)
            return failed(module_of(component), valid.error(), UCS_LOG_LEVEL_ERROR, "key of gaudi_ipc");
        auto made = std::make_unique<uct_gaudi_ipc_rkey_t>();
        made->handle = key.handle;
        made->base = key.base;
        *handle_p = nullptr;
        *rkey_p = reinterpret_cast<uct_rkey_t>(made.release());
        return UCS_OK;
    });
}

ucs_status_t uct_gaudi_ipc_rkey_release(uct_component_t*, uct_rkey_t rkey, void*) {
    return no_throw([&] {
        delete reinterpret_cast<uct_gaudi_ipc_rkey_t*>(rkey);
        return UCS_OK;
    });
}

ucs_status_t uct_gaudi_ipc_rkey_compare(uct_component_t*, uct_rkey_t first, uct_rkey_t second,
                                        const uct_rkey_compare_params_t*, int* result) {
    const auto& one = reinterpret_cast<const uct_gaudi_ipc_rkey_t*>(first)->handle.bytes;
    const auto& other = reinterpret_cast<const uct_gaudi_ipc_rkey_t*>(second)->handle.bytes;
    *result = std::memcmp(one.data(), other.data(), one.size());
    return UCS_OK;
}

std::string statistics_line(const uct_gaudi_module& module) {
    const auto counted = gaudi::process_statistics().ipc;
    std::string paths;
    for (std::size_t i = 0; i < gaudi::copy_paths; ++i)
        paths += fmt::format("{}{} {}", paths.empty() ? "" : ", ",
                             gaudi::name_of(static_cast<gaudi::copy_path>(i)),
                             module.counters.ipc_bytes[i].load());
    return fmt::format(
        "gaudi_ipc: {} allocations shared now, {} leases granted in total; {} imports, {} hits, {} misses, "
        "{} evicted; bytes that this process moved, by path: {}",
        counted.shared, counted.leases_given, counted.imports, counted.hits, counted.misses, counted.evicted,
        paths);
}

void uct_gaudi_ipc_md_close(uct_md_h tl_md) {
    auto* md = &ipc_md(tl_md);
    if (md->statistics) // requested by a setting: printed at any log level
        (void)no_throw([&] {
            md->module->write(UCS_LOG_LEVEL_PRINT, __FILE__, __LINE__, "uct_gaudi_ipc_md_close",
                              statistics_line(*md->module));
            return UCS_OK;
        });
    delete md;
}

void show_counters(void*, ucs_string_buffer_t* text, void* arg, uint64_t) {
    const auto* module = static_cast<const uct_gaudi_module*>(arg);
    (void)no_throw([&] {
        module->ucx.ucs_string_buffer_appendf(text, "%s\n", statistics_line(*module).c_str());
        return UCS_OK;
    });
}

ucs_config_field_t* md_settings(const ucx_api& ucx) {
    const setting_types type(ucx);
    using config = uct_gaudi_ipc_md_config_t;
    return new ucs_config_field_t[]{
        // never freed: one table per UCX, until the process ends
        {"", "", nullptr, offsetof(config, super), type.table(*ucx.uct_md_config_table)},
        {"GIVE", "auto",
         "What this process passes to processes that open its memory:\n"
         "auto    - GAUDI_DIRECT_IPC_GIVE, or context if it is not set;\n"
         "context - the device's descriptor: its engines copy for them; they could do anything else with "
         "it;\n"
         "dmabuf  - a DMA-BUF of the memory, for their device or NIC;\n"
         "nothing - nothing: this process copies for them.",
         offsetof(config, give), type.string()},
        {"ALLOW", "",
         "Further users that are served, in addition to this process's own: numbers, separated by commas.",
         offsetof(config, allow), type.string()},
        {"IMPORTS", "256", "How many unused imports of other processes' memory are kept.",
         offsetof(config, imports), type.unsigned_number()},
        {"STATISTICS", "n", "Print which path memory took between processes when a memory domain is closed.",
         offsetof(config, statistics), type.boolean()},
        {nullptr, nullptr, nullptr, 0, {}}};
}

uct_md_ops_t md_ops = {
    .close = uct_gaudi_ipc_md_close,
    .query = uct_gaudi_ipc_md_query,
    .mem_alloc = [](uct_md_h, size_t*, void**, ucs_memory_type_t, ucs_sys_device_t, unsigned, const char*,
                    uct_mem_h*) { return UCS_ERR_UNSUPPORTED; },
    .mem_free = [](uct_md_h, uct_mem_h) { return UCS_ERR_UNSUPPORTED; },
    .mem_advise = [](uct_md_h, uct_mem_h, void*, size_t, unsigned) { return UCS_ERR_UNSUPPORTED; },
    .mem_reg = uct_gaudi_ipc_mem_reg,
    .mem_dereg = uct_gaudi_ipc_mem_dereg,
    .mem_query = [](uct_md_h, const void*, size_t, uct_md_mem_attr_v2_t*) { return UCS_ERR_UNSUPPORTED; },
    .mkey_pack = uct_gaudi_ipc_mkey_pack,
    .mem_attach = [](uct_md_h, const void*, uct_md_mem_attach_params_t*,
                     uct_mem_h*) { return UCS_ERR_UNSUPPORTED; },
    .detect_memory_type = [](uct_md_h, const void*, size_t,
                             ucs_memory_type_t*) { return UCS_ERR_UNSUPPORTED; },
    .mem_elem_pack = [] { return UCS_ERR_UNSUPPORTED; },
    .mem_elem_release = [] {},
};

ucs_status_t uct_gaudi_ipc_md_open(uct_component_t* component, const char*, const uct_md_config_t* tl_config,
                                   uct_md_h* md_p) {
    return no_throw([&]() -> ucs_status_t {
        auto& module = module_of(component);
        const auto& config = *reinterpret_cast<const uct_gaudi_ipc_md_config_t*>(tl_config);
        const bool as_the_library = std::string_view(config.give) == "auto";
        const auto refuse = [&](const std::string& why) {
            return refuse_setting(module, why + "; gaudi_ipc is not used");
        };
        if (const auto give = gaudi::parse_ipc(as_the_library ? "" : config.give, ""); !give)
            return refuse(
                fmt::format("UCX_GAUDI_IPC_GIVE={}: use auto, context, dmabuf or nothing", config.give));
        auto settings = gaudi::parse_ipc(as_the_library ? "" : config.give, config.allow);
        if (!settings)
            return refuse(fmt::format("UCX_GAUDI_IPC_ALLOW: {}", settings.error().observed()));
        if (as_the_library)
            settings = gaudi::get_ipc().map([&](gaudi::ipc_settings of_library) {
                if (*config.allow != 0)
                    of_library.allow = settings->allow;
                return of_library;
            });
        if (!settings) // an error in the library's own variables, which its message names
            return refuse(settings.error().observed());
        if (config.imports == 0)
            return refuse("UCX_GAUDI_IPC_IMPORTS=0: use 1 or more");
        auto chosen = *settings;
        chosen.imports = config.imports;
        // For the process: its broker and its imports serve every user of the library.
        gaudi::set_ipc(chosen);
        auto made = std::make_unique<uct_gaudi_ipc_md_t>();
        made->super = {&md_ops, component};
        made->module = &module;
        made->statistics = config.statistics != 0;
        publisher::start(module);
        *md_p = &made.release()->super;
        return UCS_OK;
    });
}

} // namespace

gaudi::result<gaudi::memory_handle> shared_handles::acquire(const memory& wanted, bool& used) {
    const std::lock_guard guard(mutex_);
    auto& entry = entries_[wanted];
    // The first use, or the handle was revoked with memory that was freed: the old handle opens nothing any
    // more.
    if (!gaudi::is_shared(entry.handle)) {
        auto handle = gaudi::share_separately(wanted.base, wanted.length);
        if (!handle) {
            if (entry.users == 0)
                entries_.erase(wanted);
            return handle;
        }
        entry.handle = *handle;
    }
    if (!used)
        ++entry.users;
    used = true;
    return entry.handle;
}

gaudi::result<void> shared_handles::release(const memory& registered) {
    gaudi::memory_handle last;
    {
        const std::lock_guard guard(mutex_);
        const auto entry = entries_.find(registered);
        if (entry == entries_.end() || --entry->second.users != 0)
            return {};
        last = entry->second.handle;
        entries_.erase(entry);
    }
    // Without the mutex: this may wait for copies. The handles of memory that was freed have ended already.
    return gaudi::is_shared(last) ? gaudi::revoke_handle(last) : gaudi::result<void>();
}

void register_ipc_md(uct_gaudi_module& module) {
    constexpr auto vfs_init = [](uct_md_h md) {
        auto& owner = *ipc_md(md).module;
        owner.ucx.ucs_vfs_obj_add_ro_file(md, show_counters, &owner, 0, "counters");
    };
    register_component(
        module, module.ipc_component(), "gaudi_ipc",
        {"Gaudi IPC memory domain", "GAUDI_IPC_", md_settings(module.ucx), sizeof(uct_gaudi_ipc_md_config_t)},
        {uct_gaudi_ipc_md_open, uct_gaudi_ipc_rkey_unpack, uct_gaudi_ipc_rkey_release,
         uct_gaudi_ipc_rkey_compare, vfs_init});
}

} // namespace gaudi_ucx
