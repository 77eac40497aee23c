// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/device.hpp>

#include "ucx/base/key.hpp"
#include "ucx/base/module.hpp"

#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace gaudi_ucx {

struct uct_gaudi_copy_md_config_t {
    uct_md_config_t super;
    int dmabuf; // ucs_ternary_auto_value_t
    char* device;
    size_t heap_chunk;
    unsigned queues;
    char* log_level;
    int statistics;
    size_t nic_max;
    int share_device;
};

// Memory that was registered, allocated, or both. Host memory is pinned for an engine when it is first used
// with it.
struct uct_gaudi_memh_t final : device_holder {
    memory_key key;
    gaudi::device_buffer buffer; // mem_alloc's
    std::shared_ptr<gaudi::device> device;
    std::mutex mutex;
    struct pin {
        std::weak_ptr<gaudi::copy_core> engine;
        gaudi::pinned_memory memory; // empty where it was tried in vain
    };
    std::map<unsigned, pin> pins;                 // by device
    std::atomic<device_holders*> among = nullptr; // where it is listed, once it has pins

    ~uct_gaudi_memh_t() {
        if (auto* holders = among.load(); holders != nullptr)
            holders->remove(*this);
    }
    void let_go_of_lost() override;
    [[nodiscard]] bool is_device() const { return key.kind == memory_key::device; }
};

// Opened for allocations, and open until their domain is closed: a NIC's cached registrations keep a device
// busy, so that opening it again might fail.
class opened_devices final : public device_holder {
public:
    // One that would do, or nothing.
    [[nodiscard]] std::shared_ptr<gaudi::device> find(const gaudi::device_choice& choice);
    void add(const std::shared_ptr<gaudi::device>& device);
    void let_go_of_lost() override;

    std::mutex opening; // held by who opens one

private:
    std::mutex mutex_;
    std::map<unsigned, std::shared_ptr<gaudi::device>> by_index_;
};

// One for all devices: UCX keeps one provider of DMA-BUFs per memory type.
struct uct_gaudi_copy_md_t {
    uct_md_t super;
    uct_gaudi_module* module = nullptr;
    ucs_ternary_auto_value_t dmabuf;
    gaudi::device_choice choice;
    std::string device_setting; // as it was given
    std::size_t heap_chunk;
    gaudi::copy_options copies;
    bool statistics;
    bool share_device;   // with other processes of this user
    std::size_t nic_max; // largest copy that goes through a NIC in loopback, where there is one
    std::mutex mutex;
    std::vector<std::shared_ptr<gaudi::device>> attached; // SynapseAI's, kept known while this domain lives
    opened_devices opened;

    ~uct_gaudi_copy_md_t() {
        if (module != nullptr)
            module->holders.remove(opened);
    }
};

inline uct_gaudi_copy_md_t& copy_md(uct_md_h md) {
    return *reinterpret_cast<uct_gaudi_copy_md_t*>(md);
}

// Takes the settings over; says what is wrong with them, or nothing.
[[nodiscard]] std::string apply_copy_settings(uct_gaudi_copy_md_t& md,
                                              const uct_gaudi_copy_md_config_t& config);
[[nodiscard]] ucs_config_field_t* copy_md_settings(const ucx_api& ucx);

// Settings and functions of the component, for registering it with UCX.
void fill_copy_component(uct_gaudi_module& module);

// For the transports: is this device memory?
struct located {
    bool device = false;
    unsigned index = 0;
};
[[nodiscard]] located locate(std::uint64_t address);
// The same, and looks for what SynapseAI took in the meantime.
[[nodiscard]] located locate_or_attach(uct_gaudi_copy_md_t& md, std::uint64_t address);
// Whether SynapseAI has let go of the device, which is then given up here too.
[[nodiscard]] bool was_let_go(std::shared_ptr<gaudi::device>& device);
// After that: whether the address is known again.
[[nodiscard]] bool attach_again(uct_gaudi_copy_md_t& md, std::uint64_t address);
// Whether the address can only be a device's: a CPU that touches it dies.
[[nodiscard]] bool in_device_space(std::uint64_t address);

} // namespace gaudi_ucx
