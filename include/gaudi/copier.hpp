// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/address.hpp>
#include <gaudi/copy_engine.hpp>
#include <gaudi/copy_path.hpp>
#include <gaudi/copy_ticket.hpp>
#include <gaudi/device_heap.hpp>
#include <gaudi/dmabuf.hpp>
#include <gaudi/error.hpp>
#include <gaudi/ipc.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

namespace gaudi {

class copier_core;

/// One end of a copy. Names memory and owns nothing: the memory must stay valid until the copy has completed.
class place {
public:
    /// Host memory: a span, vector or array of std::byte. Const memory can only be the source: as the
    /// destination it is errc::host_range_invalid.
    template <typename Bytes>
    requires std::is_convertible_v<Bytes&&, std::span<const std::byte>>
    place(Bytes&& memory) // NOLINT(google-explicit-constructor): memory is a place
        : kind_(kind::host), read_only_(!std::is_convertible_v<Bytes&&, std::span<std::byte>>) {
        const std::span<const std::byte> bytes(memory);
        length_ = bytes.size();
        host_ = const_cast<std::byte*>(bytes.data());
    }
    /// Memory of a device that is open in this process.
    place(device_address address, std::uint64_t length)
        : kind_(kind::device), length_(length), address_(address) {}
    /// All of a buffer of a device that is open in this process.
    place(const device_buffer& buffer) // NOLINT(google-explicit-constructor)
        : place(buffer ? buffer.address() : device_address(), buffer ? buffer.size() : 0) {}
    /// Device memory where the caller knows the device, which saves a lookup.
    place(device_address address, std::uint64_t length, unsigned device_index)
        : kind_(kind::device), device_(static_cast<int>(device_index)), length_(length), address_(address) {}
    /// Memory of another process. The object must outlive the call that it is passed to, not the copy.
    place(const imported_buffer& buffer) // NOLINT(google-explicit-constructor)
        : place(buffer, 0, buffer.size()) {}
    /// A part of another process's memory, as above.
    place(const imported_buffer& buffer, std::uint64_t offset, std::uint64_t length)
        : kind_(kind::imported), length_(length), address_(device_address(offset)), imported_(&buffer) {}
    /// Any DMA-BUF: of a GPU, of an FPGA, udmabuf. The iova is ignored. The caller owns the descriptor and
    /// may close it when the call that it is passed to has returned.
    place(const dmabuf_export& window) // NOLINT(google-explicit-constructor)
        : kind_(kind::dmabuf), fd_(window.fd), length_(window.length),
          address_(device_address(window.offset)) {}

    /// The length in bytes.
    [[nodiscard]] std::uint64_t length() const { return length_; }

private:
    friend class copier_core;
    friend struct copy_job;
    enum class kind : std::uint8_t { host, device, imported, dmabuf };

    kind kind_;
    bool read_only_ = false;
    int device_ = -1; ///< index of the device, if it is known
    int fd_ = -1;
    std::uint64_t length_ = 0;
    std::byte* host_ = nullptr;
    device_address address_; ///< of device memory; otherwise the offset in the imported buffer or the DMA-BUF
    const imported_buffer* imported_ = nullptr;
};

/// What a copier prefers, and what it keeps between copies.
struct copier_options {
    copy_options engines{}; ///< for engines that this copier is the first to use
    /// Copies of up to this many bytes between host and device memory try a NIC first, which takes a few
    /// microseconds where an engine takes ten times that. 0: a NIC is used only where there is no engine.
    std::uint64_t nic_max = 0;
    /// Whether engines, pinned slabs and imports are kept for the next copy. They keep their devices open.
    bool keep = true;
};

/// Which paths a copy may take.
struct copy_policy {
    std::optional<copy_path> only{}; ///< this path or none
    bool zero_copy = false;          ///< neither staged nor copied by the owner: errc::zero_copy_impossible
    copy_hints hints{};              ///< for copies on an engine
};

/// Whether a path is viable for two given places.
struct path_verdict {
    copy_path path = copy_path::host_copy;
    std::optional<error> why_not; ///< empty: the path is viable
};

/// Copies bytes between any two places by the best viable path. copy_ticket::wait() and destroying a ticket
/// block. So may the first use of a path, which may open a NIC, or send a request to another process and wait
/// for its answer (ipc_settings::answer_timeout at most); paths() uses each path for the first time. A copy
/// that a NIC makes first (see copier_options::nic_max; up to 64 KiB), and one within host memory, has
/// completed when copy() returns. Copies are not ordered. Thread-safe.
///
/// A kept engine, slab or import keeps its device open. Before such a device can be opened again, destroy the
/// copier, or call forget() or drop_lost().
class copier {
public:
    explicit copier(const copier_options& options = {}); ///< opens nothing yet
    ~copier();                                           ///< copies in flight continue
    copier(copier&&) noexcept;
    copier& operator=(copier&&) noexcept;

    /// Starts a copy; both lengths must be equal. The caller owns the ticket. errc::length_mismatch,
    /// size_zero, not_allocated, range_leaves_allocation, ranges_overlap, device_lost, lease_revoked,
    /// peer_gone; no_path and zero_copy_impossible name what prevented each path.
    [[nodiscard]] result<copy_ticket> copy(const place& to, const place& from,
                                           const copy_policy& policy = {});
    /// Every path for these two places, in the order in which they are tried. Prepares what a copy would
    /// need, and copies nothing.
    [[nodiscard]] std::vector<path_verdict> paths(const place& to, const place& from);

    /// Drives all outstanding copies of this copier without blocking.
    void poll();
    /// A descriptor that becomes readable, after arm(), when poll() may have something to do. The copier owns
    /// it: do not close it.
    [[nodiscard]] result<int> event_fd();
    /// Makes event_fd() readable when the next copy completes. After this call and before sleeping, check
    /// whether a copy has completed already.
    void arm();

    /// The engine of a device that is open in this process. errc::not_allocated: it is not open;
    /// copies_absent.
    [[nodiscard]] result<copy_engine> engine_of(unsigned device_index);
    /// Releases everything that is kept of the device.
    void forget(unsigned device_index);
    /// Releases everything that is kept of devices that failed or were reset.
    void drop_lost();

private:
    std::shared_ptr<copier_core> core_;
};

} // namespace gaudi
