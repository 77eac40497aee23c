// SPDX-License-Identifier: BSD-3-Clause
#include "lab/faults/script.hpp"

#include "lab/world/text.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fmt/format.h>

namespace lab {
namespace {

// Calls that can return less than was asked for.
constexpr std::string_view short_calls[] = {"hlthunk_wait_for_cs", "hlthunk_notifier_recv",
                                            "hlthunk_device_mapped_memory_export_dmabuf_fd",
                                            "hlthunk_device_memory_export_dmabuf_fd"};

// The calls that a rule can name: every function of hl-thunk that goes through the lab, and the memory ioctl.
constexpr std::string_view known_calls[] = {
    "hlthunk_allocate_timestamp_elements",
    "hlthunk_close",
    "hlthunk_command_submission",
    "hlthunk_command_submission_timeout",
    "hlthunk_cs_flush_pci_hbw_writes",
    "hlthunk_debug",
    "hlthunk_debugfs_close",
    "hlthunk_debugfs_open",
    "hlthunk_debugfs_read",
    "hlthunk_debugfs_write",
    "hlthunk_deprecated_func1",
    "hlthunk_deprecated_func2",
    "hlthunk_deprecated_func3",
    "hlthunk_destroy_command_buffer",
    "hlthunk_device_mapped_memory_export_dmabuf_fd",
    "hlthunk_device_memory_alloc",
    "hlthunk_device_memory_export_dmabuf_fd",
    "hlthunk_device_memory_free",
    "hlthunk_device_memory_map",
    "hlthunk_engine_cores_set_mode",
    "hlthunk_engines_command",
    "hlthunk_free",
    "hlthunk_fw_send_generic_request",
    "hlthunk_get_busy_engines_mask",
    "hlthunk_get_cb_usage_count",
    "hlthunk_get_clk_rate",
    "hlthunk_get_clk_throttle_info",
    "hlthunk_get_cs_counters_info",
    "hlthunk_get_dev_memalloc_page_orders",
    "hlthunk_get_device_count",
    "hlthunk_get_device_id_from_fd",
    "hlthunk_get_device_index_from_pci_bus_id",
    "hlthunk_get_device_name_from_fd",
    "hlthunk_get_device_status_info",
    "hlthunk_get_device_utilization",
    "hlthunk_get_dram_pending_rows_info",
    "hlthunk_get_dram_replaced_rows_info",
    "hlthunk_get_dram_usage",
    "hlthunk_get_engine_status",
    "hlthunk_get_event_record",
    "hlthunk_get_hw_asic_status",
    "hlthunk_get_hw_block",
    "hlthunk_get_hw_events_arr",
    "hlthunk_get_hw_ip_info",
    "hlthunk_get_info",
    "hlthunk_get_mapped_cb_device_va_by_handle",
    "hlthunk_get_open_stats",
    "hlthunk_get_page_fault_info",
    "hlthunk_get_pci_bus_id_from_fd",
    "hlthunk_get_pci_counters_info",
    "hlthunk_get_pll_frequency",
    "hlthunk_get_power_info",
    "hlthunk_get_reset_count_info",
    "hlthunk_get_sec_attest_info",
    "hlthunk_get_sync_manager_info",
    "hlthunk_get_time_sync_info",
    "hlthunk_get_total_energy_consumption_info",
    "hlthunk_get_version",
    "hlthunk_host_memory_map",
    "hlthunk_host_memory_map_flags",
    "hlthunk_is_device_idle",
    "hlthunk_malloc",
    "hlthunk_memory_unmap",
    "hlthunk_notifier_create",
    "hlthunk_notifier_recv",
    "hlthunk_notifier_release",
    "hlthunk_open",
    "hlthunk_open_by_module_id",
    "hlthunk_open_control",
    "hlthunk_open_control_by_bus_id",
    "hlthunk_open_control_by_module_id",
    "hlthunk_open_control_by_name",
    "hlthunk_profiler_destroy",
    "hlthunk_profiler_get_trace",
    "hlthunk_profiler_start",
    "hlthunk_profiler_stop",
    "hlthunk_register_timestamp_interrupt",
    "hlthunk_request_command_buffer",
    "hlthunk_request_mapped_command_buffer",
    "hlthunk_reserve_encaps_signals",
    "hlthunk_signal_submission",
    "hlthunk_signal_submission_timeout",
    "hlthunk_staged_command_submission",
    "hlthunk_staged_command_submission_encaps_signals",
    "hlthunk_staged_command_submission_timeout",
    "hlthunk_unreserve_encaps_signals",
    "hlthunk_wait_for_collective_signal",
    "hlthunk_wait_for_collective_signal_timeout",
    "hlthunk_wait_for_cs",
    "hlthunk_wait_for_cs_with_timestamp",
    "hlthunk_wait_for_interrupt",
    "hlthunk_wait_for_interrupt_by_handle",
    "hlthunk_wait_for_interrupt_by_handle_with_timestamp",
    "hlthunk_wait_for_interrupt_with_timestamp",
    "hlthunk_wait_for_multi_cs",
    "hlthunk_wait_for_multi_cs_with_timestamp",
    "hlthunk_wait_for_reserved_encaps_collective_signals",
    "hlthunk_wait_for_reserved_encaps_signals",
    "hlthunk_wait_for_signal",
    "hlthunk_wait_for_signal_timeout",
    "hlthunk_memory_ioctl",
    // Verbs that go through the script; ibv_create_cq_ex and similar ones under the name that programs call.
    "_ibv_query_comp_cntr_caps",
    "_ibv_query_gid_ex",
    "ibv_alloc_buf",
    "ibv_alloc_dmah",
    "ibv_alloc_null_mr",
    "ibv_alloc_pd",
    "ibv_attach_mcast",
    "ibv_close_device",
    "ibv_create_ah",
    "ibv_create_ah_from_wc",
    "ibv_create_comp_channel",
    "ibv_create_comp_cntr",
    "ibv_create_cq",
    "ibv_create_cq_ex",
    "ibv_create_qp",
    "ibv_create_qp_ex",
    "ibv_create_srq",
    "ibv_create_srq_ex",
    "ibv_dealloc_dmah",
    "ibv_dealloc_pd",
    "ibv_dereg_mr",
    "ibv_destroy_ah",
    "ibv_destroy_comp_channel",
    "ibv_destroy_comp_cntr",
    "ibv_destroy_cq",
    "ibv_destroy_qp",
    "ibv_destroy_srq",
    "ibv_detach_mcast",
    "ibv_dm_export_dmabuf_fd",
    "ibv_export_buf_dmabuf_fd",
    "ibv_get_async_event",
    "ibv_get_cq_event",
    "ibv_get_device_list",
    "ibv_get_pkey_index",
    "ibv_import_device",
    "ibv_import_dm",
    "ibv_import_mr",
    "ibv_import_pd",
    "ibv_inc_comp_cntr",
    "ibv_inc_err_comp_cntr",
    "ibv_init_ah_from_wc",
    "ibv_modify_qp",
    "ibv_modify_srq",
    "ibv_open_device",
    "ibv_poll_cq",
    "ibv_post_recv",
    "ibv_post_send",
    "ibv_post_srq_recv",
    "ibv_qp_attach_comp_cntr",
    "ibv_query_device",
    "ibv_query_device_ex",
    "ibv_query_ece",
    "ibv_query_gid",
    "ibv_query_pkey",
    "ibv_query_port",
    "ibv_query_port_speed",
    "ibv_query_qp",
    "ibv_query_qp_data_in_order",
    "ibv_query_srq",
    "ibv_read_comp_cntr",
    "ibv_read_err_comp_cntr",
    "ibv_reg_buf_mr",
    "ibv_reg_dmabuf_mr",
    "ibv_reg_mr",
    "ibv_reg_mr_ex",
    "ibv_reg_mr_iova",
    "ibv_reg_mr_iova2",
    "ibv_req_notify_cq",
    "ibv_rereg_mr",
    "ibv_resize_cq",
    "ibv_resolve_eth_l2_from_gid",
    "ibv_set_comp_cntr",
    "ibv_set_ece",
    "ibv_set_err_comp_cntr",
    "ibv_wr_complete",
    // libmlx5.
    "mlx5dv_create_qp",
    // SCAL and SynapseAI.
    "scal_allocate_aligned_buffer",
    "scal_allocate_buffer",
    "scal_buffer_get_info",
    "scal_destroy",
    "scal_free_buffer",
    "scal_get_fd",
    "scal_get_handle_from_fd",
    "scal_get_pool_handle_by_id",
    "scal_get_pool_handle_by_name",
    "scal_get_sram_size",
    "scal_init",
    "scal_pool_get_info",
    "scal_pool_get_infoV2",
    "scal_set_logs_folder",
    "synDestroy",
    "synDeviceAcquire",
    "synDeviceAcquireByDeviceType",
    "synDeviceAcquireByModuleId",
    "synDeviceCount",
    "synDeviceFree",
    "synDeviceGetAttribute",
    "synDeviceGetCount",
    "synDeviceGetCountByDeviceType",
    "synDeviceGetInfo",
    "synDeviceGetInfoV2",
    "synDeviceGetMemoryInfo",
    "synDeviceGetModuleIDs",
    "synDeviceGetName",
    "synDeviceGetPCIBusId",
    "synDeviceMalloc",
    "synDeviceRelease",
    "synDeviceSynchronize",
    "synDriverGetVersion",
    "synEventCreate",
    "synEventDestroy",
    "synEventElapsedTime",
    "synEventQuery",
    "synEventRecord",
    "synEventSynchronize",
    "synHostFree",
    "synHostMalloc",
    "synHostMap",
    "synHostUnmap",
    "synInitialize",
    "synMemCopyAsync",
    "synMemCopyAsyncMultiple",
    "synMemsetD16Async",
    "synMemsetD32Async",
    "synMemsetD8Async",
    "synStreamCreateGeneric",
    "synStreamDestroy",
    "synStreamQuery",
    "synStreamSynchronize",
    "synStreamWaitEvent",
};

bool is_call(std::string_view name) {
    return name == "*" ||
           std::find(std::begin(known_calls), std::end(known_calls), name) != std::end(known_calls);
}

std::optional<int> parse_errno(std::string_view text) {
    if (const auto number = parse_unsigned(text, 4095); number && *number > 0)
        return static_cast<int>(*number);
    for (int number = 1; number < 134; ++number)
        if (const char* name = strerrorname_np(number); name != nullptr && text == name)
            return number;
    return std::nullopt;
}

std::optional<std::chrono::microseconds> parse_pause(std::string_view text) {
    constexpr std::pair<std::string_view, std::uint64_t> units[] = {{"us", 1}, {"ms", 1000}, {"s", 1000000}};
    for (const auto& [unit, factor] : units)
        if (text.ends_with(unit))
            if (const auto number = parse_unsigned(text.substr(0, text.size() - unit.size()), 3600000000))
                return std::chrono::microseconds(*number * factor);
    return std::nullopt;
}

result<void> parse_occurrence(std::string_view text, fault_rule& rule) {
    constexpr auto for_ever = ~std::uint64_t{0};
    if (text == "every") {
        rule.first = 1;
        rule.last = for_ever;
        return {};
    }
    const bool open_end = text.ends_with('+');
    const auto number = parse_unsigned(open_end ? text.substr(0, text.size() - 1) : text, for_ever - 1);
    if (!number || *number == 0)
        return tl::unexpected(
            problem{fmt::format("occurrence '{}': expected N, N+ or every, N from 1", text)});
    rule.first = *number;
    rule.last = open_end ? for_ever : *number;
    return {};
}

result<fault> parse_action(std::string_view call, const std::vector<std::string_view>& words) {
    fault parsed;
    const auto action = words[2];
    const bool has_argument = words.size() == 4;
    if (action == "errno" && has_argument) {
        const auto number = parse_errno(words[3]);
        if (!number)
            return tl::unexpected(problem{
                fmt::format("'{}' is no errno; expected a name such as ENOMEM or a number", words[3])});
        parsed.error_number = *number;
        return parsed;
    }
    if (action == "delay" && has_argument) {
        const auto pause = parse_pause(words[3]);
        if (!pause)
            return tl::unexpected(
                problem{fmt::format("'{}' is no time; expected for example 500us, 20ms or 1s", words[3])});
        parsed.action = fault_action::delay;
        parsed.pause = *pause;
        return parsed;
    }
    if (action == "reset" && !has_argument) {
        parsed.action = fault_action::reset;
        return parsed;
    }
    if (action == "die" && !has_argument) {
        parsed.action = fault_action::die;
        return parsed;
    }
    if (action == "short" && !has_argument) {
        for (const auto with_short_result : short_calls)
            if (call == with_short_result) {
                parsed.action = fault_action::short_result;
                return parsed;
            }
        return tl::unexpected(problem{fmt::format("'{}' has no short result; those that have: {}", call,
                                                  fmt::join(short_calls, ", "))});
    }
    return tl::unexpected(
        problem{fmt::format("action '{}': expected errno NAME, delay TIME, short, reset or die",
                            fmt::join(words.begin() + 2, words.end(), " "))});
}

} // namespace

result<std::vector<fault_rule>> parse_faults(std::string_view text, std::string_view name) {
    std::vector<fault_rule> rules;
    unsigned number = 0;
    for (const auto line : lines_of(text)) {
        ++number;
        auto rest = line.substr(0, line.find('#'));
        while (!rest.empty()) {
            const auto end = rest.find(';');
            const auto words = words_of(rest.substr(0, end));
            rest.remove_prefix(end == rest.npos ? rest.size() : end + 1);
            if (words.empty())
                continue;
            const auto refuse = [&](std::string_view why) {
                return tl::unexpected(problem{fmt::format("{}:{}: {}", name, number, why)});
            };
            if (words.size() < 3 || words.size() > 4)
                return refuse(fmt::format(
                    "'{}': expected CALL OCCURRENCE ACTION, for example hlthunk_open 1 errno EBUSY",
                    fmt::join(words, " ")));
            fault_rule rule;
            rule.call = words[0];
            if (!is_call(rule.call))
                return refuse(
                    fmt::format("'{}' is no call of hl-thunk, libibverbs, SynapseAI or SCAL", rule.call));
            if (auto parsed = parse_occurrence(words[1], rule); !parsed)
                return refuse(parsed.error().text);
            auto action = parse_action(rule.call, words);
            if (!action)
                return refuse(action.error().text);
            rule.fault = *action;
            rules.push_back(std::move(rule));
        }
    }
    return rules;
}

void fault_injector::arm(std::vector<fault_rule> rules) {
    const std::lock_guard guard(mutex_);
    rules_.clear();
    for (auto& rule : rules)
        rules_.push_back({std::move(rule), 0});
    fired_.store(0, std::memory_order_relaxed);
    armed_.store(!rules_.empty(), std::memory_order_release);
}

std::optional<fault> fault_injector::next(std::string_view call) {
    if (!armed_.load(std::memory_order_acquire))
        return std::nullopt;
    const std::lock_guard guard(mutex_);
    std::optional<fault> chosen;
    for (auto& [rule, seen] : rules_) {
        if (rule.call != "*" && rule.call != call)
            continue;
        ++seen;
        if (!chosen && seen >= rule.first && seen <= rule.last)
            chosen = rule.fault;
    }
    if (chosen)
        fired_.fetch_add(1, std::memory_order_relaxed);
    return chosen;
}

} // namespace lab
