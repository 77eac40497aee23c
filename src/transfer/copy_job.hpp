// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/copier.hpp>

#include "src/ipc/lease_core.hpp"

namespace gaudi {

// One end of a copy, looked up.
struct copy_end {
    enum class kind : std::uint8_t { host, device, leased, dmabuf };

    kind what = kind::host;
    unsigned device = 0; // index, of memory of this process's devices
    int fd = -1;         // of a DMA-BUF
    std::byte* host = nullptr;
    device_address address;   // of a device's memory; of leased memory as its owner knows it
    std::uint64_t offset = 0; // in the allocation that is leased, or in the DMA-BUF

    [[nodiscard]] bool is(kind which) const { return what == which; }
};

// A copy that a caller requested.
struct copy_job {
    copy_end to, from;
    std::uint64_t length = 0;
    copy_hints hints;
    std::shared_ptr<lease_core> lease; // of the leased end
    std::shared_ptr<const void> kept;  // until the copy has ended: counts it as in flight on the lease

    [[nodiscard]] bool has(copy_end::kind which) const { return to.is(which) || from.is(which); }
    // The end of that kind, and the other end.
    [[nodiscard]] const copy_end& end_of(copy_end::kind which) const { return to.is(which) ? to : from; }
    [[nodiscard]] const copy_end& other_than(copy_end::kind which) const { return to.is(which) ? from : to; }
    [[nodiscard]] bool between_host_and_device() const {
        return has(copy_end::kind::host) && has(copy_end::kind::device);
    }
    [[nodiscard]] std::span<std::byte> host_of(const copy_end& end) const { return {end.host, length}; }
};

} // namespace gaudi
