// SPDX-License-Identifier: BSD-3-Clause
#include <gaudi/region.hpp>

#include "src/error/try.hpp"
#include "src/os/byte_order.hpp"
#include "src/rdma/registration_cache.hpp"
#include "src/rdma/staging_source.hpp"

#include <fmt/format.h>
#include <utility>

namespace gaudi {

std::string_view name_of(memory_path path) {
    constexpr std::string_view names[] = {"host", "zero-copy", "staged"};
    return names[static_cast<std::size_t>(path)];
}

std::string name_of(remote_access rights) {
    std::string text;
    for (const auto& [right, name] :
         {std::pair{remote_access::read, "read"}, std::pair{remote_access::write, "write"},
          std::pair{remote_access::atomic, "atomic"}})
        if (allows(rights, right))
            text += fmt::format("{}{}", text.empty() ? "" : ", ", name);
    return text.empty() ? "nothing" : text;
}

std::array<std::byte, remote_region::encoded_bytes> remote_region::encode() const {
    std::array<std::byte, encoded_bytes> bytes{};
    packer(bytes)
        .put(address)
        .put(length)
        .put(key)
        .put(static_cast<std::uint16_t>(rights))
        .put(static_cast<std::uint16_t>(path));
    return bytes;
}

result<remote_region> remote_region::decode(std::span<const std::byte> bytes) {
    if (bytes.size() != encoded_bytes)
        return tl::unexpected(error(errc::protocol_violated, fmt::format("a region in {} bytes instead of {}",
                                                                         bytes.size(), encoded_bytes)));
    unpacker in(bytes);
    remote_region region;
    region.address = in.get<std::uint64_t>();
    region.length = in.get<std::uint64_t>();
    region.key = in.get<std::uint32_t>();
    const auto rights = in.get<std::uint16_t>();
    const auto path = in.get<std::uint16_t>();
    if (path > static_cast<std::uint16_t>(memory_path::staged) ||
        rights > static_cast<std::uint16_t>(remote_access::all) ||
        region.address + region.length < region.address)
        return tl::unexpected(
            error(errc::protocol_violated, fmt::format("a region of {} bytes at {:#x}, path {}, rights {}",
                                                       region.length, region.address, path, rights)));
    region.path = static_cast<memory_path>(path);
    region.rights = static_cast<remote_access>(rights);
    return region;
}

namespace {

result<void> check_part(std::uint64_t whole, std::uint64_t offset, std::uint64_t length) {
    if (offset <= whole && length <= whole - offset)
        return {};
    return tl::unexpected(
        error(errc::range_leaves_allocation,
              fmt::format("{} bytes at offset {} of a region of {}", length, offset, whole)));
}

} // namespace

result<remote_region> remote_region::part(std::uint64_t offset, std::uint64_t bytes) const {
    GAUDI_CHECK(check_part(length, offset, bytes));
    auto taken = *this;
    taken.address += offset;
    taken.length = bytes;
    return taken;
}

std::string_view local_region::reason() const {
    return source_ ? std::string_view(source_->reason()) : std::string_view{};
}

result<local_region> local_region::part(std::uint64_t offset, std::uint64_t bytes) const {
    GAUDI_CHECK(check_part(length_, offset, bytes));
    auto taken = *this;
    taken.address_ += offset;
    taken.length_ = bytes;
    return taken;
}

result<remote_key> local_region::expose(remote_access rights) const {
    if (path_ == memory_path::staged)
        return tl::unexpected(error(errc::remote_staged, std::string(reason())));
    const auto cache = registration_ ? registration_->cache() : nullptr;
    if (!cache)
        return tl::unexpected(error(errc::not_allocated, "a key to a region of a NIC that was closed"));
    // The local registration has no remote rights: a key is a registration of its own, of these bytes alone.
    return cache->expose(*this, rights);
}

} // namespace gaudi
