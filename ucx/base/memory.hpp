// SPDX-License-Identifier: BSD-3-Clause
// Memory as the memory domains and interfaces use it: where an address lies, whether a key permits access,
// and how host memory stays pinned.
#pragma once

#include <gaudi/copier.hpp>
#include <gaudi/device.hpp>

#include "ucx/base/key.hpp"
#include "ucx/base/module.hpp"

#include <map>
#include <mutex>
#include <string_view>
#include <vector>

namespace gaudi_ucx {

// ---- where an address is ----

struct located {
    bool device = false;
    unsigned index = 0;
};
[[nodiscard]] located locate(std::uint64_t address);
// Whether the address can only be a device's: a CPU access to it is a SIGSEGV.
[[nodiscard]] bool in_device_space(std::uint64_t address);
// The address as a place for the copier.
[[nodiscard]] gaudi::place place_of(const located& where, std::uint64_t address, std::size_t length);

// The devices that SynapseAI has open in this process. SynapseAI may open and close them at any time.
class attached_devices {
public:
    void attach();
    // Attaches if the address may belong to a device that SynapseAI has opened since the last call.
    [[nodiscard]] located locate_or_attach(std::uint64_t address);
    // Called after SynapseAI closed a device. True where the address is known again after attaching.
    [[nodiscard]] bool attach_again(std::uint64_t address);

private:
    std::mutex mutex_;
    std::vector<std::shared_ptr<gaudi::device>> devices_;
};
// Whether SynapseAI has closed the device. If so, drops the reference.
[[nodiscard]] bool drop_if_closed(std::shared_ptr<gaudi::device>& device);

// ---- memory that was registered, allocated, or both ----

struct uct_gaudi_memh_t final : loss_listener {
    memory_key key;
    gaudi::device_buffer buffer; // from mem_alloc
    std::shared_ptr<gaudi::device> device;

    ~uct_gaudi_memh_t();
    [[nodiscard]] bool is_device() const { return key.kind == memory_key::device; }
    // Host memory stays pinned for a device once it was used with it: pinning costs more than many copies.
    void keep_pinned(uct_gaudi_module& module, unsigned device_index, gaudi::copier& copies);
    void drop_lost() override;

private:
    struct kept_pin {
        gaudi::weak_copy_engine engine;
        gaudi::pinned_memory memory; // empty where pinning failed
    };
    std::mutex mutex_;
    std::map<unsigned, kept_pin> pins_;               // by device
    std::atomic<loss_listeners*> listed_in_{nullptr}; // set once it has pins
};
// Pins the memory of an operation, where that pays.
void keep_pinned(uct_gaudi_module& module, const uct_iov_t& iov, unsigned device, gaudi::copier& copies);

// ---- errors ----

// Log level for a call's errors: lower where the caller asked to hide them (UCT_MD_MEM_FLAG_HIDE_ERRORS).
[[nodiscard]] ucs_log_level_t level_of(std::uint64_t flags);
// Logs one line and returns the status.
ucs_status_t failed(uct_gaudi_module& module, const gaudi::error& error, ucs_log_level_t level,
                    std::string_view doing);

// UCS_OK, or an error where `key` does not permit access to [address, address + length).
[[nodiscard]] ucs_status_t check_key(uct_gaudi_module& module, uct_rkey_t key, std::uint64_t address,
                                     std::size_t length);

} // namespace gaudi_ucx
