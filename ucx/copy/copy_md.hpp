// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/copier.hpp>
#include <gaudi/device.hpp>

#include "ucx/base/memory.hpp"

#include <string>

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

// Devices opened for allocations stay open until their domain is closed: a NIC's cached registrations keep a
// device busy, so that opening it again might fail (gotcha U1).
class opened_devices final : public loss_listener {
public:
    // An open device that the choice allows, or nullptr.
    [[nodiscard]] std::shared_ptr<gaudi::device> find(const gaudi::device_choice& choice);
    void add(const std::shared_ptr<gaudi::device>& device);
    void drop_lost() override;

    std::mutex opening; // held while a device is opened

private:
    std::mutex mutex_;
    std::map<unsigned, std::shared_ptr<gaudi::device>> by_index_;
};

// One memory domain for all devices: UCX keeps one provider of DMA-BUFs per memory type.
struct uct_gaudi_copy_md_t {
    uct_md_t super;
    uct_gaudi_module* module = nullptr;
    ucs_ternary_auto_value_t dmabuf;
    gaudi::device_choice choice;
    std::string device_setting; // as the user set it
    std::size_t heap_chunk;
    gaudi::copy_options copies;
    bool statistics;
    bool share_device;   // with other processes of this user
    std::size_t nic_max; // largest copy that goes through a NIC in loopback, where there is a NIC
    attached_devices attached;
    opened_devices opened;

    ~uct_gaudi_copy_md_t() {
        if (module != nullptr)
            module->loss.remove(opened);
    }
};

inline uct_gaudi_copy_md_t& copy_md(uct_md_h md) {
    return *reinterpret_cast<uct_gaudi_copy_md_t*>(md);
}

// Applies the settings; returns an error message, or empty.
[[nodiscard]] std::string apply_copy_settings(uct_gaudi_copy_md_t& md,
                                              const uct_gaudi_copy_md_config_t& config);
[[nodiscard]] ucs_config_field_t* copy_md_settings(const ucx_api& ucx);

// Allocation and registration, in copy_mem.cpp.
void fill_mem_ops(uct_md_ops_t& ops);
ucs_status_t uct_gaudi_copy_rkey_unpack(uct_component_t* component, const void* rkey_buffer,
                                        const uct_rkey_unpack_params_t*, uct_rkey_t* rkey_p, void** handle_p);

// Whether this hl-thunk can export at all. Whether the driver refuses an export is known only once a device
// is open, long after UCX has queried the domain.
[[nodiscard]] bool library_exports();

// Registration with UCX; transports are registered after their domain.
void register_copy_md(uct_gaudi_module& module);
void register_copy_iface(uct_gaudi_module& module);
void register_dma_iface(uct_gaudi_module& module);

} // namespace gaudi_ucx
