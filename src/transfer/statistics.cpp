// SPDX-License-Identifier: BSD-3-Clause
#include <gaudi/statistics.hpp>

#include "src/copy/copy_tracker.hpp"
#include "src/device/registry.hpp"
#include "src/ipc/broker.hpp"
#include "src/ipc/importer.hpp"

#include <algorithm>

namespace gaudi {

engine_statistics& engine_statistics::operator+=(const engine_statistics& other) {
    copies += other.copies;
    bytes += other.bytes;
    completed += other.completed;
    failed += other.failed;
    submissions += other.submissions;
    packets += other.packets;
    most_in_flight = std::max(most_in_flight, other.most_in_flight);
    pinned += other.pinned;
    bounced += other.bounced;
    mapped += other.mapped;
    return *this;
}

heap_statistics& heap_statistics::operator+=(const heap_statistics& other) {
    chunks += other.chunks;
    chunk_bytes += other.chunk_bytes;
    buffers += other.buffers;
    buffer_bytes += other.buffer_bytes;
    largest_free = std::max(largest_free, other.largest_free);
    exports += other.exports;
    abandoned += other.abandoned;
    return *this;
}

statistics process_statistics() {
    statistics counted;
    counted.copies = count_copies();
    for (const auto& device : registry::self().all_open()) {
        if (const auto engine = device->copies_in_use())
            counted.engines += engine->statistics();
        counted.heaps += device->heap().statistics();
    }
    if (const auto service = broker::running())
        service->count(counted.ipc);
    importer::self().count(counted.ipc);
    return counted;
}

} // namespace gaudi
