// SPDX-License-Identifier: BSD-3-Clause
// Memory of gaudi_copy: allocation, registration, keys, and UCX's queries about addresses.
#include <gaudi/ipc.hpp>
#include <gaudi/nic.hpp>

#include "ucx/base/iface.hpp"
#include "ucx/base/publisher.hpp"
#include "ucx/copy/copy_md.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <unistd.h>

namespace gaudi_ucx {

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

void opened_devices::drop_lost() {
    const std::lock_guard guard(mutex_);
    std::erase_if(by_index_, [](const auto& each) { return each.second->lost(); });
}

namespace {

// ---- allocation ----

gaudi::result<std::shared_ptr<gaudi::device>> device_for(uct_gaudi_copy_md_t& md, ucs_sys_device_t wanted) {
    auto choice = md.choice;
    if (wanted != UCS_SYS_DEVICE_ID_UNKNOWN)
        for (unsigned index = 0; index < uct_gaudi_module::most_devices; ++index)
            if (md.module->sys_devices[index] == wanted)
                choice = gaudi::by_index{index};
    if (auto known = md.opened.find(choice)) // no driver call for a device that is open already
        return known;
    // The device may be lost and still held by what failed: opening it again needs all of that gone.
    md.module->loss.drop_lost();
    // One thread opens at a time: a second one would join or wait for what the first is about to offer.
    const std::lock_guard guard(md.opened.opening);
    auto made = gaudi::open_device(choice);
    // The process that has the device open may be about to offer it.
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
        // Fails for a device that another process offers, and for the first generation.
        if (const auto offered = gaudi::offer_device(**made); !offered)
            gaudi_log(*md.module, DEBUG, "{}", offered.error().message());
    return made;
}

// Warns once where there are NICs and none of them registers DMA-BUFs: messages over them are staged.
void warn_of_staging(uct_gaudi_copy_md_t& md) {
    if (md.dmabuf == UCS_NO || !library_exports() || md.module->warned_of_nics.exchange(true))
        return;
    const auto nics = gaudi::list_nics();
    const auto usable = [](const auto& nic) { return nic.active && !nic.of_gaudi; };
    if (nics && std::any_of(nics->begin(), nics->end(), usable) && !any_nic())
        gaudi_log(
            *md.module, WARN,
            "no NIC here registers DMA-BUFs (of those that are active, {} is the first): over NICs Gaudi "
            "memory goes through host memory (UCX_GAUDI_COPY_DMABUF=no silences this)",
            std::find_if(nics->begin(), nics->end(), usable)->name);
}

ucs_status_t uct_gaudi_copy_mem_alloc(uct_md_h tl_md, size_t* length_p, void** address_p,
                                      ucs_memory_type_t mem_type, ucs_sys_device_t sys_dev, unsigned flags,
                                      const char* name, uct_mem_h* memh_p) {
    return no_throw([&]() -> ucs_status_t {
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
        // Whole pages: UCX rounds what it registers, and a key to a page opens all of it (gotcha U3).
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
    return no_throw([&] {
        // The heap announces the free to UCX's caches before the bytes are used again.
        delete static_cast<uct_gaudi_memh_t*>(memh);
        return UCS_OK;
    });
}

// ---- registration and keys ----

// Refuses to register or export memory of a lost device here, where UCX accepts an error: DMA-BUFs that were
// exported before the reset still work, but a copy that fails later would end the process (gotcha U5).
ucs_status_t refuse_lost(uct_gaudi_module& module, const gaudi::device& device, ucs_log_level_t level,
                         std::string_view doing) {
    if (!device.lost())
        return UCS_OK;
    return failed(module, gaudi::error(gaudi::errc::device_lost, device.info().bus_id), level, doing);
}

// Copies the key and checks it; a status where it is invalid.
ucs_status_t read_key(uct_gaudi_module& module, const void* buffer, ucs_log_level_t level, memory_key& key) {
    std::memcpy(&key, buffer, sizeof(key));
    const auto fault = key.fault();
    if (fault.empty())
        return UCS_OK;
    gaudi_log_at(module, level, "{}: magic {:#x}, version {}, expected {:#x} and {}", fault, key.magic,
                 key.version, memory_key::magic_value, memory_key::current_version);
    return UCS_ERR_INVALID_PARAM;
}

ucs_status_t uct_gaudi_copy_mem_reg(uct_md_h tl_md, void* address, size_t length,
                                    const uct_md_mem_reg_params_t* params, uct_mem_h* memh_p) {
    return no_throw([&]() -> ucs_status_t {
        auto& md = copy_md(tl_md);
        const auto flags = (params->field_mask & UCT_MD_MEM_REG_FIELD_FLAGS) != 0 ? params->flags : 0;
        if (length > UINT64_MAX - number(address)) {
            gaudi_log_at(*md.module, level_of(flags),
                         "registration of {} bytes at {}: they pass the end of all addresses", length,
                         fmt::ptr(address));
            return UCS_ERR_INVALID_PARAM;
        }
        const auto where = md.attached.locate_or_attach(number(address));
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
            // SynapseAI's allocations are not known: only its window can be checked.
            if (device && !device->attached()) {
                const auto known =
                    gaudi::known_memory().find_pages(gaudi::device_address(number(address)), length);
                if (!known)
                    return failed(*md.module, known.error(), level_of(flags), "registration of Gaudi memory");
                made->key.generation = gaudi::known_memory().newest_generation(); // of all allocations so far
            }
        }
        made->key.seal();
        md.module->counters.registrations.fetch_add(1, std::memory_order_relaxed);
        *memh_p = made.release();
        return UCS_OK;
    });
}

ucs_status_t uct_gaudi_copy_mem_dereg(uct_md_h, const uct_md_mem_dereg_params_t* params) {
    return no_throw([&]() -> ucs_status_t {
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
    return no_throw([&]() -> ucs_status_t {
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
        if (const auto status = read_key(module, mkey_buffer, level, made->key); status != UCS_OK)
            return status;
        if (!made->key.valid_in_this_process()) {
            gaudi_log_at(module, level,
                         "memory of process {} cannot be attached here: gaudi_copy works within a process",
                         made->key.pid);
            return UCS_ERR_UNREACHABLE;
        }
        // A newer generation in these pages: the memory that the key was made for has been freed.
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

// ---- queries about addresses ----

// Whether the driver will return the same error the next time.
bool is_lasting(const gaudi::error& refusal) {
    const auto reason = refusal.system_error();
    return reason != ENOMEM && reason != EAGAIN && reason != EINTR && reason != EBUSY;
}

// Whether a NIC can register memory of this device, determined once per device by exporting the chunk of the
// address: UCX stages memory that cannot be registered. The export of an address that is not allocated proves
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
    // Not decided: UCX asks again when the device is open.
    if (!device || device->lost())
        return true;
    const auto exported = device->export_memory(gaudi::device_address(address), 1);
    if (exported)
        ::close(exported->fd);
    else if (exported.error().kind() != gaudi::error_kind::unsupported || !is_lasting(exported.error()))
        return true;
    else if (md.dmabuf != UCS_YES)
        (void)failed(*md.module, exported.error(),
                     md.module->warned_of_exports.exchange(true) ? UCS_LOG_LEVEL_DIAG : UCS_LOG_LEVEL_WARN,
                     "over NICs Gaudi memory goes through host memory");
    // With DMABUF=yes the registration fails instead.
    const bool registrable = exported.has_value() || md.dmabuf == UCS_YES;
    known.set_registrable(device_index, registrable);
    return registrable;
}

// Exports the range as a DMA-BUF. UCX closes it.
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
        // An address without memory is an error in every case.
        if (const auto status = status_of(why); status == UCS_ERR_INVALID_ADDR)
            return failed(*md.module, why, UCS_LOG_LEVEL_DIAG, "no DMA-BUF");
        (void)failed(*md.module, why,
                     md.module->warned_of_exports.exchange(true) ? UCS_LOG_LEVEL_DIAG : UCS_LOG_LEVEL_WARN,
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

// Where the address is. UCX takes what is nowhere for host memory, which a handle of PyTorch's is not.
located find_memory(uct_gaudi_copy_md_t& md, std::uint64_t address) {
    const auto where = md.attached.locate_or_attach(address);
    if (!where.device && gaudi::is_pytorch_handle(gaudi::device_address(address)) &&
        !md.module->warned_of_handles.exchange(true))
        gaudi_log(*md.module, WARN, "UCX takes it for host memory: {}",
                  gaudi::error(gaudi::errc::pytorch_handle, fmt::format("{:#x}", address)).message());
    return where;
}

ucs_status_t uct_gaudi_copy_mem_query(uct_md_h tl_md, const void* pointer, size_t length,
                                      uct_md_mem_attr_v2_t* attr) {
    return no_throw([&]() -> ucs_status_t {
        auto& md = copy_md(tl_md);
        const auto address = number(pointer);
        const auto where = find_memory(md, address);
        if (!where.device)
            return UCS_ERR_INVALID_ADDR;
        const auto mask = attr->field_mask;
        // Freed device memory is not host memory: the type is the same for every address of a device.
        attr->mem_type = UCS_MEMORY_TYPE_GAUDI;
        attr->sys_dev = md.module->sys_devices[where.index % uct_gaudi_module::most_devices];
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
        if (status == UCS_OK || !drop_if_closed(device) || !md.attached.attach_again(address))
            return status;
        device = gaudi::find_open_device(locate(address).index);
        return device ? give_dmabuf(md, *device, address, length, attr) : UCS_ERR_INVALID_ADDR;
    });
}

ucs_status_t uct_gaudi_copy_detect_memory_type(uct_md_h tl_md, const void* pointer, size_t,
                                               ucs_memory_type_t* mem_type_p) {
    return no_throw([&]() -> ucs_status_t {
        if (!find_memory(copy_md(tl_md), number(pointer)).device)
            return UCS_ERR_INVALID_ADDR;
        *mem_type_p = UCS_MEMORY_TYPE_GAUDI;
        return UCS_OK;
    });
}

} // namespace

ucs_status_t uct_gaudi_copy_rkey_unpack(uct_component_t* component, const void* rkey_buffer,
                                        const uct_rkey_unpack_params_t*, uct_rkey_t* rkey_p,
                                        void** handle_p) {
    return no_throw([&]() -> ucs_status_t {
        auto key = std::make_unique<memory_key>();
        const auto status = read_key(module_of(component), rkey_buffer, UCS_LOG_LEVEL_ERROR, *key);
        if (status != UCS_OK)
            return status;
        *handle_p = nullptr;
        *rkey_p = reinterpret_cast<uct_rkey_t>(key.release());
        return UCS_OK;
    });
}

void fill_mem_ops(uct_md_ops_t& ops) {
    ops.mem_alloc = uct_gaudi_copy_mem_alloc;
    ops.mem_free = uct_gaudi_copy_mem_free;
    ops.mem_advise = [](uct_md_h, uct_mem_h, void*, size_t, unsigned) { return UCS_ERR_UNSUPPORTED; };
    ops.mem_reg = uct_gaudi_copy_mem_reg;
    ops.mem_dereg = uct_gaudi_copy_mem_dereg;
    ops.mem_query = uct_gaudi_copy_mem_query;
    ops.mkey_pack = uct_gaudi_copy_mkey_pack;
    ops.mem_attach = uct_gaudi_copy_mem_attach;
    ops.detect_memory_type = uct_gaudi_copy_detect_memory_type;
    ops.mem_elem_pack = [] { return UCS_ERR_UNSUPPORTED; };
    ops.mem_elem_release = [] {};
}

} // namespace gaudi_ucx
