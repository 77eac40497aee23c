// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/address.hpp>
#include <gaudi/error.hpp>
#include <gaudi/memory_path.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace gaudi {

class registration;
class registration_cache;
class staging_source;
struct internals;

/// Which paths are allowed for device memory.
enum class path_policy : std::uint8_t {
    prefer_zero_copy,  ///< staged where zero-copy is impossible; local_region::reason() names the cause
    require_zero_copy, ///< errc::zero_copy_impossible where it is impossible
    staged_only        ///< for comparison measurements
};

/// What a peer may do with memory that it has a key for. Combined with |.
enum class remote_access : std::uint8_t { none = 0, read = 1, write = 2, atomic = 4, all = 7 };
/// The rights of `a` and `b` together.
[[nodiscard]] constexpr remote_access operator|(remote_access a, remote_access b) {
    return static_cast<remote_access>(static_cast<std::uint8_t>(a) | static_cast<std::uint8_t>(b));
}
/// Whether `rights` include all of `wanted`.
[[nodiscard]] constexpr bool allows(remote_access rights, remote_access wanted) {
    return (static_cast<std::uint8_t>(rights) & static_cast<std::uint8_t>(wanted)) ==
           static_cast<std::uint8_t>(wanted);
}
/// The rights in words, as in "read, write"; "nothing" for none.
[[nodiscard]] std::string name_of(remote_access rights);

/// Memory of a peer, as this process may address it. The values came over the network.
struct remote_region {
    std::uint64_t address = 0;
    std::uint64_t length = 0;
    std::uint32_t key = 0;
    memory_path path = memory_path::host;
    remote_access rights = remote_access::all;

    static constexpr std::size_t encoded_bytes = 24; ///< the length of encode()'s result
    /// The region as bytes to send: big-endian, the same on every host.
    [[nodiscard]] std::array<std::byte, encoded_bytes> encode() const;
    /// Reads what encode() wrote. errc::protocol_violated: the bytes are not a valid region.
    [[nodiscard]] static result<remote_region> decode(std::span<const std::byte> bytes);
    /// A part of the region. errc::range_leaves_allocation.
    [[nodiscard]] result<remote_region> part(std::uint64_t offset, std::uint64_t length) const;
};

/// A key that a peer may use. It gives access to exactly the bytes of its region, with the rights that were
/// asked for. It is valid until the last copy of this object is destroyed, or until the device buffer is
/// freed; a request with a key that is no longer valid fails at the peer with IBV_WC_REM_ACCESS_ERR and
/// breaks that connection.
class remote_key {
public:
    remote_key() = default;

    /// The values that the peer needs to use the key.
    [[nodiscard]] const remote_region& region() const { return region_; }
    /// False after the buffer was freed.
    [[nodiscard]] bool valid() const;

private:
    friend class registration_cache;
    remote_region region_;
    std::uint64_t generation_ = 0; ///< of the device buffer; 0: host memory, or SynapseAI's
    std::shared_ptr<const registration> registration_; ///< shared by all keys to the same bytes and rights
};

/// Memory of this process that a NIC can access: a reference to a registration, which regions of the same
/// memory share. The registration has local rights only: no peer can use it. The memory must outlive the
/// region. Cheap to copy; one thread at a time may use it, like the connection it is used with.
class local_region {
public:
    local_region() = default;

    /// The host pointer or the device address of the first byte.
    [[nodiscard]] std::uint64_t address() const { return address_; }
    /// The length in bytes.
    [[nodiscard]] std::uint64_t length() const { return length_; }
    /// How the NIC accesses the memory.
    [[nodiscard]] memory_path path() const { return path_; }
    /// For staged device memory: why it is not zero-copy.
    [[nodiscard]] std::string_view reason() const;
    /// The lkey of the registration; 0 for staged memory.
    [[nodiscard]] std::uint32_t local_key() const { return local_key_; }
    /// A part of the region. errc::range_leaves_allocation.
    [[nodiscard]] result<local_region> part(std::uint64_t offset, std::uint64_t length) const;
    /// Makes a key for peers, which the caller owns. The first one for these bytes and rights registers them
    /// with the NIC; while it lives further ones cost no system call. errc::remote_staged for staged memory,
    /// which no NIC can address; rights_invalid, atomics_absent, not_allocated (the buffer was freed),
    /// registration_refused.
    [[nodiscard]] result<remote_key> expose(remote_access rights) const;
    /// False after the device buffer was freed.
    [[nodiscard]] bool allocated() const;

private:
    friend class registration_cache;
    friend class nic;
    friend struct internals;
    std::uint64_t address_ = 0; ///< host pointer or device address
    std::uint64_t length_ = 0;
    std::uint64_t generation_ = 0; ///< of the device buffer; 0: host memory, or SynapseAI's
    std::uint32_t local_key_ = 0;
    memory_path path_ = memory_path::host;
    /// Shared: a registration serves every buffer of its chunk.
    std::shared_ptr<const registration> registration_;
    std::shared_ptr<const staging_source> source_;
};

} // namespace gaudi
