// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/address.hpp>
#include <gaudi/copy_engine.hpp>
#include <gaudi/device_heap.hpp>
#include <gaudi/error.hpp>
#include <gaudi/statistics.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// \file
/// Device memory between processes of one host. The owner shares memory and gets a handle; a process that
/// receives the handle, in any message, imports the memory and copies. docs/ipc.md explains which path the
/// bytes take. All functions here may be called from any thread.

namespace gaudi {

class device;
class lease_core;
class copier_core;
struct copy_policy;
struct internals;

/// Names shared device memory of one process to other processes of its host. It contains no descriptor and no
/// pointer, so it may travel in any message.
struct memory_handle {
    static constexpr std::size_t size = 128; ///< bytes
    std::array<std::byte, size> bytes{};
};

/// What an owner passes to the processes that it serves.
enum class ipc_give {
    context, ///< its device's descriptor: importers use its engines, and could do anything else with it
    dmabuf,  ///< a DMA-BUF of the pages that contain the shared memory, with neighbours in these pages
    nothing  ///< no descriptor: the owner copies on request
};

/// How this process shares and imports memory.
struct ipc_settings {
    ipc_give give = ipc_give::context;
    std::vector<std::uint32_t> allow{};             ///< uids that are served in addition to the process's own
    std::size_t imports = 256;                      ///< imports that are kept while they are not in use
    std::chrono::milliseconds answer_timeout{5000}; ///< how long to wait for an owner's answer
};
/// Sets the settings of this process from now on. Until then they come from GAUDI_DIRECT_IPC_GIVE (context,
/// dmabuf, nothing) and GAUDI_DIRECT_IPC_ALLOW (uids, separated by commas).
void set_ipc(const ipc_settings& settings);
/// The settings in effect. errc::setting_malformed: an environment variable cannot be parsed.
[[nodiscard]] result<ipc_settings> get_ipc();
/// Parses "context", "dmabuf" or "nothing", and uids separated by commas; empty text: the default.
/// errc::setting_malformed.
[[nodiscard]] result<ipc_settings> parse_ipc(std::string_view give, std::string_view allow);

// ---- the owner ----

/// Shares [address, address + length) of a live allocation until it is freed or revoked. The handle opens
/// exactly these bytes; ipc_give decides what else an importer could reach with the descriptor that it is
/// passed. errc::not_allocated, range_leaves_allocation.
[[nodiscard]] result<memory_handle> share(device_address address, std::uint64_t length);
/// Shares all of a buffer.
[[nodiscard]] result<memory_handle> share(const device_buffer& buffer);
/// As share(), with a separate handle that can be revoked alone: importers that opened the memory with
/// another handle keep their leases.
[[nodiscard]] result<memory_handle> share_separately(device_address address, std::uint64_t length);
/// Whether a handle that this process made still opens the memory: neither freed nor revoked.
[[nodiscard]] bool is_shared(const memory_handle& handle);
/// Revokes a handle of share_separately() and its leases, as revoke_leases() revokes all of them.
/// errc::handle_invalid: not a handle of share_separately(); leased.
result<void> revoke_handle(const memory_handle& handle,
                           std::chrono::milliseconds limit = std::chrono::seconds(5));

/// Lets other processes of this user open the device as well: open_device() there finds it busy and joins
/// this process's context, with memory of its own in it. The driver allows one context per device, so a
/// process that joins could do anything to it. The offer lasts as long as the device is open here.
/// errc::address_in_use: another process offers it already. Gaudi2 and later.
result<void> offer_device(device& shared);

/// One lease: another process that has the memory open.
struct lease_info {
    std::int32_t process = 0; ///< 0: it is in another pid namespace
    std::uint32_t user = 0;
    unsigned in_flight = 0; ///< its copies in flight
    bool revoked = false;
};
/// The leases of the allocation that contains the address.
[[nodiscard]] std::vector<lease_info> leases_of(device_address address);
/// Waits until no other process has the memory open. errc::leased: the limit expired.
result<void> wait_for_leases(device_address address, std::chrono::milliseconds limit);
/// Revokes all handles and leases of the allocation: copies that start later fail with errc::lease_revoked,
/// imports of the handles with handle_stale. Returns when none of the importers' copies is in flight.
/// errc::leased: one still is; not_allocated: nothing is shared there.
result<void> revoke_leases(device_address address, std::chrono::milliseconds limit = std::chrono::seconds(5));
/// What free_shared() does while another process has the buffer open: it fails at once, or waits.
enum class if_leased { refuse, wait };
/// Frees a buffer that no other process has open. errc::leased: one has, and the buffer stays as it is.
/// Freeing a shared buffer by any other means revokes its leases first.
result<void> free_shared(device_buffer& buffer, if_leased choice,
                         std::chrono::milliseconds limit = std::chrono::seconds(5));
/// Ends all sharing and importing of this process: revokes its leases and waits for their copies in flight
/// (five seconds at most), ends its imports, and stops the broker's thread and socket. Later calls start
/// anew.
void stop_ipc();

// ---- the importer ----

/// Which paths the copies of an import may take.
struct import_options {
    std::optional<copy_path> only{}; ///< this path or none; whether it is viable shows at the first copy
    /// Neither staged nor copied by the owner: errc::zero_copy_impossible names what is missing.
    bool zero_copy = false;
};

/// Device memory of another process, under a lease that lasts as long as this object. Its own functions copy
/// through a copier of the process that keeps no device open; any other copier accepts the object as a place.
class imported_buffer {
public:
    imported_buffer();
    imported_buffer(imported_buffer&&) noexcept;
    imported_buffer& operator=(imported_buffer&&) noexcept;
    ~imported_buffer();

