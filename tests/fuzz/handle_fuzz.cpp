// SPDX-License-Identifier: BSD-3-Clause
// Arbitrary bytes as a handle: read_handle() refuses them or returns consistent fields.
#include "src/ipc/handle.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const auto bytes = std::as_bytes(std::span(data, size));
    for (const bool sealed : {false, true}) {
        gaudi::memory_handle handle;
        std::copy_n(bytes.begin(), std::min(size, handle.bytes.size()), handle.bytes.begin());
        gaudi::handle_record record;
        std::memcpy(&record, handle.bytes.data(), sizeof(record));
        if (sealed) { // a valid checksum, to reach the later checks
            record.magic = gaudi::handle_record::magic_value;
            record.version = gaudi::handle_record::current_version;
            record.size = gaudi::memory_handle::size;
            handle = record.seal();
        }
        const auto read = gaudi::read_handle(sealed ? std::span<const std::byte>(handle.bytes) : bytes);
        if (read && (read->length == 0 || read->offset + read->length > read->allocated ||
                     read->base + read->allocated < read->base))
            std::abort();
    }
    return 0;
}
