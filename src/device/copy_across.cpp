// SPDX-License-Identifier: BSD-3-Clause
#include <gaudi/device.hpp>

#include "src/device/registry.hpp"
#include "src/error/try.hpp"
#include "src/hl/hl_device.hpp"
#include "src/memory/heap_core.hpp"
#include "src/os/mapping.hpp"
#include "src/os/round_up.hpp"

#include "src/copy/copy_core.hpp"

#include <array>
#include <fmt/format.h>

namespace gaudi {
namespace {

constexpr std::uint64_t stage_bytes = 4ULL << 20;

// The destination's engine reads the source's memory through its DMA-BUF.
result<void> copy_by_import(device& to, device_address destination, device& from, device_address source,
                            std::uint64_t length) {
    // A DMA-BUF of its own: an import maps whole pages from the beginning.
    GAUDI_TRY(const auto window, from.export_pages(source, length));
    const unique_fd dmabuf(window.fd);
    GAUDI_TRY(const auto imported,
              to.core()->import_dmabuf(dmabuf.get(), round_up(window.offset + length, 4096)));
    GAUDI_TRY(const auto engine, to.copies());
    GAUDI_TRY(const auto started,
              engine.core()->copy_unchecked(destination, imported.address() + window.offset, length,
                                            copy_direction::down, {}));
    return copy_ticket(engine.core(), started).wait();
}

// Through pinned host memory, two slabs in turn: one is read into while the other is written from.
result<void> copy_staged(device& to, device_address destination, device& from, device_address source,
                         std::uint64_t length) {
    GAUDI_TRY(auto reader, from.copies());
    GAUDI_TRY(auto writer, to.copies());
    struct slab {
        mapping memory;
        pinned_memory for_reader, for_writer;
        copy_ticket writing;
    };
    std::array<slab, 2> slabs;
    for (auto& next : slabs) {
        GAUDI_TRY(next.memory, mapping::anonymous(stage_bytes));
        GAUDI_TRY(next.for_reader, reader.pin(next.memory.bytes()));
        GAUDI_TRY(next.for_writer, writer.pin(next.memory.bytes()));
    }
    result<void> outcome;
    for (std::uint64_t done = 0, turn = 0; done < length && outcome; ++turn) {
        auto& next = slabs[turn % 2];
        const auto bytes = next.memory.bytes().first(std::min(length - done, stage_bytes));
        outcome = next.writing.wait();
        next.writing = {};
        if (!outcome)
            break;
        auto reading = reader.read(bytes, source + done);
        outcome = reading ? reading->wait() : tl::unexpected(reading.error());
        if (!outcome)
            break;
        auto writing = writer.write(destination + done, bytes);
        if (!writing)
            outcome = tl::unexpected(writing.error());
        else
            next.writing = std::move(*writing);
        done += bytes.size();
    }
    for (auto& last : slabs)
        if (auto finished = last.writing.wait(); !finished && outcome)
            outcome = finished;
    return outcome;
}

} // namespace

std::string_view name_of(device_path path) {
    constexpr std::string_view names[] = {"same device", "peer DMA-BUF", "staged through host memory"};
    return names[static_cast<int>(path)];
}

result<across_report> copy_across(device& to, device_address destination, device& from, device_address source,
                                  std::uint64_t length) {
    if (length == 0)
        return tl::unexpected(error(errc::size_zero, "copy of 0 bytes between devices"));
    for (const auto& [address, owner] : {std::pair(destination, &to), std::pair(source, &from)}) {
        GAUDI_TRY(const auto known, registry::self().map().find(address, length));
        if (known.device_index != owner->core()->who().index)
            return tl::unexpected(
                error(errc::wrong_device, fmt::format("{} bytes at {:#x} are not memory of {}", length,
                                                      address.value(), owner->core()->who().bus_id)));
    }
    across_report report;
    if (to.core() == from.core()) {
        GAUDI_TRY(auto engine, to.copies());
        GAUDI_TRY(auto ticket, engine.copy(destination, source, length));
        GAUDI_CHECK(ticket.wait());
        report.path = device_path::same_device;
        return report;
    }
    const auto direct = copy_by_import(to, destination, from, source, length);
    if (direct) {
        report.path = device_path::peer_dmabuf;
        return report;
    }
    if (direct.error().kind() != error_kind::unsupported)
        return tl::unexpected(direct.error());
    report.why_not_direct =
        fmt::format("{} ({})", describe(direct.error().code()).meaning, direct.error().observed());
    GAUDI_CHECK(copy_staged(to, destination, from, source, length));
    return report;
}

} // namespace gaudi
