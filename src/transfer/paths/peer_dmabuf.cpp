// SPDX-License-Identifier: BSD-3-Clause
// A device imports the memory of another and copies with its own engine, which addresses the import as it
// addresses host memory. Only the vendor's driver can import (gotcha 14): elsewhere the first attempt fails,
// and is remembered.
#include "src/error/try.hpp"
#include "src/hl/hl_device.hpp"
#include "src/memory/heap_core.hpp"
#include "src/os/internals.hpp"
#include "src/os/round_up.hpp"
#include "src/transfer/device_table.hpp"
#include "src/transfer/path.hpp"

#include <array>
#include <fmt/format.h>

namespace gaudi {
namespace {

using kind = copy_end::kind;

constexpr std::uint64_t page = 4096;

// Memory at the address where the importing device sees it, and what keeps it imported.
struct imported_range {
    device_address at;
    std::shared_ptr<const void> kept;
};

// Chunks of this process's heaps that other devices imported: each chunk is imported once, as a whole.
class import_cache : public chunk_observer, public std::enable_shared_from_this<import_cache> {
public:
    result<imported_range> import(hl_device& by, heap_core& heap, device_address address,
                                  std::uint64_t length) {
        GAUDI_TRY(const auto chunk, heap.chunk_at(address, length));
        heap.observe(shared_from_this()); // without our lock: the heap calls us with its own lock held
        const std::lock_guard guard(mutex_);
        auto& entry = chunks_[{&by, chunk.serial}];
        if (!entry) {
            auto imported = by.import_dmabuf(chunk.whole.fd, chunk.whole.length);
            const auto still = known_memory().find(address);
            // The descriptor was read without the heap's lock: it was the chunk's if the buffer is still
            // allocated now.
            if (!imported || !still || still->generation != chunk.generation) {
                chunks_.erase({&by, chunk.serial});
                return tl::unexpected(imported
                                          ? error(errc::not_allocated,
                                                  fmt::format("{:#x} was freed meanwhile", address.value()))
                                          : imported.error());
            }
            entry = std::make_shared<const imported_memory>(std::move(*imported));
        }
        return imported_range{entry->address() + (address - chunk.whole.iova), entry};
    }
    // The driver unmaps no memory of which a DMA-BUF is imported (gotcha 9).
    void chunk_goes(std::uint64_t serial) override {
        const std::lock_guard guard(mutex_);
        std::erase_if(chunks_, [&](const auto& entry) { return entry.first.second == serial; });
    }
    void buffer_freed(device_address, std::uint64_t) override {}
    // Drops everything that the selected devices imported.
    template <typename F>
    void drop(F&& imported_by) {
        const std::lock_guard guard(mutex_);
        std::erase_if(chunks_, [&](const auto& entry) { return imported_by(*entry.first.first); });
    }

private:
    std::mutex mutex_;
    // By importing device, which each import keeps alive, and by the chunk's serial.
    std::map<std::pair<const hl_device*, std::uint64_t>, std::shared_ptr<const imported_memory>> chunks_;
};

class peer_dmabuf final : public path {
public:
    explicit peer_dmabuf(const path_tools& tools) : devices_(tools.devices), keep_(tools.keep) {}

