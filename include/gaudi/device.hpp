// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/address_map.hpp>
#include <gaudi/copy_engine.hpp>
#include <gaudi/device_heap.hpp>
#include <gaudi/device_info.hpp>
#include <gaudi/error.hpp>
#include <gaudi/memory_observer.hpp>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace gaudi {

class hl_device;
struct internals;

/// An open device. The driver allows one context per device: all users in a process share this one object,
/// which open_device() returns. The device is closed when its last user and the last user of its buffers are
/// gone. Thread-safe.
class device {
public:
    ~device();
    device(const device&) = delete;
    device& operator=(const device&) = delete;

    /// What is known of the device. Memory figures are those at the time of the call.
    [[nodiscard]] device_info info() const;
    /// The heap that allocates memory of this device. The device owns it.
    [[nodiscard]] device_heap& heap() { return heap_; }
    /// The device's copy engine, which all callers share. The options count only for the caller that creates
    /// it, while no engine is in use. Where SynapseAI owns the queues, the engine uses SynapseAI's copy call.
    /// errc::copies_absent with the reason: Gaudi3 without SynapseAI, or a SynapseAI without that call.
    [[nodiscard]] result<copy_engine> copies(const copy_options& options = {});
    /// The copy engine if it is in use, for example to read its statistics. Creates none.
    [[nodiscard]] std::optional<copy_engine> copies_in_use() const;
    /// The driver's descriptor, for driver calls that this library does not make. Never close it.
    [[nodiscard]] int descriptor() const;
    /// Whether SynapseAI opened the device: then memory and queues belong to SynapseAI as well.
    [[nodiscard]] bool attached() const;
    /// Where SynapseAI's pool is; proved by exporting its first and last page when the device was attached.
    /// errc::not_allocated: the device is not SynapseAI's, or the pool could not be found, with the reason.
    [[nodiscard]] result<gaudi::synapse_pool> synapse_pool() const;
    /// Whether the device failed or was reset: every call fails until it is opened again.
    [[nodiscard]] bool lost() const;
    /// Exports memory of this device that SynapseAI allocated (its pool). The caller owns the descriptor.
    /// With Linux's own driver before 6.7 it opens the whole pool: pass that of export_pages() to other
    /// processes. errc::not_allocated, range_leaves_allocation, export_refused.
    [[nodiscard]] result<dmabuf_export> export_foreign(device_address address, std::uint64_t length);
    /// Exports memory by its address, whether this library or SynapseAI allocated it. The range may extend to
    /// the borders of the first and last page of its allocation. The caller owns the descriptor, which covers
    /// the whole chunk: pass that of export_pages() to other processes.
    /// errc::not_allocated, range_leaves_allocation, export_refused.
    [[nodiscard]] result<dmabuf_export> export_memory(device_address address, std::uint64_t length);
    /// As export_memory(), but as a separate DMA-BUF that covers only the pages around the range.
    /// errc::export_offset_ignored: this driver cannot, see kernel_driver::exports_whole_only().
    [[nodiscard]] result<dmabuf_export> export_pages(device_address address, std::uint64_t length);

private:
    friend struct internals;
    device(std::shared_ptr<hl_device> opened, std::shared_ptr<heap_core> heap);
    result<dmabuf_export> export_pool(device_address address, std::uint64_t length, bool pages_alone);
    [[nodiscard]] const std::shared_ptr<hl_device>& core() const { return core_; }

    std::shared_ptr<hl_device> core_;
    device_heap heap_;
};

/// The first device that is not busy, see open_device().
struct first_free {};
/// The device with this index of the driver, as in /dev/accel/accelN.
struct by_index {
    unsigned index = 0;
};
/// The device at this PCI address, with or without its domain.
struct by_bus_id {
    std::string bus_id{};
};
/// The device with this module id.
struct by_module_id {
    unsigned module_id = 0;
};
/// Which device to open. Devices that HABANA_VISIBLE_DEVICES (indices) and HABANA_VISIBLE_MODULES (module
/// ids) leave out are errc::device_hidden.
using device_choice = std::variant<first_free, by_index, by_bus_id, by_module_id>;
/// Parses "" or "auto", an index ("0"), a bus id ("0000:19:00.0") or "module:<id>". nullopt: the text is none
/// of these.
[[nodiscard]] std::optional<device_choice> parse_device_choice(std::string_view text);

/// The hl-thunk library that was loaded.
struct driver_library {
    std::string path;
    std::string version;
    std::vector<std::string> tried;   ///< every candidate in order, with the outcome
    std::vector<std::string> missing; ///< optional functions that it lacks
};

/// Describes the hl-thunk in use, which is loaded if necessary. errc::library_missing, library_unusable or
/// symbol_missing, with everything that was tried.
[[nodiscard]] result<driver_library> loaded_driver();
/// All devices that this process may use. Does not open them for compute.
[[nodiscard]] result<std::vector<device_info>> list_devices();
/// The processes that have the device open, as far as /proc shows them.
[[nodiscard]] std::vector<device_holder> holders_of(const device_info& info);
/// Opens a device, or returns the one that this process already has open. first_free skips busy devices and
/// prefers those close to the processors that this thread may run on; HLS_MODULE_ID turns it into
/// by_module_id. A device that another process has open and offers (see offer_device()) is joined.
/// errc::no_device, device_unknown, device_hidden, device_busy, device_broken, open_failed.
[[nodiscard]] result<std::shared_ptr<device>> open_device(const device_choice& choice = first_free{});
/// The device with that index if it is open in this process, else nullptr. Makes no driver call, so it is
/// cheap.
[[nodiscard]] std::shared_ptr<device> find_open_device(unsigned index);
/// Attaches to the devices that SynapseAI has acquired in this process: known_memory() contains their memory
/// from then on, for as long as the device lives. Cheap where there is no SynapseAI.
[[nodiscard]] std::vector<std::shared_ptr<device>> attach_devices();
/// Whether a SynapseAI in this process provides its copy call: device::copies() then works on any generation
/// for a device that SynapseAI has acquired.
[[nodiscard]] bool synapse_copies_here();
/// Whether copies on an engine are possible for such a device: on its own queues, or by SynapseAI.
[[nodiscard]] bool may_have_engine(const device_info& info);
/// The address ranges in which devices with an MMU (Gaudi2 and later) may have memory. Host memory never lies
/// there, because these are no valid x86-64 addresses.
[[nodiscard]] std::span<const memory_window> address_spaces();
/// Every live allocation of every open device in this process.
[[nodiscard]] const address_map& known_memory();

} // namespace gaudi
