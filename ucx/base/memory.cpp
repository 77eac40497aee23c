// SPDX-License-Identifier: BSD-3-Clause
// UCX passes every address as a pointer. Whether it is a device's is decided by the address alone: memory of
// a device that was closed must not be taken for host memory, because the CPU cannot access it (gotcha 12).
#include "ucx/base/memory.hpp"

#include <algorithm>

namespace gaudi_ucx {

located locate(std::uint64_t address) {
    const auto index = gaudi::known_memory().device_of(gaudi::device_address(address));
    return index ? located{true, *index} : located{};
}

bool in_device_space(std::uint64_t address) {
    const auto spaces = gaudi::address_spaces();
    // All generations, also those of no device here: an address may come from a peer or from freed memory.
    return std::any_of(spaces.begin(), spaces.end(),
                       [&](const auto& space) { return address - space.base.value() < space.size; });
}

gaudi::place place_of(const located& where, std::uint64_t address, std::size_t length) {
    if (where.device)
        return {gaudi::device_address(address), length, where.index};
    return std::span(reinterpret_cast<std::byte*>(address), length);
}

void attached_devices::attach() {
    // Without the mutex: attaching calls observers, and UCX through them.
    auto found = gaudi::attach_devices();
    const std::lock_guard guard(mutex_);
    for (auto& device : found)
        if (std::find(devices_.begin(), devices_.end(), device) == devices_.end())
            devices_.push_back(std::move(device));
}

located attached_devices::locate_or_attach(std::uint64_t address) {
    const auto where = locate(address);
    // Host addresses, by far the most, end here without a look at SynapseAI.
    if (where.device || !in_device_space(address))
        return where;
    attach();
    return locate(address);
}

bool attached_devices::attach_again(std::uint64_t address) {
    {
        const std::lock_guard guard(mutex_);
        // A reference to the closed device would keep its context, and the new one could not be attached.
        std::erase_if(devices_, [](const auto& each) { return each->lost(); });
    }
    if (!in_device_space(address))
        return false;
    attach();
    return locate(address).device;
}

bool drop_if_closed(std::shared_ptr<gaudi::device>& device) {
    if (!device || !device->attached() || !device->lost())
        return false;
    device.reset();
    return true;
}

uct_gaudi_memh_t::~uct_gaudi_memh_t() {
    if (auto* listeners = listed_in_.load(); listeners != nullptr)
        listeners->remove(*this);
}

void uct_gaudi_memh_t::keep_pinned(uct_gaudi_module& module, unsigned device_index, gaudi::copier& copies) {
    // Added without our lock: the listeners call us with theirs held.
    if (listed_in_.load(std::memory_order_relaxed) == nullptr) {
        module.loss.add(*this);
        listed_in_ = &module.loss;
    }
    const std::lock_guard guard(mutex_);
    // Kept with the handle, so that UCX's deregistration unpins it.
    auto& pin = pins_[device_index];
    if (!pin.engine.expired())
        return; // pinned, or pinning failed: one attempt per engine
    pin = {};
    const auto engine = copies.engine_of(device_index);
    if (!engine)
        return; // the copy reports why
    auto pinned = gaudi::copy_engine(*engine).pin({reinterpret_cast<std::byte*>(key.base), key.length});
    // Also where pinning failed: the next copy would fail alike, and maps the memory for itself.
    pin.engine = *engine;
    if (pinned)
        pin.memory = std::move(*pinned);
}

void uct_gaudi_memh_t::drop_lost() {
    const std::lock_guard guard(mutex_);
    std::erase_if(pins_, [](const auto& each) {
        const auto engine = each.second.engine.lock();
        return !engine || engine->lost();
    });
}

void keep_pinned(uct_gaudi_module& module, const uct_iov_t& iov, unsigned device, gaudi::copier& copies) {
    auto* memh = static_cast<uct_gaudi_memh_t*>(iov.memh);
    // Shorter memory passes through the engine's slab, which is pinned already.
    if (memh != UCT_MEM_HANDLE_NULL && !memh->is_device() && iov.length > gaudi::copy_engine::longest_bounced)
        memh->keep_pinned(module, device, copies);
}

ucs_log_level_t level_of(std::uint64_t flags) {
    return (flags & UCT_MD_MEM_FLAG_HIDE_ERRORS) != 0 ? UCS_LOG_LEVEL_DIAG : UCS_LOG_LEVEL_ERROR;
}

ucs_status_t failed(uct_gaudi_module& module, const gaudi::error& error, ucs_log_level_t level,
                    std::string_view doing) {
    gaudi_log_at(module, level, "{}: {}", doing, error.message());
    return status_of(error);
}

ucs_status_t check_key(uct_gaudi_module& module, uct_rkey_t rkey, std::uint64_t address, std::size_t length) {
    // UCX's own copies pass no key: the engine checks the address.
    if (rkey == UCT_INVALID_RKEY)
        return UCS_OK;
    const auto& key = *reinterpret_cast<const memory_key*>(rkey);
    const auto refuse = [&](std::string_view why) {
        gaudi_log(module, ERROR, "{} bytes at {:#x}: {} (key for {} bytes at {:#x} of process {})", length,
                  address, why, key.length, key.base, key.pid);
        return UCS_ERR_INVALID_PARAM;
    };
    // The addresses of another process mean other memory here.
    if (!key.valid_in_this_process())
        return refuse("the key is another process's");
    if (address < key.base || length > key.length || address - key.base > key.length - length)
        return refuse("the key does not reach there");
    if (key.kind == memory_key::device && key.generation != 0) {
        const auto live = gaudi::known_memory().find(gaudi::device_address(address));
        if (!live)
            return refuse("the memory was freed");
        // The allocation is newer than the registration of it, or of a neighbour in its page.
        if (live->generation > key.generation)
            return refuse("the memory was freed and belongs to another allocation");
    }
    return UCS_OK;
}

} // namespace gaudi_ucx
