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

// One end of a copy. Names memory and owns nothing: what it names must stay until the copy is done.
class place {
public:
    // Host memory: a span, vector or array of std::byte. What is const can only be copied from: as the
    // destination it is errc::host_range_invalid.
    template <typename Bytes>
    requires std::is_convertible_v<Bytes&&, std::span<const std::byte>>
    place(Bytes&& memory) // NOLINT(google-explicit-constructor): memory is a place
        : kind_(kind::host), read_only_(!std::is_convertible_v<Bytes&&, std::span<std::byte>>) {
        const std::span<const std::byte> bytes(memory);
        length_ = bytes.size();
        host_ = const_cast<std::byte*>(bytes.data());
    }
    // Memory of a device that is open in this process.
    place(device_address address, std::uint64_t length)
        : kind_(kind::device), length_(length), address_(address) {}
    place(const device_buffer& buffer) // NOLINT(google-explicit-constructor)
        : place(buffer ? buffer.address() : device_address(), buffer ? buffer.size() : 0) {}
    // The same where the caller knows the device, which saves a look.
    place(device_address address, std::uint64_t length, unsigned device_index)
        : kind_(kind::device), device_(static_cast<int>(device_index)), length_(length), address_(address) {}
    // Memory of another process. The object must outlive the call that it is given to, not the copy.
    place(const imported_buffer& buffer) // NOLINT(google-explicit-constructor)
        : place(buffer, 0, buffer.size()) {}
    place(const imported_buffer& buffer, std::uint64_t offset, std::uint64_t length)
        : kind_(kind::imported), length_(length), address_(device_address(offset)), imported_(&buffer) {}
    // Any DMA-BUF: a GPU's, an FPGA's, udmabuf. The iova does not matter. The descriptor stays the caller's,
    // and may be closed when the call that it is given to has returned.
    place(const dmabuf_export& window) // NOLINT(google-explicit-constructor)
        : kind_(kind::dmabuf), fd_(window.fd), length_(window.length),
          address_(device_address(window.offset)) {}

    [[nodiscard]] std::uint64_t length() const { return length_; }

private:
    friend class copier_core;
    friend struct copy_job;
    enum class kind : std::uint8_t { host, device, imported, dmabuf };

    kind kind_;
    bool read_only_ = false;
    int device_ = -1; // of a device's memory: its index, where it is known
    int fd_ = -1;
    std::uint64_t length_ = 0;
    std::byte* host_ = nullptr;
    device_address address_; // of a device's memory; else the offset in the imported buffer or the DMA-BUF
    const imported_buffer* imported_ = nullptr;
};

struct copier_options {
    copy_options engines{}; // for an engine that nobody uses yet
    // Copies between host and device memory up to this length go by a NIC first, which takes a few
    // microseconds where an engine takes ten times that. 0: only where there is no engine.
    std::uint64_t nic_max = 0;
    // Whether engines, pinned slabs and imports are kept for the next copy. They keep their devices open.
    bool keep = true;
};

struct copy_policy {
    std::optional<copy_path> only{}; // this path or none
    bool zero_copy = false;          // neither staged nor by the owner: errc::zero_copy_impossible
    copy_hints hints{};              // for an engine
};

// A path as it is for two places.
struct path_verdict {
    copy_path path = copy_path::host_copy;
    std::optional<error> why_not; // none: the path is viable
};

// Copies bytes between any two places by the best path that there is. Nothing blocks but ticket.wait(); a
// copy between host and device of at most copier_options::nic_max bytes, and one within host memory, is done
// when copy() returns. Copies are in no order. Thread-safe.
//
// A kept engine, slab or import keeps its device open, so that a copier goes before the device shall be
// opened again: by its destructor, by forget(), or by drop_lost().
class copier {
public:
    explicit copier(const copier_options& options = {});
    ~copier(); // copies under way go on
    copier(copier&&) noexcept;
    copier& operator=(copier&&) noexcept;

    // errc::length_mismatch, size_zero, not_allocated, range_leaves_allocation, ranges_overlap, device_lost,
    // lease_revoked, peer_gone; no_path and zero_copy_impossible say what stood against every path.
    [[nodiscard]] result<copy_ticket> copy(const place& to, const place& from,
                                           const copy_policy& policy = {});
    // Every path for these two places, in the order in which they are tried. Prepares what a copy would need,
    // and copies nothing.
    [[nodiscard]] std::vector<path_verdict> paths(const place& to, const place& from);

    // Drives all copies of this copier without blocking.
    void poll();
    // Readable when poll() may have something to do, after arm(). The copier's; do not close it.
    [[nodiscard]] result<int> event_fd();
    // The next copy that ends makes event_fd() readable. Look, after this and before you sleep, whether one
    // has.
    void arm();

    // The engine of a device that is open in this process. errc::not_allocated: it is not open;
    // copies_absent.
    [[nodiscard]] result<copy_engine> engine_of(unsigned device_index);
    // Nothing of the device is kept any more.
    void forget(unsigned device_index);
    // Nothing is kept of devices that failed or were reset.
    void drop_lost();

private:
    std::shared_ptr<copier_core> core_;
};

} // namespace gaudi
