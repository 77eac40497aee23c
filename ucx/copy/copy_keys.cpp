// SPDX-License-Identifier: BSD-3-Clause
// Registration and keys of gaudi_copy.
#include "ucx/copy/copy_keys.hpp"

#include <cstring>

namespace gaudi_ucx {
namespace {

// A copy of the key that has been checked, or the reason as a status.
ucs_status_t take_key(uct_gaudi_module& module, const void* buffer, ucs_log_level_t level, memory_key& key) {
    std::memcpy(&key, buffer, sizeof(key));
    const auto fault = key.fault();
    if (fault.empty())
        return UCS_OK;
    gaudi_log_at(module, level, "{}: magic {:#x}, version {}, expected {:#x} and {}", fault, key.magic,
                 key.version, memory_key::magic_value, memory_key::current_version);
    return UCS_ERR_INVALID_PARAM;
}

// Not what fits into the engine's own slab.
bool worth_pinning(const uct_iov_t& iov) {
    constexpr std::size_t slab = 16 * 1024;
    const auto* memh = static_cast<const uct_gaudi_memh_t*>(iov.memh);
    return memh != UCT_MEM_HANDLE_NULL && !memh->is_device() && iov.length > slab;
}

} // namespace

// Errors of a call that was told to be quiet are details.
ucs_log_level_t level_of(std::uint64_t flags) {
    return (flags & UCT_MD_MEM_FLAG_HIDE_ERRORS) != 0 ? UCS_LOG_LEVEL_DIAG : UCS_LOG_LEVEL_ERROR;
}

ucs_status_t failed(uct_gaudi_module& module, const gaudi::error& error, ucs_log_level_t level,
                    std::string_view doing) {
    gaudi_log_at(module, level, "{}: {}", doing, error.message());
    return status_of(error);
}

// Nothing of a device that was reset is worth moving, and the DMA-BUFs that were exported before still open:
// UCX is told so here, where it takes an error. A copy that failed would end its process.
ucs_status_t refuse_lost(uct_gaudi_module& module, const gaudi::device& device, ucs_log_level_t level,
                         std::string_view doing) {
    if (!device.lost())
        return UCS_OK;
    return failed(module, gaudi::error(gaudi::errc::device_lost, device.info().bus_id), level, doing);
}

ucs_status_t uct_gaudi_copy_mem_reg(uct_md_h tl_md, void* address, size_t length,
                                    const uct_md_mem_reg_params_t* params, uct_mem_h* memh_p) {
    return guarded([&]() -> ucs_status_t {
        auto& md = copy_md(tl_md);
        const auto flags = (params->field_mask & UCT_MD_MEM_REG_FIELD_FLAGS) != 0 ? params->flags : 0;
        if (length > UINT64_MAX - number(address)) {
            gaudi_log_at(*md.module, level_of(flags),
                         "registration of {} bytes at {}: they pass the end of all addresses", length,
                         fmt::ptr(address));
            return UCS_ERR_INVALID_PARAM;
        }
        const auto where = locate_or_attach(md, number(address));
        auto made = std::make_unique<uct_gaudi_memh_t>();
        made->key =
            memory_key::make(where.device ? memory_key::device : memory_key::host, number(address), length);
        if (where.device) {
            made->key.device_index = where.index;
            const auto device = gaudi::find_open_device(where.index);
            if (device)
                if (const auto status =
                        refuse_lost(*md.module, *device, level_of(flags), "registration of Gaudi memory");
                    status != UCS_OK)
                    return status;
            if (device && !device->attached()) {
                const auto known =
                    gaudi::known_memory().find_pages(gaudi::device_address(number(address)), length);
                if (!known)
                    return failed(*md.module, known.error(), level_of(flags), "registration of Gaudi memory");
                made->key.generation = gaudi::known_memory().newest_generation(); // of all that is there now
            }
        }
        made->key.seal();
        md.module->counters.registrations.fetch_add(1, std::memory_order_relaxed);
        *memh_p = made.release();
        return UCS_OK;
    });
}

ucs_status_t uct_gaudi_copy_mem_dereg(uct_md_h, const uct_md_mem_dereg_params_t* params) {
    return guarded([&]() -> ucs_status_t {
        if ((params->field_mask & UCT_MD_MEM_DEREG_FIELD_MEMH) == 0 || params->memh == nullptr)
            return UCS_ERR_INVALID_PARAM;
        if ((params->field_mask & UCT_MD_MEM_DEREG_FIELD_FLAGS) != 0 &&
            (params->flags & UCT_MD_MEM_DEREG_FLAG_INVALIDATE) != 0)
            return UCS_ERR_UNSUPPORTED;
        delete static_cast<uct_gaudi_memh_t*>(params->memh);
        return UCS_OK;
    });
}

ucs_status_t uct_gaudi_copy_mkey_pack(uct_md_h, uct_mem_h memh, void*, size_t,
                                      const uct_md_mkey_pack_params_t*, void* buffer) {
    std::memcpy(buffer, &static_cast<uct_gaudi_memh_t*>(memh)->key, sizeof(memory_key));
    return UCS_OK;
}

ucs_status_t uct_gaudi_copy_mem_attach(uct_md_h tl_md, const void* mkey_buffer,
                                       uct_md_mem_attach_params_t* params, uct_mem_h* memh_p) {
    return guarded([&]() -> ucs_status_t {
        auto& module = *copy_md(tl_md).module;
        const bool quiet = (params->field_mask & UCT_MD_MEM_ATTACH_FIELD_FLAGS) != 0 &&
                           (params->flags & UCT_MD_MEM_ATTACH_FLAG_HIDE_ERRORS) != 0;
        const auto level = quiet ? UCS_LOG_LEVEL_DEBUG : UCS_LOG_LEVEL_ERROR;
        if ((params->field_mask & UCT_MD_MEM_ATTACH_FIELD_MKEY_SIZE) != 0 &&
            params->mkey_size < sizeof(memory_key)) {
            gaudi_log_at(module, level, "a key of {} bytes; keys of Gaudi memory have {}", params->mkey_size,
                         sizeof(memory_key));
            return UCS_ERR_INVALID_PARAM;
        }
        auto made = std::make_unique<uct_gaudi_memh_t>();
        if (const auto status = take_key(module, mkey_buffer, level, made->key); status != UCS_OK)
            return status;
        if (!made->key.valid_in_this_process()) {
            gaudi_log_at(module, level,
                         "memory of process {} cannot be attached here: gaudi_copy works within a process",
                         made->key.pid);
            return UCS_ERR_UNREACHABLE;
        }
        if (const auto& key = made->key; key.kind == memory_key::device && key.generation != 0) {
            const auto live = gaudi::known_memory().find_pages(gaudi::device_address(key.base), key.length);
            if (!live || live->generation > key.generation) {
                gaudi_log_at(module, level, "{} bytes at {:#x} cannot be attached: the memory was freed",
                             key.length, key.base);
                return UCS_ERR_INVALID_PARAM;
            }
        }
        *memh_p = made.release();
        return UCS_OK;
    });
}

ucs_status_t uct_gaudi_copy_rkey_unpack(uct_component_t* component, const void* rkey_buffer,
                                        const uct_rkey_unpack_params_t*, uct_rkey_t* rkey_p,
                                        void** handle_p) {
    return guarded([&]() -> ucs_status_t {
        auto key = std::make_unique<memory_key>();
        const auto status = take_key(module_of(component), rkey_buffer, UCS_LOG_LEVEL_ERROR, *key);
        if (status != UCS_OK)
            return status;
        *handle_p = nullptr;
        *rkey_p = reinterpret_cast<uct_rkey_t>(key.release());
        return UCS_OK;
    });
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

ucs_status_t uct_gaudi_copy_rkey_ptr(uct_component_t*, uct_rkey_t, void*, uint64_t, void**) {
    return UCS_ERR_UNSUPPORTED; // no CPU reaches HBM
}

void keep_pinned(uct_gaudi_module& module, const uct_iov_t& iov, unsigned device, gaudi::copier& copies) {
    if (!worth_pinning(iov))
        return;
    auto& memh = *static_cast<uct_gaudi_memh_t*>(iov.memh);
    if (memh.among.load(std::memory_order_relaxed) ==
        nullptr) { // not under our lock: they call us under theirs
        module.holders.add(memh);
        memh.among = &module.holders;
    }
    const std::lock_guard guard(memh.mutex);
    auto& known = memh.pins[device];
    if (!known.engine.expired())
        return; // pinned, or tried in vain: one try an engine
    known = {};
    const auto engine = copies.engine_of(device);
    if (!engine)
        return; // the copy will say why
    auto made =
        gaudi::copy_engine(*engine).pin({reinterpret_cast<std::byte*>(memh.key.base), memh.key.length});
    known.engine = engine->core();
    if (made)
        known.memory = std::move(*made);
}

void uct_gaudi_memh_t::let_go_of_lost() {
    const std::lock_guard guard(mutex);
    std::erase_if(pins, [](const auto& each) {
        const auto core = each.second.engine.lock();
        return !core || gaudi::copy_engine(core).lost();
    });
}

ucs_status_t check_key(uct_gaudi_module& module, uct_rkey_t rkey, std::uint64_t address, std::size_t length) {
    if (rkey == UCT_INVALID_RKEY) // UCX's own copies: the address alone counts, and the engine looks at it
        return UCS_OK;
    const auto& key = *reinterpret_cast<const memory_key*>(rkey);
    const auto refuse = [&](std::string_view why) {
        gaudi_log(module, ERROR, "{} bytes at {:#x}: {} (key for {} bytes at {:#x} of process {})", length,
                  address, why, key.length, key.base, key.pid);
        return UCS_ERR_INVALID_PARAM;
    };
    if (!key.valid_in_this_process())
        return refuse("the key is another process's");
    if (address < key.base || length > key.length || address - key.base > key.length - length)
        return refuse("the key does not reach there");
    if (key.kind == memory_key::device && key.generation != 0) {
        const auto live = gaudi::known_memory().find(gaudi::device_address(address));
        if (!live)
            return refuse("the memory was freed");
        if (live->generation >
            key.generation) // not there when it was registered, it or a neighbour in its page
            return refuse("the memory was freed and belongs to another allocation");
    }
    return UCS_OK;
}

} // namespace gaudi_ucx
