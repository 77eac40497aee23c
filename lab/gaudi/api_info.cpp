// SPDX-License-Identifier: BSD-3-Clause
// Exported functions: queries.
#include "lab/gaudi/exported.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>

namespace lab::gaudi {
namespace {

void fill_hw_ip(virtual_device& device, hlthunk_hw_ip_info& out) {
    const auto& type = device.type;
    std::memset(&out, 0, sizeof(out));
    out.sram_base_address = type.sram_base;
    out.dram_base_address = type.dram_base;
    out.dram_size = type.dram_size;
    out.sram_size = static_cast<std::uint32_t>(type.sram_size);
    out.num_of_events = 1279;
    out.device_id = type.pci_id;
    out.dram_enabled = 1;
    std::snprintf(reinterpret_cast<char*>(out.cpucp_version), sizeof(out.cpucp_version), "gaudi-direct lab");
    out.module_id = device.description.module_id;
    std::memcpy(out.card_name, type.card_name.data(), type.card_name.size());
    out.dram_page_size = type.dram_page;
    out.device_mem_alloc_default_page_size = type.dram_page;
    out.first_available_interrupt_id = type.first_interrupt;
    out.number_of_user_interrupts = type.interrupts;
    out.revision_id = type.revision;
    if (type.generation == generation::gaudi)
        out.tpc_enabled_mask = 0xff;
    if (type.generation == generation::gaudi2) {
        out.tpc_enabled_mask_ext = 0x1ffffff;
        out.edma_enabled_mask = 0xff;
        out.decoder_enabled_mask = 0x3ff;
        out.rotator_enabled_mask = 0x3;
        out.mme_master_slave_mode = 1;
    }
    out.server_type = 3;
}

hlthunk_dram_usage_info usage_of(virtual_device& device) {
    const context_lock lock(device.state());
    const auto& state = device.state();
    const auto used = device.type.dram_mmu ? state.pages_used * device.type.dram_page : state.bytes_accounted;
    return {device.type.dram_size - used, used};
}

hl_device_status status_of(virtual_device& device) {
    if (device.description.broken)
        return HL_DEVICE_STATUS_MALFUNCTION;
    if (device.state().resetting != 0)
        return HL_DEVICE_STATUS_IN_RESET_AFTER_DEVICE_RELEASE;
    return static_cast<hl_device_status>(device.state().status.load());
}

void fill_open_stats(virtual_device& device, hlthunk_open_stats_info& out) {
    const auto& state = device.state();
    std::memset(&out, 0, sizeof(out));
    out.open_counter = state.open_count;
    out.last_open_period_ms = state.last_open_ms;
    out.is_compute_ctx_active = state.opened_ns != 0;
    out.compute_ctx_in_release = state.resetting != 0;
}

// query() fills the caller's structure, on either node; a null pointer is EINVAL. in_reset: whether it is
// answered while the device is not operational.
enum class in_reset { answered, refused };

template <typename Out, typename Body>
int query(int fd, Out* out, Body&& body, in_reset when = in_reset::answered) {
    if (out == nullptr)
        return failure<int>(EINVAL);
    return on_either<int>(fd, [&](virtual_device& device) {
        // Before the first open there is no context yet, and the status reads as operational.
        if (when == in_reset::refused && device.state().status != HL_DEVICE_STATUS_OPERATIONAL)
            return failure<int>(EBUSY);
        body(device, *out);
        return 0;
    });
}

int event_record(virtual_device& device, hlthunk_event_record_id id, void* buffer) {
    const context_lock lock(device.state());
    const auto& state = device.state();
    const auto& last = state.last;
    switch (id) {
    case HLTHUNK_OPEN_DEV:
        static_cast<hlthunk_event_record_open_dev_time*>(buffer)->timestamp =
            static_cast<std::int64_t>(state.opened_ns);
        return 0;
    case HLTHUNK_CS_TIMEOUT: {
        auto& out = *static_cast<hlthunk_event_record_cs_timeout*>(buffer);
        out = {last.cs_timeout_ns, last.timed_out_sequence};
        return 0;
    }
    case HLTHUNK_RAZWI_EVENT: {
        auto& out = *static_cast<hlthunk_event_record_razwi_event*>(buffer);
        out = {};
        out.timestamp = last.razwi_ns;
        out.addr = last.razwi_address;
        return 0;
    }
    case HLTHUNK_UNDEFINED_OPCODE: {
        auto& out = *static_cast<hlthunk_event_record_undefined_opcode*>(buffer);
        out = {};
        out.timestamp = last.undefined_opcode_ns;
        out.cq_addr = last.undefined_opcode_address;
        out.cq_size = last.undefined_opcode_size;
        out.engine_id = last.undefined_opcode_engine;
        out.stream_id = last.undefined_opcode_stream;
        return 0;
    }
    case HLTHUNK_HW_ERR_OPCODE:
    case HLTHUNK_FW_ERR_OPCODE:
        std::memset(buffer, 0, 16);
        return 0;
    }
    return failure<int>(EINVAL);
}

int raw_info(virtual_device& device, const hl_info_args& args) {
    enum { dram_usage = 2, device_status = 4 };
    void* target = reinterpret_cast<void*>(args.return_pointer);
    if (args.pad != 0 || target == nullptr)
        return failure<int>(EINVAL);
    if (args.op == dram_usage) {
        const auto usage = usage_of(device);
        std::memcpy(target, &usage, std::min<std::size_t>(args.return_size, sizeof(usage)));
        return 0;
    }
    if (args.op == device_status) {
        const auto status = static_cast<std::uint32_t>(status_of(device));
        std::memcpy(target, &status, std::min<std::size_t>(args.return_size, sizeof(status)));
        return 0;
    }
    return failure<int>(EINVAL);
}

} // namespace
} // namespace lab::gaudi