    [[nodiscard]] copy_path which() const override { return copy_path::peer_dmabuf; }
    [[nodiscard]] const char* unsuited(const copy_job& job) const override {
        if (!job.has(kind::device) || job.has(kind::host))
            return "only a device can import memory of another";
        const bool same =
            job.to.is(kind::device) && job.from.is(kind::device) && job.to.device == job.from.device;
        return same ? "both places are on one device" : nullptr;
    }
    result<void> prepare(const copy_job& job) override {
        GAUDI_CHECK(devices_.engine_of(importing(job).device));
        return reach(job).map([](const imported_range&) {});
    }
    result<copy_ticket> start(const copy_job& job) override {
        const auto& own = importing(job);
        GAUDI_TRY(const auto other, reach(job));
        GAUDI_TRY(auto core, devices_.engine_of(own.device));
        // The engine addresses the other device's memory like host memory.
        const bool reads = &own == &job.to;
        GAUDI_TRY(const auto slot,
                  core->copy_imported(reads ? own.address : other.at, reads ? other.at : own.address,
                                      job.length, reads ? copy_direction::down : copy_direction::up,
                                      {job.hints, which(), kept_by(job, other)}));
        return internals::wrap<copy_ticket>(std::move(core), slot, which(), job.length);
    }
    void forget(unsigned index) override {
        cache_->drop([&](const hl_device& by) { return by.identity().index == index; });
    }
    void drop_lost() override {
        cache_->drop([](const hl_device& by) { return by.lost(); });
    }

private:
    // What the copy keeps. The import is released before the lease.
    static std::shared_ptr<const void> kept_by(const copy_job& job, const imported_range& other) {
        if (!job.kept)
            return other.kept;
        return std::make_shared<const std::array<std::shared_ptr<const void>, 2>>(
            std::array{job.kept, other.kept});
    }
    // The end whose engine copies: the destination's, where both engines could.
    [[nodiscard]] static const copy_end& importing(const copy_job& job) {
        return job.to.is(kind::device) ? job.to : job.from;
    }
    result<imported_range> reach(const copy_job& job) {
        if (auto why = unsupported())
            return tl::unexpected(*why);
        const auto& own = importing(job);
        const auto& other = &own == &job.to ? job.from : job.to;
        GAUDI_TRY(const auto by, devices_.device_of(own, job.length));
        auto range = other.is(kind::device) ? of_device(*core_of(*by), other, job.length)
                     : other.is(kind::leased)
                         ? of_lease(core_of(*by), job)
                         : of_descriptor(*core_of(*by), other.fd, other.offset, job.length);
        if (!range && range.error().code() == errc::import_unsupported && other.is(kind::device)) {
            const std::lock_guard guard(mutex_); // the driver does not support it, now or later
            unsupported_ = range.error();
        }
        return range;
    }
    std::optional<error> unsupported() {
        const std::lock_guard guard(mutex_);
        return unsupported_;
    }
    result<imported_range> of_device(hl_device& by, const copy_end& other, std::uint64_t length) {
        GAUDI_TRY(const auto owner, devices_.device_of(other, length));
        if (keep_ && !owner->attached())
            return cache_->import(by, *core_of(owner->heap()), other.address, length);
        // Exports a DMA-BUF of its own: an import maps whole pages from the beginning of the DMA-BUF.
        GAUDI_TRY(const auto window, owner->export_pages(other.address, length));
        const unique_fd descriptor(window.fd);
        return of_descriptor(by, descriptor.get(), window.offset, length);
    }
    static result<imported_range> of_lease(const std::shared_ptr<hl_device>& by, const copy_job& job) {
        auto resources = job.lease->resources(); // the copy keeps them, also if the owner ends
        GAUDI_TRY(const auto base, job.lease->imported_by(*resources, by));
        return imported_range{base + job.end_of(kind::leased).offset, std::move(resources)};
    }
    static result<imported_range> of_descriptor(hl_device& by, int fd, std::uint64_t offset,
                                                std::uint64_t length) {
        GAUDI_TRY(auto imported, by.import_dmabuf(fd, round_up(offset + length, page)));
        const auto at = imported.address() + offset;
        return imported_range{at, std::make_shared<const imported_memory>(std::move(imported))};
    }

    device_table& devices_;
    const bool keep_;
    const std::shared_ptr<import_cache> cache_ = std::make_shared<import_cache>();
    std::mutex mutex_;
    std::optional<error> unsupported_;
};

} // namespace

std::unique_ptr<path> make_peer_dmabuf(const path_tools& tools) {
    return std::make_unique<peer_dmabuf>(tools);
}

} // namespace gaudi
