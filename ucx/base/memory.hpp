// SPDX-License-Identifier: BSD-3-Clause
// What the memory domains and the interfaces ask about memory: where it is, whether a key opens it, and how
// host memory stays pinned.
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
// Whether the address can only be a device's: a CPU that touches it dies.
[[nodiscard]] bool in_device_space(std::uint64_t address);
// An address as a place for the copier.
[[nodiscard]] gaudi::place place_of(const located& where, std::uint64_t address, std::size_t length);

// The devices that SynapseAI has open in this process. It may open and close them at any time.
class attached_devices {
public:
    void attach();
    // Attaches where the address may be memory of a device that SynapseAI opened since.
    [[nodiscard]] located locate_or_attach(std::uint64_t address);
    // After SynapseAI closed a device: whether the address is known again.
    [[nodiscard]] bool attach_again(std::uint64_t address);

private:
    std::mutex mutex_;
    std::vector<std::shared_ptr<gaudi::device>> devices_;
};
// Whether SynapseAI has closed the device. Then the reference is dropped.
[[nodiscard]] bool drop_if_closed(std::shared_ptr<gaudi::device>& device);

// ---- memory that was registered, allocated, or both ----

struct uct_gaudi_memh_t final : loss_listener {
    memory_key key;
    gaudi::device_buffer buffer; // mem_alloc's
    std::shared_ptr<gaudi::device> device;

    ~uct_gaudi_memh_t();
    [[nodiscard]] bool is_device() const { return key.kind == memory_key::device; }
    // Host memory stays mapped for a device once it was used with it: mapping it costs more than many copies.
    void keep_pinned(uct_gaudi_module& module, unsigned device_index, gaudi::copier& copies);
    void drop_lost() override;

private:
    struct kept_pin {
        std::weak_ptr<gaudi::copy_core> engine;
        gaudi::pinned_memory memory; // empty where pinning failed
    };
    std::mutex mutex_;
    std::map<unsigned, kept_pin> pins_;               // by device
    std::atomic<loss_listeners*> listed_in_{nullptr}; // once it has pins
};
// For what an operation names, where pinning pays.
void keep_pinned(uct_gaudi_module& module, const uct_iov_t& iov, unsigned device, gaudi::copier& copies);

// ---- keys and errors ----

// UCS_OK, or why `key` does not open [address, address + length).
[[nodiscard]] ucs_status_t check_key(uct_gaudi_module& module, uct_rkey_t key, std::uint64_t address,
                                     std::size_t length);
// The level of a call's errors: details, where the caller asked to hide them.
[[nodiscard]] ucs_log_level_t level_of(std::uint64_t flags);
// One line in the log, and the status.
ucs_status_t failed(uct_gaudi_module& module, const gaudi::error& error, ucs_log_level_t level,
                    std::string_view doing);

} // namespace gaudi_ucx