LAB_EXPORT(int, hlthunk_get_hw_ip_info, (int fd, hlthunk_hw_ip_info* hw_ip), (fd, hw_ip),
           { return query(fd, hw_ip, fill_hw_ip); })

LAB_EXPORT(int, hlthunk_get_dram_usage, (int fd, hlthunk_dram_usage_info* out), (fd, out),
           { return query(fd, out, [](auto& device, auto& usage) { usage = usage_of(device); }); })

LAB_EXPORT(hl_device_status, hlthunk_get_device_status_info, (int fd), (fd),
           { return on_either<hl_device_status>(fd, status_of); })

LAB_EXPORT(bool, hlthunk_is_device_idle, (int fd), (fd), {
    return on_either<bool>(fd, [](virtual_device& device) {
        return device.state().status == HL_DEVICE_STATUS_OPERATIONAL && device.state().in_flight.load() == 0;
    });
})

LAB_EXPORT(int, hlthunk_get_busy_engines_mask, (int fd, hlthunk_engines_idle_info* info), (fd, info), {
    return query(
        fd, info,
        [](virtual_device& device, auto& out) {
            out = {};
            out.is_idle = device.state().in_flight.load() == 0 ? 1 : 0;
        },
        in_reset::refused);
})

LAB_EXPORT(int, hlthunk_get_dev_memalloc_page_orders, (int fd, uint64_t* page_order_bitmask),
           (fd, page_order_bitmask), {
               return query(fd, page_order_bitmask,
                            [](virtual_device& device, auto& out) { out = device.type.page_orders; });
           })

LAB_EXPORT(int, hlthunk_get_sync_manager_info, (int fd, int dcore_id, hlthunk_sync_manager_info* info),
           (fd, dcore_id, info), {
               if (dcore_id < 0 || dcore_id >= 4)
                   return failure<int>(EINVAL);
               return query(fd, info, [&](virtual_device& device, auto& out) {
                   out = {};
                   if (dcore_id == 0)
                       out = {device.type.first_sob, device.type.first_monitor, device.type.first_cq, 0};
               });
           })

LAB_EXPORT(int, hlthunk_get_open_stats, (int fd, hlthunk_open_stats_info* open_stats), (fd, open_stats),
           { return query(fd, open_stats, fill_open_stats); })

LAB_EXPORT(int, hlthunk_get_cs_counters_info, (int fd, hl_info_cs_counters* info), (fd, info),
           { return query(fd, info, [](virtual_device&, auto& out) { out = {}; }); })

LAB_EXPORT(int, hlthunk_get_clk_rate, (int fd, uint32_t* cur_clk_mhz, uint32_t* max_clk_mhz),
           (fd, cur_clk_mhz, max_clk_mhz), {
               if (max_clk_mhz == nullptr)
                   return failure<int>(EINVAL);
               return query(
                   fd, cur_clk_mhz, [&](virtual_device&, auto& out) { out = *max_clk_mhz = 1650; },
                   in_reset::refused);
           })

LAB_EXPORT(int, hlthunk_get_reset_count_info, (int fd, hlthunk_reset_count_info* info), (fd, info), {
    return query(fd, info, [](virtual_device& device, auto& out) {
        out = {device.state().hard_resets, device.state().soft_resets};
    });
})

LAB_EXPORT(int, hlthunk_get_time_sync_info, (int fd, hlthunk_time_sync_info* info), (fd, info), {
    return query(
        fd, info,
        [](virtual_device&, auto& out) {
            out = {lab::now_ns(), lab::now_ns()};
        },
        in_reset::refused);
})

LAB_EXPORT(int, hlthunk_get_pci_counters_info, (int fd, hlthunk_pci_counters_info* info), (fd, info), {
    return query(
        fd, info, [](virtual_device&, auto& out) { out = {}; }, in_reset::refused);
})

LAB_EXPORT(int, hlthunk_get_clk_throttle_info, (int fd, hlthunk_clk_throttle_info* info), (fd, info),
           { return query(fd, info, [](virtual_device&, auto& out) { out = {}; }); })