    /// The length in bytes.
    [[nodiscard]] std::uint64_t size() const { return length_; }
    /// Whether the memory is no longer there: freed or revoked, or the owner ended.
    [[nodiscard]] bool gone() const;

    /// Copies to host memory. The caller owns the ticket. errc::range_leaves_allocation,
    /// lease_revoked, peer_gone, zero_copy_impossible.
    [[nodiscard]] result<copy_ticket> read(std::span<std::byte> to, std::uint64_t offset = 0);
    /// Copies from host memory. Errors as read().
    [[nodiscard]] result<copy_ticket> write(std::uint64_t offset, std::span<const std::byte> from);
    /// Pins host memory for copies through the owner's context, which then need no preparation.
    /// errc::not_granted: the owner does not pass its context.
    [[nodiscard]] result<pinned_memory> pin(std::span<std::byte> memory);
    /// Copies to memory of a device that is open in this process. Errors as above.
    [[nodiscard]] result<copy_ticket> read(device_address to, std::uint64_t offset, std::uint64_t length);
    /// Copies from memory of a device that is open in this process. Errors as above.
    [[nodiscard]] result<copy_ticket> write(std::uint64_t offset, device_address from, std::uint64_t length);

private:
    friend class copier_core;
    friend struct internals;
    imported_buffer(std::shared_ptr<lease_core> lease, std::uint64_t offset, std::uint64_t length,
                    const import_options& options);
    [[nodiscard]] copy_policy policy() const;

    std::shared_ptr<lease_core> lease_;
    std::uint64_t offset_ = 0, length_ = 0;
    import_options options_;
};

/// Checks magic, version, checksum and ranges; does not contact the owner. errc::handle_invalid.
[[nodiscard]] result<void> check_handle(const memory_handle& handle);

/// Opens shared memory by its handle. A handle whose lease is still kept costs no system call.
/// errc::handle_invalid, handle_stale, other_host, peer_gone, peer_refused, peer_silent, leases_exhausted.
[[nodiscard]] result<imported_buffer> import_memory(std::span<const std::byte> handle,
                                                    const import_options& options = {});
/// Opens shared memory by its handle, as above.
[[nodiscard]] inline result<imported_buffer> import_memory(const memory_handle& handle,
                                                           const import_options& options = {}) {
    return import_memory(std::span(handle.bytes), options);
}

/// Identifies a process of this host to other processes. May be sent as bytes.
struct process_name {
    std::uint64_t machine = 0;
    std::array<std::uint64_t, 2> random{};
    std::uint64_t start_time = 0;
    std::uint64_t pid_namespace = 0;
    std::uint64_t pid = 0;
};
/// The name of this process.
[[nodiscard]] process_name own_process();
/// Whether the process has ended, as far as this process can see: one in another pid namespace is not visible
/// unless memory of it was imported.
[[nodiscard]] bool has_ended(const process_name& process);

} // namespace gaudi
