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

// An open device. The driver allows one context per device: everything in a process shares this one object,
// which the registry hands out. The device is closed when the last user of it, and of its buffers, is gone.
class device {
public:
    device(std::shared_ptr<hl_device> opened, std::shared_ptr<heap_core> heap);
    ~device();
    device(const device&) = delete;
    device& operator=(const device&) = delete;

    // Memory figures are those of the moment of the call.
    [[nodiscard]] device_info info() const;
    [[nodiscard]] device_heap& heap() { return heap_; }
    // One engine per device: the options count for whoever asks first while none is in use.
    // Where SynapseAI owns the queues, its own copy call is used. errc::copies_absent with the reason: Gaudi3
    // without SynapseAI, a SynapseAI without that call.
    [[nodiscard]] result<copy_engine> copies(const copy_options& options = {});
    // The same if somebody holds it, to look at.
    [[nodiscard]] std::optional<copy_engine> copies_in_use() const;
    // The driver's descriptor, for calls this library does not make. Never close it.
    [[nodiscard]] int descriptor() const;
    // Whether it is SynapseAI's: then memory and queues are SynapseAI's as well.
    [[nodiscard]] bool attached() const;
    [[nodiscard]] bool lost() const;
    // Exports memory that somebody else allocated on this device (SynapseAI's pool). The descriptor is the
    // caller's.
    [[nodiscard]] result<dmabuf_export> export_foreign(device_address address, std::uint64_t length);
    // Exports memory by its address, whoever allocated it; the range may reach to the borders of the first
    // and last page of its allocation. The descriptor is the caller's. errc::not_allocated,
    // range_leaves_allocation, export_refused.
    [[nodiscard]] result<dmabuf_export> export_memory(device_address address, std::uint64_t length);
    // The same as a DMA-BUF of its own that reaches no further than the pages around the range.
    [[nodiscard]] result<dmabuf_export> export_pages(device_address address, std::uint64_t length);

    [[nodiscard]] const std::shared_ptr<hl_device>& core() const { return core_; }

private:
    std::shared_ptr<hl_device> core_;
    device_heap heap_;
};

// Which device to open. What HABANA_VISIBLE_DEVICES (indices) and HABANA_VISIBLE_MODULES (module ids) leave
// out is errc::device_hidden; an index is always the driver's, as in /dev/accel/accelN.
struct first_free {};
struct by_index {
    unsigned index = 0;
};
struct by_bus_id {
    std::string bus_id{};
};
struct by_module_id {
    unsigned module_id = 0;
};
using device_choice = std::variant<first_free, by_index, by_bus_id, by_module_id>;
// What people write: "" or "auto", an index ("0"), a bus id ("0000:19:00.0"), "module:<id>". Nothing: it is
// none of these.
[[nodiscard]] std::optional<device_choice> parse_device_choice(std::string_view text);

// Which hl-thunk was loaded.
struct driver_library {
    std::string path;
    std::string version;
    std::vector<std::string> tried;   // what was looked for, in order, with the outcome
    std::vector<std::string> missing; // optional functions it lacks
};

// errc::library_missing, library_unusable or symbol_missing, with everything that was tried.
[[nodiscard]] result<driver_library> loaded_driver();
// All devices this process may use; does not open them for compute.
[[nodiscard]] result<std::vector<device_info>> list_devices();
[[nodiscard]] std::vector<device_holder> holders_of(const device_info& info);
// Opens a device, or hands out the one that this process has open already. first_free passes over busy
// devices, and looks first at those near to the processors that this thread may run on; HLS_MODULE_ID turns
// it into by_module_id.
[[nodiscard]] result<std::shared_ptr<device>> open_device(const device_choice& choice = first_free{});
// The device of that index if something in this process has it open, or nothing. Asks nobody, so it is cheap.
[[nodiscard]] std::shared_ptr<device> find_open_device(unsigned index);
// Takes note of devices that SynapseAI has acquired in this process: their memory is known from then on, for
// as long as the device lives. Cheap where there is no SynapseAI.
[[nodiscard]] std::vector<std::shared_ptr<device>> attach_devices();
// Whether there is a SynapseAI in this process that copies for us: then device::copies() works on any
// generation for a device that it has acquired.
[[nodiscard]] bool synapse_copies_here();
// Where memory of Gaudis may lie that have an MMU (Gaudi2 and later): no host memory is ever there, because
// these are no valid x86-64 addresses.
[[nodiscard]] std::span<const memory_window> address_spaces();
// Every allocation of every open device in this process.
[[nodiscard]] const address_map& known_memory();

} // namespace gaudi
