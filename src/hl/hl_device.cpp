// SPDX-License-Identifier: BSD-3-Clause
// Every call to the driver about memory. Memory is allocated, mapped and exported in this order and given
// back in the reverse one, which the driver enforces (gotcha 9).
#include "src/hl/hl_device.hpp"

#include "src/error/try.hpp"
#include "src/os/fork_count.hpp"
#include "src/os/identity.hpp"
#include "src/os/round_up.hpp"
#include "src/os/system_error.hpp"

#include <algorithm>
#include <cerrno>
#include <fmt/format.h>
#include <sys/stat.h>
#include <utility>

namespace gaudi {
namespace {

// The addresses that a context allocates from.
address_slice slice_of(const device_identity& identity, std::uint64_t page) {
    const auto& traits = traits_of(identity.generation);
    // Gen1 has no MMU for its memory: addresses are physical, and the same on every device (gotcha 27).
    if (traits.exports == export_call::physical)
        return {identity.hw.dram_base_address, identity.hw.dram_base_address + identity.hw.dram_size, 1};
    const auto begin = traits.slice_base + identity.index * traits.slice_size;
    return {begin, begin + traits.slice_size, page};
}

std::uint64_t node_of_descriptor(int fd, const std::string& bus_id) {
    struct stat status {};
    // The descriptor may have been passed by another process, which knows the node by another path.
    return ::fstat(fd, &status) == 0 ? hl_device::node_of(status, bus_id) : 0;
}

} // namespace

// A device node is identified by its device number, wherever it lies; any other file by its inode.
std::uint64_t hl_device::node_of(const struct stat& status, const std::string& bus_id) {
    const bool node = S_ISCHR(status.st_mode);
    const std::uint64_t parts[] = {checksum64(bus_id.data(), bus_id.size()),
                                   node ? status.st_rdev : status.st_dev, node ? 0 : status.st_ino};
    return checksum64(parts, sizeof(parts));
}

hl_device::hl_device(std::shared_ptr<const hlthunk_api> api, int fd, context_owner owner,
                     device_identity identity)
    : api_(std::move(api)), fd_(fd), forks_(fork_count()), owner_(owner), identity_(std::move(identity)),
      node_(node_of_descriptor(fd, identity_.bus_id)),
      whole_exports_(find_kernel_driver().exports_whole_only()),
      loss_(api_, fd, owner == context_owner::this_process, identity_.bus_id),
      synapse_pool_(tl::unexpected(
          error(errc::not_allocated,
                fmt::format("SynapseAI's pool on {}: the device is not SynapseAI's", identity_.bus_id)))),
      slice_(slice_of(identity_, page_size())) {}

hl_device::~hl_device() {
    // SynapseAI closes its own descriptor (gotcha 36).
    if (owner_ == context_owner::synapse)
        return;
    if (!valid_in_this_process()) {
        // Only the child's copy of the descriptor, which would keep the device busy after the parent has
        // closed it (gotcha 1). The notifier is the parent's.
        ::close(fd_);
        return;
    }
    // Before the descriptor, which hl-thunk needs to unregister the notifier.
    loss_.close_notifier();
    api_->close(fd_);
}

bool hl_device::valid_in_this_process() const {
    return forks_ == fork_count();
}

std::uint64_t hl_device::page_size() const {
    // 768 MB on Gaudi2, no power of two: sizes are divided by it, never masked (gotcha 4).
    const auto& hw = identity_.hw;
    return hw.device_mem_alloc_default_page_size != 0 ? hw.device_mem_alloc_default_page_size
                                                      : std::max<std::uint64_t>(hw.dram_page_size, 4096);
}

hlthunk_dram_usage_info hl_device::usage() const {
    hlthunk_dram_usage_info info{};
    if (api_->get_dram_usage(fd_, &info) != 0)
        info = {};
    return info;
}

result<device_memory> hl_device::allocate(std::uint64_t size) {
    if (lost())
        return tl::unexpected(loss_.describe("allocation"));
    if (!owned())
        return tl::unexpected(
            error(errc::memory_exhausted, "SynapseAI owns this device and all of its memory"));
    if (size == 0)
        return tl::unexpected(error(errc::size_zero, "allocation of 0 bytes"));
    if (size > identity_.hw.dram_size)
        return tl::unexpected(
            error(errc::size_beyond_memory, fmt::format("{} bytes requested of {}, which has {}", size,
                                                        identity_.bus_id, identity_.hw.dram_size)));
    return traits().exports == export_call::physical ? allocate_physical(size) : allocate_mapped(size);
}

result<device_memory> hl_device::allocate_mapped(std::uint64_t size) {
    device_memory::allocation allocation;
    allocation.size = round_up(size, page_size());
    const std::lock_guard guard(mutex_);
    // Contiguous first: one range of the BAR for the NIC. Scattered pages are better than none.
    allocation.handle = api_->device_memory_alloc(fd_, allocation.size, 0, true, false);
    if (allocation.handle == 0)
        allocation.handle = api_->device_memory_alloc(fd_, allocation.size, 0, false, false);
    if (allocation.handle == 0)
        return tl::unexpected(failed(errc::memory_exhausted,
                                     fmt::format("hlthunk_device_memory_alloc of {} bytes on {}, {} free",
                                                 allocation.size, identity_.bus_id, usage().dram_free_mem),
                                     errno));
    // The owner of a context allocates addresses from below; each member has a part of the upper half, so
    // that their hints do not collide.
    const auto half = slice_.size() / 2;
    const auto hint =
        slice_.find_gap(allocation.size, owner_ == context_owner::other_process
                                             ? half + half / shared_context::members * sharing_.member()
                                             : 0);
    // A bad or busy hint is silently replaced (gotcha 26): what counts is the address that comes back.
    const auto address = api_->device_memory_map(fd_, allocation.handle, hint);
    if (address == 0) {
        const int reason = errno;
        api_->device_memory_free(fd_, allocation.handle);
        return tl::unexpected(failed(
            errc::map_failed,
            fmt::format("hlthunk_device_memory_map of {} bytes on {}", allocation.size, identity_.bus_id),
            reason));
    }
    // Only the owner of a context can undo what a dead member has mapped, and only what was noted (gotcha
    // I3).
    if (auto noted = note_mapping(address, allocation.handle); !noted) {
        api_->memory_unmap(fd_, address);
        api_->device_memory_free(fd_, allocation.handle);
        return tl::unexpected(noted.error());
    }
    slice_.take(address, allocation.size);
    allocation.address = device_address(address);
    allocation.device = shared_from_this();
    return device_memory(std::move(allocation));
}

result<device_memory> hl_device::allocate_physical(std::uint64_t size) {
    device_memory::allocation allocation;
    allocation.size = round_up(size, page_size());
    if (owner_ == context_owner::other_process)
        return tl::unexpected(error(errc::memory_exhausted,
                                    fmt::format("{} has no allocator in its driver: only the process that "
                                                "opened it can allocate its memory",
                                                identity_.bus_id)));
    const std::lock_guard guard(mutex_);
    // The driver's allocation would only count bytes (gotcha 27): this object alone knows what is in use.
    const auto address = slice_.find_gap(allocation.size);
    if (address == 0)
        return tl::unexpected(
            error(errc::memory_exhausted, fmt::format("{} bytes of physical memory on {}: no gap that large",
                                                      allocation.size, identity_.bus_id)));
    slice_.take(address, allocation.size);
    allocation.address = device_address(address);
    allocation.device = shared_from_this();
    return device_memory(std::move(allocation));
}

result<void> hl_device::free_memory(std::uint64_t handle, device_address address, std::uint64_t size) {
    if (!valid_in_this_process())
        return {};
    const std::lock_guard guard(mutex_);
    // On a lost device these calls return EBUSY (gotcha 35): the driver frees the memory at close. Gen1 has
    // no handle.
    if (handle != 0 && !lost()) {
        if (const int rc = api_->memory_unmap(fd_, address.value()); rc != 0)
            return tl::unexpected(failed(
                errc::device_busy,
                fmt::format(
                    "hlthunk_memory_unmap of {} bytes at {:#x}: a DMA-BUF or memory region of it is alive",
                    size, address.value()),
                -rc));
        // Once it is unmapped the address is free, even if freeing the handle fails: the driver frees it at
        // close.
        sharing_.forget_mapping(address.value());
        slice_.release(address.value());
        if (const int rc = api_->device_memory_free(fd_, handle); rc != 0)
            (void)failed(errc::not_allocated, fmt::format("hlthunk_device_memory_free of handle {}", handle),
                         -rc);
    }
    slice_.release(address.value());
    return {};
}

result<host_mapping> hl_device::map_host(std::span<std::byte> memory) {
    if (lost())
        return tl::unexpected(loss_.describe("mapping host memory"));
    if (memory.empty())
        return tl::unexpected(error(errc::size_zero, "mapping of 0 bytes of host memory"));
    // The result keeps the offset in the page, and unmapping requires exactly this value (gotcha 16). The
    // device can access the whole last page (gotcha 17).
    const auto address = api_->host_memory_map(fd_, memory.data(), 0, memory.size());
    if (address == 0) {
        const int reason = errno;
        // EFAULT: not mapped, read-only, or memory of a device (gotcha 30).
        return tl::unexpected(
            failed(reason == EFAULT || reason == EINVAL ? errc::host_range_invalid : errc::map_failed,
                   fmt::format("hlthunk_host_memory_map of {} bytes at {}", memory.size(),
                               static_cast<const void*>(memory.data())),
                   reason));
    }
    if (auto noted = note_mapping(address, 0); !noted) {
        api_->memory_unmap(fd_, address);
        return tl::unexpected(noted.error());
    }
    return host_mapping({shared_from_this(), device_address(address)}, memory);
}

void hl_device::unmap(device_address address) {
    // Forgotten before it is unmapped: if this process dies in between, pages stay pinned until the context
    // ends. In the other order the owner could unmap an address that another member has got meanwhile.
    if (!lost() && valid_in_this_process()) {
        sharing_.forget_mapping(address.value());
        api_->memory_unmap(fd_, address.value());
    }
}

result<void> hl_device::note_mapping(std::uint64_t address, std::uint64_t handle) {
    if (sharing_.note_mapping(address, handle))
        return {};
    return tl::unexpected(
        error(errc::map_failed, fmt::format("a process that joined the context of {} may map {} ranges",
                                            identity_.bus_id, shared_context::most_mappings)));
}

result<unique_fd> hl_device::export_dmabuf(const export_plan& plan) {
    if (lost())
        return tl::unexpected(loss_.describe("DMA-BUF export"));
    if (whole_exports_ && !plan.whole)
        return tl::unexpected(
            error(errc::export_offset_ignored,
                  fmt::format("export of {} bytes at offset {:#x} in memory at {:#x} on {}", plan.call_size,
                              plan.call_offset, plan.call_address, identity_.bus_id)));
    const bool physical = plan.call == export_call::physical;
    const auto* name =
        physical ? "hlthunk_device_memory_export_dmabuf_fd" : "hlthunk_device_mapped_memory_export_dmabuf_fd";
    if (physical ? api_->device_memory_export_dmabuf_fd == nullptr
                 : api_->device_mapped_memory_export_dmabuf_fd == nullptr)
        return tl::unexpected(error(errc::symbol_missing, fmt::format("{} has no {}", api_->path(), name)));
    // The flags are exactly O_RDWR | O_CLOEXEC (gotcha 7). A refusal with EINVAL may mean that the full BAR
    // is not visible (gotcha 40).
    const int fd =
        physical
            ? api_->device_memory_export_dmabuf_fd(fd_, plan.call_address, plan.call_size, HL_EXPORT_FLAGS)
            : api_->device_mapped_memory_export_dmabuf_fd(fd_, plan.call_address, plan.call_size,
                                                          plan.call_offset, HL_EXPORT_FLAGS);
    if (fd < 0)
        return tl::unexpected(
            failed(code_of(-fd, errc::export_refused),
                   fmt::format("{} of {} bytes at {:#x}, offset {:#x}, on {}", name, plan.call_size,
                               plan.call_address, plan.call_offset, identity_.bus_id),
                   -fd));
    return unique_fd(fd);
}

result<imported_memory> hl_device::import_dmabuf(int dmabuf, std::uint64_t length) {
    if (lost())
        return tl::unexpected(loss_.describe("DMA-BUF import"));
    // hl-thunk has no function for the vendor driver's import: the ioctl is issued directly (gotcha 14).
    hl_mem_args args{};
    args.in.argument[0] = static_cast<std::uint64_t>(dmabuf);
    args.in.argument[1] = length;
    args.in.op = HL_MEM_OP_REG_DMABUF_FD;
    if (api_->ioctl == nullptr)
        return tl::unexpected(error(errc::import_unsupported, "no ioctl to reach the driver with"));
    if (api_->ioctl(fd_, HL_IOCTL_MEMORY_REQUEST, &args) != 0) {
        const int reason = errno;
        // The upstream driver returns EINVAL for an operation it does not know, older interfaces ENOTTY.
        return tl::unexpected(
            failed(reason == EINVAL || reason == ENOTTY ? errc::import_unsupported : errc::import_refused,
                   fmt::format("REG_DMABUF_FD of {} bytes on {}", length, identity_.bus_id), reason));
    }
    return imported_memory({shared_from_this(), device_address(args.out.device_virt_addr)});
}

result<synapse_device> hl_device::synapse_side() {
    if (const auto found = find_synapse_device_of(fd_))
        return *found;
    loss_.mark("SynapseAI in this process has released it");
    return tl::unexpected(
        error(errc::not_allocated, fmt::format("no SynapseAI in this process owns {}", identity_.bus_id)));
}

result<export_plan> hl_device::plan_export_of(const gaudi::synapse_pool& pool, device_address address,
                                              std::uint64_t length) const {
    // SCAL's own memory may lie before the pool, in the same mapping.
    if (address.value() < pool.base.value())
        return tl::unexpected(
            error(errc::range_leaves_allocation,
                  fmt::format("export of {} bytes at {:#x}, before SynapseAI's pool at {:#x}", length,
                              address.value(), pool.base.value())));
    return plan_export({identity_.generation, memory_origin::foreign_pool, pool.mapping,
                        pool.base - pool.mapping + pool.size, address, length});
}

export_plan hl_device::widen_for_driver(export_plan plan, const gaudi::synapse_pool& pool) const {
    if (!whole_exports_ || plan.whole)
        return plan;
    constexpr std::uint64_t page = 4096;
    plan.call_offset = 0;
    plan.call_size = (pool.base - pool.mapping + pool.size) / page * page;
    plan.dmabuf_offset = plan.iova - pool.mapping;
    plan.whole = true;
    return plan;
}

void hl_device::locate_synapse_pool() {
    const auto synapse = synapse_side();
    if (!synapse)
        return;
    constexpr std::uint64_t page = 4096;
    const auto exports_page_at = [&](const gaudi::synapse_pool& pool, std::uint64_t offset) -> result<void> {
        GAUDI_TRY(const auto plan, plan_export_of(pool, pool.base + offset, page));
        return export_dmabuf(widen_for_driver(plan, pool)).map([](const unique_fd&) {});
    };
    std::string reasons = "neither SCAL nor SynapseAI's device information says where it is";
    for (const auto& pool : possible_pools(*synapse, identity_.generation, page_size())) {
        const auto proved = pool.size < page
                                ? tl::unexpected(error(errc::size_zero, "a pool of no page"))
                                : exports_page_at(pool, 0).and_then(
                                      [&] { return exports_page_at(pool, pool.size / page * page - page); });
        if (proved) {
            synapse_pool_ = pool;
            return;
        }
        reasons = fmt::format("{} bytes at {:#x} in a mapping at {:#x}: {}", pool.size, pool.base.value(),
                              pool.mapping.value(), proved.error().observed());
    }
    synapse_pool_ = tl::unexpected(
        error(errc::not_allocated, fmt::format("SynapseAI's pool on {}: {}", identity_.bus_id, reasons)));
}

error hl_device::failed(errc code, std::string observed, int system_error) {
    // EBUSY alone is ambiguous: a DMA-BUF that is alive, or a device in reset (gotcha 35). The status tells.
    const auto status = api_->get_device_status_info(fd_);
    if (system_error == EBUSY && status != HL_DEVICE_STATUS_OPERATIONAL) {
        loss_.mark(fmt::format("{}; device status {}", observed, static_cast<int>(status)));
        return loss_.describe("driver call");
    }
    return {code, std::move(observed), system_error};
}

result<void> device_memory::allocation::free() const {
    return device->free_memory(handle, address, size);
}

result<void> device_memory::release() {
    // Given up only if the driver agreed: otherwise a DMA-BUF still opens the memory, which must not be
    // reused.
    if (allocation_) {
        GAUDI_CHECK(allocation_->free());
        (void)allocation_.release();
    }
    return {};
}

void device_mapping::close() noexcept {
    device->unmap(address);
}

} // namespace gaudi
