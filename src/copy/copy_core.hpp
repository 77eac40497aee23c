// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/address_map.hpp>
#include <gaudi/copy_engine.hpp>

#include "src/hl/hl_device.hpp"

namespace gaudi {

enum class copy_direction : std::uint8_t { down, up, within };

// What a copy engine does, whoever has the queues. An operation is known by its slot.
class copy_core {
public:
    // On the device's own queues, or by SynapseAI's call where these are its. `known`: where addresses are
    // looked up; none: whoever submits has done so. errc::copies_absent with the reason.
    static result<std::shared_ptr<copy_core>> make(const std::shared_ptr<hl_device>& device,
                                                   const address_map* known, const copy_options& options);
    copy_core() = default;
    virtual ~copy_core() = default;
    copy_core(const copy_core&) = delete;
    copy_core& operator=(const copy_core&) = delete;

    virtual result<std::uint32_t> write(device_address to, std::span<const std::byte> from,
                                        const copy_hints& hints) = 0;
    virtual result<std::uint32_t> read(std::span<std::byte> to, device_address from,
                                       const copy_hints& hints) = 0;
    virtual result<std::uint32_t> copy(device_address to, device_address from, std::uint64_t length,
                                       const copy_hints& hints) = 0;
    // Addresses that are known to be the device's to reach, without a look into the address map.
    virtual result<std::uint32_t> copy_unchecked(device_address to, device_address from, std::uint64_t length,
                                                 copy_direction direction, const copy_hints& hints) = 0;
    virtual result<std::uint32_t> write_unchecked(device_address to, std::span<const std::byte> from,
                                                  const copy_hints& hints) = 0;
    virtual result<std::uint32_t> read_unchecked(std::span<std::byte> to, device_address from,
                                                 const copy_hints& hints) = 0;

    virtual std::size_t poll() = 0;
    [[nodiscard]] virtual bool done(std::uint32_t slot) = 0;
    [[nodiscard]] virtual bool finished(std::uint32_t slot) = 0;
    virtual result<void> wait(std::uint32_t slot, std::chrono::milliseconds limit) = 0;
    virtual void drop(std::uint32_t slot) = 0;
    virtual result<int> event_fd() = 0;
    virtual result<pinned_memory> pin(std::span<std::byte> memory) = 0;
    [[nodiscard]] virtual copy_statistics statistics() = 0;
    [[nodiscard]] virtual std::vector<queue_use> queues() = 0;
    [[nodiscard]] virtual hl_device& device() = 0;
};

// Pinned memory as its engine keeps it.
class pin_core {
public:
    pin_core() = default;
    virtual ~pin_core() = default;
    pin_core(const pin_core&) = delete;
    pin_core& operator=(const pin_core&) = delete;
    [[nodiscard]] virtual std::span<std::byte> bytes() const = 0;
    [[nodiscard]] virtual device_address address() const = 0;
};

} // namespace gaudi
