// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/address.hpp>
#include <gaudi/copy_engine.hpp>
#include <gaudi/device_heap.hpp>
#include <gaudi/error.hpp>

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

// Device memory between processes of one host. The owner shares an allocation and gets a handle; whoever gets
// the handle, by whatever message, imports it and copies. docs/ipc.md tells which path the bytes take.
namespace gaudi {

class device;
class lease_core;
class copier_core;
struct copy_policy;

// Names a piece of device memory of one process to the others of its host. It holds no descriptor and no
// pointer: it may travel in any message.
struct memory_handle {
    static constexpr std::size_t size = 128;
    std::array<std::byte, size> bytes{};
};

// What an owner gives away to processes it serves.
enum class ipc_give {
    context, // the descriptor of its device: importers use its engines, and could do anything else with it
    dmabuf,  // a DMA-BUF of the memory that was shared, and of its neighbours within a page
    nothing  // nothing: the owner copies on request
};

struct ipc_settings {
    ipc_give give = ipc_give::context;
    std::vector<std::uint32_t> allow{};       // users that are served beside the process's own
    std::size_t imports = 256;                // kept although nobody uses them at the moment
    std::chrono::milliseconds patience{5000}; // for an owner's answer
};
// From now on. The beginning: GAUDI_DIRECT_IPC_GIVE (context, dmabuf, nothing) and GAUDI_DIRECT_IPC_ALLOW
// (uids, separated by commas).
void set_ipc(const ipc_settings& settings);
// errc::setting_malformed where the environment makes no sense.
[[nodiscard]] result<ipc_settings> get_ipc();
// As people write them: "context", "dmabuf" or "nothing", and uids separated by commas; empty: the default.
[[nodiscard]] result<ipc_settings> parse_ipc(std::string_view give, std::string_view allow);

// ---- the owner ----

// Shares [address, address + length) of a live allocation until it is freed. The handle says which piece is
// meant; who holds it could reach the rest of the allocation. errc::not_allocated, range_leaves_allocation.
[[nodiscard]] result<memory_handle> share(device_address address, std::uint64_t length);
[[nodiscard]] result<memory_handle> share(const device_buffer& buffer);
// The same with a handle that can be taken back alone: who opened the memory with another handle keeps it.
// Where the owner copies, it opens the piece and no more.
[[nodiscard]] result<memory_handle> share_apart(device_address address, std::uint64_t length);
// Takes such a handle back, as revoke_leases does with all of them.
result<void> revoke_handle(const memory_handle& handle,
                           std::chrono::milliseconds limit = std::chrono::seconds(5));

// Lets other processes of this user open the device as well: open_device() there finds it busy and then joins
// this process's context, with memory of its own on it. The driver allows one context a device, so whoever
// joins could do anything to it. For as long as the device is open here. errc::address_in_use: another
// process offers it. Gaudi2 and later.
result<void> offer_device(device& shared);

// Another process that has the memory open.
struct lease_info {
    std::int32_t process = 0; // 0: in another pid namespace
    std::uint32_t user = 0;
    unsigned in_flight = 0; // copies of it under way
    bool revoked = false;
};
// Of the allocation that holds the address.
[[nodiscard]] std::vector<lease_info> leases_of(device_address address);
// Until nobody has the memory open. errc::leased.
result<void> wait_for_leases(device_address address, std::chrono::milliseconds limit);
// Takes the memory back: uses that begin later fail with errc::lease_revoked, the handle with handle_stale.
// Returns when no copy of it is under way any more. errc::leased: one still is.
result<void> revoke_leases(device_address address, std::chrono::milliseconds limit = std::chrono::seconds(5));
// Frees a buffer that nobody else has open. errc::leased: the buffer stays as it is. A buffer that is freed
// in any other way is revoked first.
enum class if_leased { refuse, wait };
result<void> free_shared(device_buffer& buffer, if_leased choice,
                         std::chrono::milliseconds limit = std::chrono::seconds(5));
// Ends everything: the owner's leases are revoked, once copies under way have ended (five seconds at most),
// imports end, the broker's thread and socket go. Sharing and importing again begin anew.
void stop_ipc();

// ---- the importer ----

struct import_options {
    std::optional<copy_path> only{}; // this path or none; whether it is viable shows at the first copy
    bool zero_copy =
        false; // neither staged nor by the owner: errc::zero_copy_impossible says what is missing
};

// Device memory of another process, under a lease that lasts as long as this object. Its copies go by a
// copier of the process that keeps no device open; a copier of one's own takes it as a place.
class imported_buffer {
public:
    imported_buffer();
    imported_buffer(std::shared_ptr<lease_core> lease, std::uint64_t offset, std::uint64_t length,
                    const import_options& options);
    imported_buffer(imported_buffer&&) noexcept;
    imported_buffer& operator=(imported_buffer&&) noexcept;
    ~imported_buffer();

    [[nodiscard]] std::uint64_t size() const { return length_; }
    // The memory is the owner's no more: freed, revoked, or the owner ended.
    [[nodiscard]] bool gone() const;

    // From and to host memory. errc::range_leaves_allocation, lease_revoked, peer_gone, zero_copy_impossible.
    [[nodiscard]] result<copy_ticket> read(std::span<std::byte> to, std::uint64_t offset = 0);
    [[nodiscard]] result<copy_ticket> write(std::uint64_t offset, std::span<const std::byte> from);
    // Pins host memory for copies through the owner's context, which then need no preparation.
    // errc::peer_refused where the owner does not give it.
    [[nodiscard]] result<pinned_memory> pin(std::span<std::byte> memory);
    // From and to memory of this process's own devices.
    [[nodiscard]] result<copy_ticket> read(device_address to, std::uint64_t offset, std::uint64_t length);
    [[nodiscard]] result<copy_ticket> write(std::uint64_t offset, device_address from, std::uint64_t length);

private:
    friend class copier_core;
    [[nodiscard]] copy_policy policy() const;

    std::shared_ptr<lease_core> lease_;
    std::uint64_t offset_ = 0, length_ = 0;
    import_options options_;
};

// Whether it is a handle at all, whosoever it is. errc::handle_invalid.
[[nodiscard]] result<void> check_handle(const memory_handle& handle);

// errc::handle_invalid, handle_stale, other_host, peer_gone, peer_refused, peer_silent, leases_exhausted. A
// handle whose lease is still known costs no system call.
[[nodiscard]] result<imported_buffer> import_memory(std::span<const std::byte> handle,
                                                    const import_options& options = {});
[[nodiscard]] inline result<imported_buffer> import_memory(const memory_handle& handle,
                                                           const import_options& options = {}) {
    return import_memory(std::span(handle.bytes), options);
}

// A process of this host as others know it. May travel as bytes.
struct process_name {
    std::uint64_t machine = 0;
    std::array<std::uint64_t, 2> random{};
    std::uint64_t start_time = 0;
    std::uint64_t pid_namespace = 0;
    std::uint64_t pid = 0;
};
[[nodiscard]] process_name own_process();
// Whether it has ended, as far as can be seen from here: not where it is in another pid namespace, unless
// memory of it was imported.
[[nodiscard]] bool has_ended(const process_name& process);

struct ipc_statistics {
    std::uint64_t shared = 0, leases = 0;            // as owner, alive
    std::uint64_t leases_given = 0;                  // since the broker began
    std::uint64_t hits = 0, misses = 0, evicted = 0; // of the imports that are kept
    std::uint64_t imports = 0;                       // alive
};
[[nodiscard]] ipc_statistics ipc_counters();

} // namespace gaudi