LAB_EXPORT(int, hlthunk_get_power_info, (int fd, hlthunk_power_info* info), (fd, info), {
    return query(
        fd, info, [](virtual_device&, auto& out) { out = {}; }, in_reset::refused);
})

LAB_EXPORT(int, hlthunk_get_total_energy_consumption_info, (int fd, hlthunk_energy_info* info), (fd, info), {
    return query(
        fd, info, [](virtual_device&, auto& out) { out = {}; }, in_reset::refused);
})

LAB_EXPORT(int, hlthunk_get_hw_asic_status, (int fd, hlthunk_hw_asic_status* status), (fd, status), {
    return query(fd, status, [](virtual_device& device, auto& out) {
        std::memset(&out, 0, sizeof(out));
        fill_open_stats(device, out.open_stats);
        out.status = status_of(device);
        out.timestamp_sec = static_cast<std::uint64_t>(std::time(nullptr));
        out.valid = 1;
    });
})

LAB_EXPORT(int, hlthunk_get_pll_frequency, (int fd, uint32_t index, hlthunk_pll_frequency_info* frequency),
           (fd, index, frequency), {
               return query(
                   fd, frequency, [](virtual_device&, auto& out) { out = {}; }, in_reset::refused);
           })

LAB_EXPORT(int, hlthunk_get_device_utilization, (int fd, uint32_t period_ms, uint32_t* rate),
           (fd, period_ms, rate), {
               return query(
                   fd, rate,
                   [](virtual_device& device, auto& out) {
                       out = device.state().in_flight.load() == 0 ? 0 : 100;
                   },
                   in_reset::refused);
           })

LAB_EXPORT(int, hlthunk_get_hw_events_arr,
           (int fd, bool aggregate, uint32_t hw_events_arr_size, uint32_t* hw_events_arr),
           (fd, aggregate, hw_events_arr_size, hw_events_arr), {
               return query(fd, hw_events_arr,
                            [&](virtual_device&, auto& out) { std::memset(&out, 0, hw_events_arr_size); });
           })

LAB_EXPORT(int, hlthunk_get_event_record, (int fd, hlthunk_event_record_id event_id, void* buf),
           (fd, static_cast<int>(event_id), buf), {
               if (buf == nullptr)
                   return failure<int>(EINVAL);
               return on_either<int>(
                   fd, [&](virtual_device& device) { return event_record(device, event_id, buf); });
           })

LAB_EXPORT(int, hlthunk_get_page_fault_info,
           (int fd, hlthunk_page_fault_info* pf, uint32_t num_of_allocated_mappings),
           (fd, pf, num_of_allocated_mappings), {
               return query(fd, pf, [&](virtual_device& device, auto& out) {
                   const context_lock lock(device.state());
                   const auto& state = device.state();
                   out.timestamp = state.last.page_fault_ns;
                   out.addr = state.last.page_fault_address;
                   out.engine_id = static_cast<std::uint16_t>(state.last.page_fault_engine);
                   out.num_of_mappings = state.mapping_count;
                   for (std::uint32_t i = 0; out.mappings_buf != nullptr &&
                                             i < std::min(num_of_allocated_mappings, state.mapping_count);
                        ++i)
                       out.mappings_buf[i] = {state.mappings[i].address, state.mappings[i].size};
               });
           })

LAB_EXPORT(int, hlthunk_get_info, (int fd, hl_info_args* info), (fd, info), {
    if (info == nullptr)
        return failure<int>(EINVAL);
    return on_either<int>(fd, [&](virtual_device& device) { return raw_info(device, *info); });
})

LAB_EXPORT(int, hlthunk_get_engine_status,
           (int fd, char* status_buf, uint32_t status_buf_size, int* actual_size),
           (fd, status_buf, status_buf_size, actual_size), {
               if (status_buf_size == 0 || actual_size == nullptr)
                   return failure<int>(EINVAL);
               return query(
                   fd, status_buf,
                   [&](virtual_device& device, char& first) {
                       const int written =
                           std::snprintf(&first, status_buf_size, "submissions in flight: %u\n",
                                         device.state().in_flight.load());
                       *actual_size = std::min(written + 1, static_cast<int>(status_buf_size));
                   },
                   in_reset::refused);
           })

// The structure is opaque here: 264 bytes of counts and rows, all of them zero.
LAB_EXPORT(int, hlthunk_get_dram_replaced_rows_info, (int fd, hlthunk_dram_replaced_rows_info* info),
           (fd, info), {
               return query(
                   fd, info,
                   [](virtual_device&, auto& out) { std::memset(static_cast<void*>(&out), 0, 264); },
                   in_reset::refused);
           })

LAB_EXPORT(int, hlthunk_get_dram_pending_rows_info, (int fd, uint32_t* out), (fd, out), {
    return query(
        fd, out, [](virtual_device&, auto& rows) { rows = 0; }, in_reset::refused);
})
