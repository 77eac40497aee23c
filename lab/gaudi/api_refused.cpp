// SPDX-License-Identifier: BSD-3-Clause
// Exported functions that the lab does not implement: each fails as with a driver without that feature.
#include "lab/gaudi/exported.hpp"

// Sync streams (signal and wait submissions): the queues of Gaudi2 and later do not support them.
#define LAB_REFUSE_STREAM(name, parameters, arguments)                                                       \
    LAB_EXPORT(int, name, parameters, arguments,                                                             \
               { return on_device<int>(fd, [](virtual_device&) { return failure<int>(EINVAL); }); })

LAB_REFUSE_STREAM(hlthunk_signal_submission, (int fd, hlthunk_signal_in* in, hlthunk_signal_out* out),
                  (fd, in, out))
LAB_REFUSE_STREAM(hlthunk_signal_submission_timeout,
                  (int fd, hlthunk_signal_in* in, hlthunk_signal_out* out, uint32_t timeout),
                  (fd, in, out, timeout))
LAB_REFUSE_STREAM(hlthunk_wait_for_signal, (int fd, hlthunk_wait_in* in, hlthunk_wait_out* out),
                  (fd, in, out))
LAB_REFUSE_STREAM(hlthunk_wait_for_signal_timeout,
                  (int fd, hlthunk_wait_in* in, hlthunk_wait_out* out, uint32_t timeout),
                  (fd, in, out, timeout))
LAB_REFUSE_STREAM(hlthunk_wait_for_collective_signal, (int fd, hlthunk_wait_in* in, hlthunk_wait_out* out),
                  (fd, in, out))
LAB_REFUSE_STREAM(hlthunk_wait_for_collective_signal_timeout,
                  (int fd, hlthunk_wait_in* in, hlthunk_wait_out* out, uint32_t timeout),
                  (fd, in, out, timeout))
LAB_REFUSE_STREAM(hlthunk_reserve_encaps_signals, (int fd, hlthunk_sig_res_in* in, hlthunk_sig_res_out* out),
                  (fd, in, out))
LAB_REFUSE_STREAM(hlthunk_unreserve_encaps_signals, (int fd, reserve_sig_handle* handle, uint32_t* status),
                  (fd, handle, status))
LAB_REFUSE_STREAM(hlthunk_staged_command_submission_encaps_signals,
                  (int fd, uint64_t handle_id, hlthunk_cs_in* in, hlthunk_cs_out* out),
                  (fd, handle_id, in, out))
LAB_REFUSE_STREAM(hlthunk_wait_for_reserved_encaps_signals,
                  (int fd, hlthunk_wait_in* in, hlthunk_wait_out* out), (fd, in, out))
LAB_REFUSE_STREAM(hlthunk_wait_for_reserved_encaps_collective_signals,
                  (int fd, hlthunk_wait_in* in, hlthunk_wait_out* out), (fd, in, out))

// Hardware blocks, engine cores, attestation, firmware requests.
LAB_REFUSE_STREAM(hlthunk_get_hw_block,
                  (int fd, uint64_t block_address, uint32_t* block_size, uint64_t* handle),
                  (fd, block_address, block_size, handle))
LAB_REFUSE_STREAM(hlthunk_engine_cores_set_mode,
                  (int fd, const uint32_t* core_ids, uint32_t num_cores, uint32_t mode),
                  (fd, core_ids, num_cores, mode))
LAB_REFUSE_STREAM(hlthunk_engines_command,
                  (int fd, const uint32_t* engine_ids, uint32_t num_engines, int command),
                  (fd, engine_ids, num_engines, command))
LAB_REFUSE_STREAM(hlthunk_get_sec_attest_info, (int fd, uint32_t nonce, hlthunk_sec_attest_info* info),
                  (fd, nonce, info))
LAB_REFUSE_STREAM(hlthunk_fw_send_generic_request,
                  (int fd, void* buff, uint32_t buff_size, uint32_t sub_opcode),
                  (fd, buff, buff_size, sub_opcode))

// The lab has no debugfs.
LAB_EXPORT(int, hlthunk_debugfs_open, (int fd, hlthunk_debugfs* debugfs), (fd, debugfs),
           { return failure<int>(ENOENT); })
LAB_EXPORT(int, hlthunk_debugfs_read, (hlthunk_debugfs * debugfs, uint64_t full_address, uint32_t* val),
           (debugfs, full_address, val), { return failure<int>(EBADF); })
LAB_EXPORT(int, hlthunk_debugfs_write, (hlthunk_debugfs * debugfs, uint64_t full_address, uint32_t val),
           (debugfs, full_address, val), { return failure<int>(EBADF); })
LAB_EXPORT(int, hlthunk_debugfs_close, (hlthunk_debugfs * debugfs), (debugfs),
           { return failure<int>(EBADF); })

// Without the profiler shim these return -1, the deprecated ones always -EPERM.
LAB_EXPORT(int, hlthunk_profiler_start, (int fd), (fd), { return -1; })
LAB_EXPORT(int, hlthunk_profiler_stop, (int fd), (fd), { return -1; })
LAB_EXPORT(int, hlthunk_profiler_get_trace, (int fd, void* buffer, uint64_t* size, uint64_t* num_entries),
           (fd, buffer, size, num_entries), { return -1; })
LAB_EXPORT_VOID(hlthunk_profiler_destroy, (void), (0), {})
LAB_EXPORT(int, hlthunk_deprecated_func1,
           (int fd, uint64_t seq, uint64_t timeout_us, uint32_t* status, uint64_t* timestamp),
           (fd, seq, timeout_us, status, timestamp), { return failure<int>(EPERM); })
LAB_EXPORT(int, hlthunk_deprecated_func2,
           (int fd, uint32_t interrupt_id, uint64_t cq_counters_handle, uint64_t cq_counters_offset,
            uint64_t target_value, uint64_t timestamp_handle, uint64_t timestamp_offset),
           (fd, interrupt_id, cq_counters_handle, cq_counters_offset, target_value, timestamp_handle,
            timestamp_offset),
           { return failure<int>(EPERM); })
LAB_EXPORT(int, hlthunk_deprecated_func3, (int fd, uint32_t num_elements, uint64_t* handle),
           (fd, num_elements, handle), { return failure<int>(EPERM); })
