// SPDX-License-Identifier: BSD-3-Clause
#include "src/ipc/handle.hpp"

#include <cstddef>
#include <cstring>
#include <fmt/format.h>

namespace gaudi {
namespace {

std::uint64_t checksum_of(const handle_record& record) {
    return checksum64(&record, offsetof(handle_record, checksum));
}

} // namespace

void handle_record::set_owner(const process_identity& process) {
    machine = process.machine;
    random = process.random;
    start_time = process.start_time;
    pid = process.pid;
}

memory_handle handle_record::seal() {
    checksum = checksum_of(*this);
    memory_handle sealed;
    std::memcpy(sealed.bytes.data(), this, sizeof(*this));
    return sealed;
}

result<handle_record> read_handle(std::span<const std::byte> bytes) {
    const auto refuse = [](std::string why) {
        return tl::unexpected(error(errc::handle_invalid, std::move(why)));
    };
    if (bytes.size() != memory_handle::size)
        return refuse(fmt::format("{} bytes, expected {}", bytes.size(), memory_handle::size));
    handle_record record;
    std::memcpy(&record, bytes.data(), sizeof(record));
    if (record.magic != handle_record::magic_value)
        return refuse("bytes that are no handle");
    if (record.size != memory_handle::size)
        return refuse(fmt::format("its length field is {} bytes, not {}", record.size, memory_handle::size));
    if (record.version != handle_record::current_version)
        return refuse(
            fmt::format("version {}, this library knows {}", record.version, handle_record::current_version));
    if (record.checksum != checksum_of(record))
        return refuse("the checksum is wrong");
    if (record.length == 0 || record.offset > record.allocated ||
        record.length > record.allocated - record.offset || record.base + record.allocated < record.base)
        return refuse(
            fmt::format("{} bytes at offset {} of {}", record.length, record.offset, record.allocated));
    return record;
}

} // namespace gaudi
