// SPDX-License-Identifier: BSD-3-Clause
// The catalogue of errors: kind, meaning and remedy of each code. The remedy is fixed text; what was observed
// comes from the place that fails.
#include <gaudi/error.hpp>

#include <cstring>
#include <fmt/format.h>

namespace gaudi {
namespace {

using enum error_kind;

const std::vector<error_description> catalogue = {
    {errc::library_missing, "library_missing", unsupported, "hl-thunk was not found",
     "install the vendor's driver package, set GAUDI_DIRECT_HLTHUNK to the path of libhl-thunk.so, or run in "
     "the lab: "
     "gaudi-direct lab run -- COMMAND"},
    {errc::library_unusable, "library_unusable", unsupported, "hl-thunk is there but cannot be loaded",
     "install the library for this architecture with its dependencies"},
    {errc::symbol_missing, "symbol_missing", unsupported, "hl-thunk lacks a function that is needed",
     "use hl-thunk 1.10 or later"},
    {errc::no_device, "no_device", unsupported, "the driver knows no Gaudi",
     "check that the driver is loaded (lsmod, ls /dev/accel), or run in the lab: gaudi-direct lab run -- "
     "COMMAND"},
    {errc::device_unknown, "device_unknown", invalid, "there is no such device",
     "gaudi-direct info lists those there are"},
    {errc::device_hidden, "device_hidden", not_permitted, "the environment hides the device",
     "check HABANA_VISIBLE_DEVICES and HABANA_VISIBLE_MODULES"},
    {errc::selection_malformed, "selection_malformed", invalid, "a device selection cannot be read",
     "use numbers separated by commas, or 'all'"},
    {errc::setting_malformed, "setting_malformed", invalid, "a setting makes no sense",
     "use one of the values that the message names"},
    {errc::device_busy, "device_busy", busy, "another process has the device open",
     "end that process, close its DMA-BUFs and memory regions, choose another device, or let its owner share "
     "it "
     "(offer_device, UCX_GAUDI_COPY_SHARE_DEVICE=y)"},
    {errc::device_broken, "device_broken", device_lost, "the driver has disabled the device",
     "check the kernel log and reset the device"},
    {errc::open_failed, "open_failed", not_permitted, "the device cannot be opened",
     "check the rights on /dev/accel and the kernel log"},
    {errc::generation_unknown, "generation_unknown", unsupported,
     "a device of a generation this library does not know", "update gaudi-direct"},
    {errc::size_zero, "size_zero", invalid, "an empty range", "ask for at least one byte"},
    {errc::size_beyond_memory, "size_beyond_memory", exhausted, "more than the device has",
     "ask for less; gaudi-direct info shows the size"},
    {errc::alignment_invalid, "alignment_invalid", invalid, "an alignment that cannot be met",
     "use a power of two from 64 bytes to 2 MiB"},
    {errc::memory_exhausted, "memory_exhausted", exhausted, "no device memory left",
     "free buffers or trim heaps; the driver allocates in pages of its own (768 MB on Gaudi2)"},
    {errc::map_failed, "map_failed", exhausted, "the driver does not map the memory",
     "free mappings or check RLIMIT_MEMLOCK"},
    {errc::host_range_invalid, "host_range_invalid", invalid, "host memory that cannot be pinned",
     "pass ordinary, writable memory that is mapped in full"},
    {errc::not_allocated, "not_allocated", invalid, "no live allocation at this address",
     "check for a buffer that was freed, twice or too early"},
    {errc::pytorch_handle, "pytorch_handle", invalid, "a handle of PyTorch's allocator, not an address",
     "pass what habana_frameworks.torch.utils.experimental._data_ptr(tensor) returns, not tensor.data_ptr()"},
    {errc::wrong_device, "wrong_device", invalid, "memory of another device",
     "use that device's engine, or a copier, which copies between any two"},
    {errc::range_leaves_allocation, "range_leaves_allocation", invalid,
     "a range that ends outside its allocation", "check offset and length against the buffer's size"},
    {errc::ranges_overlap, "ranges_overlap", invalid, "ranges that overlap",
     "use ranges that do not overlap"},
    {errc::address_collision, "address_collision", unsupported, "two devices use the same addresses",
     "use one process per device of this generation"},
    {errc::export_refused, "export_refused", unsupported,
     "the driver does not export the memory as a DMA-BUF",
     "check that the full BAR is visible (large BAR in the firmware settings); data can still be staged "
     "through host memory"},
    {errc::export_offset_ignored, "export_offset_ignored", unsupported,
     "this driver exports nothing but whole allocations",
     "use Linux 6.7 or newer, or the vendor's driver; between processes GAUDI_DIRECT_IPC_GIVE=context passes "
     "no DMA-BUF"},
    {errc::import_unsupported, "import_unsupported", unsupported, "the driver cannot import a DMA-BUF",
     "use the vendor's driver; data can still be staged through host memory"},
    {errc::import_refused, "import_refused", unsupported, "the driver refuses this DMA-BUF",
     "check that both devices can reach each other over PCIe"},
    {errc::copies_absent, "copies_absent", unsupported, "no copy engine for this device",
     "copy with a copier and a NIC that registers DMA-BUFs, or through SynapseAI, which owns the queues"},
    {errc::copy_refused, "copy_refused", invalid, "the driver refuses the submission",
     "report this with the message above"},
    {errc::copy_timeout, "copy_timeout", busy, "a copy did not complete within the limit",
     "wait longer; the copy continues"},
    {errc::device_lost, "device_lost", device_lost, "the device failed or was reset",
     "close everything of this device and open it again; its memory is lost"},
    {errc::verbs_missing, "verbs_missing", unsupported, "libibverbs was not found or lacks a function",
     "install libibverbs1, set GAUDI_DIRECT_VERBS to the path of a libibverbs, or run in the lab: "
     "gaudi-direct "
     "lab run -- COMMAND"},
    {errc::no_nic, "no_nic", unsupported, "no RDMA NIC",
     "check ibv_devices and the NIC's driver, or run in the lab: gaudi-direct lab run -- COMMAND"},
    {errc::nic_unknown, "nic_unknown", invalid, "there is no such NIC or port",
     "take one of those that are listed; ibv_devices lists them too"},
    {errc::nic_open_failed, "nic_open_failed", not_permitted, "the NIC cannot be opened",
     "check the rights on /dev/infiniband"},
    {errc::nic_of_gaudi, "nic_of_gaudi", unsupported, "a Gaudi's own ports are not opened",
     "name another NIC: opening them would take them away from HCCL"},
    {errc::port_down, "port_down", unsupported, "the NIC's port is not active",
     "check cable, switch and interface, or choose another NIC"},
    {errc::gid_invalid, "gid_invalid", invalid, "no such GID",
     "take an index that `show_gids` or ibv_devinfo -v lists, or give the interface an address"},
    {errc::dmabuf_unsupported, "dmabuf_unsupported", unsupported, "the NIC does not register DMA-BUFs",
     "use a NIC and driver that do (mlx5, irdma, bnxt_re, efa on Linux 6.12); data can still be staged "
     "through "
     "host memory"},
    {errc::registration_refused, "registration_refused", exhausted, "the NIC does not register the memory",
     "check RLIMIT_MEMLOCK (ulimit -l) and that the memory is mapped in full"},
    {errc::registrations_exhausted, "registrations_exhausted", exhausted,
     "every registration that the limits allow is in use", "release regions, or raise registration_limits"},
    {errc::zero_copy_impossible, "zero_copy_impossible", unsupported,
     "zero-copy was required and is impossible", "fix the cause named above, or allow staging"},
    {errc::remote_staged, "remote_staged", unsupported, "staged memory has no address that a NIC can use",
     "use send and receive, or fix what prevents zero-copy"},
    {errc::rights_invalid, "rights_invalid", invalid, "a key with rights that do not exist, or with none",
     "ask for remote_access::read, write or atomic, or several of them"},
    {errc::host_unknown, "host_unknown", invalid, "the host or port cannot be resolved",
     "check the spelling: HOST, HOST:PORT or [IPV6]:PORT"},
    {errc::connection_refused, "connection_refused", peer_gone, "no program listens there",
     "start the server first, and check host, port and firewall"},
    {errc::address_in_use, "address_in_use", busy, "the port cannot be listened on",
     "choose another port, or end the program that has it"},
    {errc::handshake_timeout, "handshake_timeout", peer_gone, "the peer did not answer in time",
     "check that the peer is a gaudi-direct program and is not overloaded, or raise the deadline"},
    {errc::handshake_refused, "handshake_refused", invalid, "the handshake with the peer failed",
     "check that the port belongs to a gaudi-direct program and that both NICs have the same link layer"},
    {errc::version_mismatch, "version_mismatch", invalid, "the peer has another version",
     "install the same version of gaudi-direct on both sides"},
    {errc::protocol_violated, "protocol_violated", invalid, "the peer sent what the protocol does not allow",
     "check that the peer is a gaudi-direct program of the same version"},
    {errc::peer_gone, "peer_gone", peer_gone, "the peer is no longer there",
     "start the other side again and connect, or import its memory, anew"},
    {errc::connection_broken, "connection_broken", peer_gone, "the connection failed",
     "start the other side again and connect, or import its memory, anew"},
    {errc::message_too_long, "message_too_long", invalid, "the peer's receive is smaller than the message",
     "post a larger receive, or send less"},
    {errc::length_mismatch, "length_mismatch", invalid, "the two regions differ in length",
     "take parts of equal length"},
    {errc::remote_access, "remote_access", invalid, "the peer's NIC refused the access",
     "check that the remote region is still registered and covers the range"},
    {errc::atomics_absent, "atomics_absent", unsupported, "one of the two NICs has no atomic operations",
     "use a NIC that has them, or messages"},
    {errc::too_many_operations, "too_many_operations", exhausted, "too many outstanding operations",
     "wait for some, or raise connection_options::operations"},
    {errc::wait_timeout, "wait_timeout", busy, "nothing arrived within the limit",
     "wait longer; operations that were started continue"},
    {errc::handle_invalid, "handle_invalid", invalid, "no handle of shared memory, or a damaged one",
     "pass all bytes of memory_handle, unchanged, between processes with the same version of gaudi-direct"},
    {errc::handle_stale, "handle_stale", invalid, "a handle of memory that is no longer shared",
     "its owner freed the memory or stopped sharing it: ask the owner for a new handle"},
    {errc::other_host, "other_host", unsupported, "memory of another host",
     "use a connection or UCX over a network between hosts"},
    {errc::peer_refused, "peer_refused", not_permitted, "the owner of the memory does not serve this user",
     "run both processes as one user, or name the other's uid in GAUDI_DIRECT_IPC_ALLOW"},
    {errc::not_granted, "not_granted", not_permitted, "the owner of the memory does not grant this access",
     "set GAUDI_DIRECT_IPC_GIVE or UCX_GAUDI_IPC_GIVE of the owner, or let the library choose the path"},
    {errc::no_path, "no_path", unsupported, "no path for these bytes",
     "allow every path (no copy_policy::only, no import_options::only), or fix a cause named above; "
     "docs/copies.md lists what each path needs, gaudi-direct info --paths what is missing"},
    {errc::peer_silent, "peer_silent", peer_gone, "the owner of the memory does not answer",
     "check the owner: it is stopped, or busy for longer than the deadline"},
    {errc::lease_revoked, "lease_revoked", peer_gone, "the owner revoked the lease",
     "open it again from a new handle"},
    {errc::leased, "leased", busy, "other processes still use the memory",
     "wait for the leases to end, or revoke them"},
    {errc::leases_exhausted, "leases_exhausted", exhausted, "too many leases",
     "close imported buffers that are no longer used"},
    {errc::forked, "forked", invalid, "an object of the parent process",
     "open devices, NICs, connections and imports anew in a process that was forked"},
    {errc::descriptors_exhausted, "descriptors_exhausted", exhausted, "no file descriptor left",
     "raise RLIMIT_NOFILE (ulimit -n) or close some"},
    {errc::system_call_failed, "system_call_failed", exhausted, "the operating system refused",
     "see the errno"},
};

constexpr std::string_view kind_names[] = {"unsupported", "not permitted", "busy",       "exhausted",
                                           "invalid",     "peer gone",     "device lost"};

} // namespace

const std::vector<error_description>& error_catalogue() {
    return catalogue;
}

const error_description& describe(errc code) {
    return catalogue[static_cast<std::size_t>(code)];
}

std::string_view name_of(error_kind kind) {
    return kind_names[static_cast<std::size_t>(kind)];
}

std::string error::message() const {
    const auto& row = describe(code_);
    auto text = fmt::format("{} ({}): {}", row.meaning, name_of(row.kind), observed_);
    if (system_error_ != 0) {
        const char* name = strerrorname_np(system_error_);
        text +=
            fmt::format(": {} ({})", std::strerror(system_error_), name != nullptr ? name : "unknown errno");
    }
    // An error that was brought here by another has that one's remedy already.
    return text.ends_with(row.remedy) ? text : text + fmt::format("; {}", row.remedy);
}

} // namespace gaudi
