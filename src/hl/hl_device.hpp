// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/address.hpp>
#include <gaudi/device_info.hpp>
#include <gaudi/error.hpp>
#include <gaudi/unique_handle.hpp>

#include "src/hl/address_slice.hpp"
#include "src/hl/device_loss.hpp"
#include "src/hl/export_plan.hpp"
#include "src/hl/generation.hpp"
#include "src/hl/hlthunk_api.hpp"
#include "src/hl/shared_context.hpp"
#include "src/hl/synapse.hpp"
#include "src/os/unique_fd.hpp"

#include <atomic>
#include <future>
#include <memory>
#include <mutex>
#include <span>
#include <sys/stat.h>

namespace gaudi {

class copy_core;
class hl_device;

// Device memory, allocated and mapped. The destructor unmaps and frees it, in that order.
class device_memory {
public:
    device_memory() = default;

    [[nodiscard]] device_address address() const { return allocation_->address; }
    [[nodiscard]] std::uint64_t size() const { return allocation_->size; } // in whole pages of the driver
    // Returns it to the driver now. The driver refuses while a DMA-BUF or a memory region of it exists: then
    // the memory stays as it is.
    result<void> release();

private:
    friend class hl_device;
    struct allocation {
        std::shared_ptr<hl_device> device;
        std::uint64_t handle = 0;
        device_address address;
        std::uint64_t size = 0;
        explicit operator bool() const { return device != nullptr; }
        result<void> free() const;
        void close() noexcept { (void)free(); }
    };
    explicit device_memory(allocation owned) : allocation_(std::move(owned)) {}

    unique_handle<allocation> allocation_;
};

// An address range that the driver mapped for the device; unmapped by the destructor of its handle.
struct device_mapping {
    std::shared_ptr<hl_device> device;
    device_address address;
    explicit operator bool() const { return device != nullptr; }
    void close() noexcept;
};

// Host memory mapped for the device.
class host_mapping {
public:
    host_mapping() = default;

    [[nodiscard]] device_address address() const { return mapping_->address; }
    [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }

private:
    friend class hl_device;
    host_mapping(device_mapping mapping, std::span<std::byte> bytes)
        : mapping_(std::move(mapping)), bytes_(bytes) {}

    unique_handle<device_mapping> mapping_;
    std::span<std::byte> bytes_;
};

// A mapping of another device's DMA-BUF, made by the import of the vendor's driver.
class imported_memory {
public:
    imported_memory() = default;

    [[nodiscard]] device_address address() const { return mapping_->address; }

private:
    friend class hl_device;
    explicit imported_memory(device_mapping mapping) : mapping_(std::move(mapping)) {}

    unique_handle<device_mapping> mapping_;
};

// Who opened a context: this process; another process, which passed its descriptor; SynapseAI in this
// process, whose descriptor this library never closes.
enum class context_owner { this_process, other_process, synapse };

struct device_identity {
    unsigned index = 0;
    gaudi::generation generation = gaudi::generation::gaudi2;
    std::string bus_id;
    hlthunk_hw_ip_info hw{};
};

// One compute context of the driver, used through hl-thunk. Thread-safe.
class hl_device : public std::enable_shared_from_this<hl_device> {
public:
    // Takes ownership of an open compute descriptor, unless SynapseAI owns it.
    hl_device(std::shared_ptr<const hlthunk_api> api, int fd, context_owner owner, device_identity identity);
    ~hl_device();
    hl_device(const hl_device&) = delete;
    hl_device& operator=(const hl_device&) = delete;

    [[nodiscard]] const hlthunk_api& api() const { return *api_; }
    [[nodiscard]] int fd() const { return fd_; }
    // Whether this library may allocate memory and submit: false where they are SynapseAI's.
    [[nodiscard]] bool owned() const { return owner_ != context_owner::synapse; }
    [[nodiscard]] context_owner owner() const { return owner_; }
    // Identifies the device on this machine: the same number in every process.
    [[nodiscard]] std::uint64_t node() const { return node_; }
    [[nodiscard]] static std::uint64_t node_of(const struct stat& status, const std::string& bus_id);
    [[nodiscard]] const device_identity& identity() const { return identity_; }
    [[nodiscard]] const generation_traits& traits() const { return traits_of(identity_.generation); }
    [[nodiscard]] std::uint64_t page_size() const;
    [[nodiscard]] hlthunk_dram_usage_info usage() const;
    // The addresses that allocate() passes to the driver as hints.
    [[nodiscard]] const address_slice& slice() const { return slice_; }

    result<device_memory> allocate(std::uint64_t size);
    result<host_mapping> map_host(std::span<std::byte> memory);
    result<unique_fd> export_dmabuf(const export_plan& plan);
    result<imported_memory> import_dmabuf(int dmabuf, std::uint64_t length);

    // Becomes ready when the destructor has closed the descriptor, which may be in another thread.
    [[nodiscard]] const std::shared_future<void>& closed() const { return closed_; }

    // This process's part in a context that other processes use too.
    [[nodiscard]] context_membership& sharing() { return sharing_; }

    // The only copy engine of this process on this context, if there is one: a second engine would not count
    // the submissions of the first.
    struct engine_slot {
        std::mutex mutex;
        std::weak_ptr<copy_core> core;
    } engine;

    // False in a child of fork: the context belongs to the parent.
    [[nodiscard]] bool valid_in_this_process() const;

    [[nodiscard]] device_loss& loss() { return loss_; }
    [[nodiscard]] bool lost() const { return loss_.lost(); }
    // What SynapseAI knows of a context that it owns. If SynapseAI has closed the device, marks it as lost.
    result<synapse_device> synapse_side();
    // Finds SynapseAI's pool and proves it by exporting its first and last page. Once, when SynapseAI's
    // context is attached.
    void locate_synapse_pool();
    // errc::not_allocated: it was not found, with the reason.
    [[nodiscard]] const result<gaudi::synapse_pool>& synapse_pool() const { return synapse_pool_; }
    // errc::range_leaves_allocation: the range is not in the pool.
    [[nodiscard]] result<export_plan> plan_export_of(const gaudi::synapse_pool& pool, device_address address,
                                                     std::uint64_t length) const;
    // The same export, of all of the pool's mapping where the driver exports nothing else (gotcha 41). For
    // this process's own use: the descriptor opens more than was asked for.
    [[nodiscard]] export_plan widen_for_driver(export_plan plan, const gaudi::synapse_pool& pool) const;
    // Turns a failed driver call into an error; EBUSY of a device that is not operational becomes
    // device_lost.
    error failed(errc code, std::string observed, int system_error);

private:
    friend class device_memory;
    friend struct device_mapping;

    result<device_memory> allocate_mapped(std::uint64_t size);
    result<device_memory> allocate_physical(std::uint64_t size);
    result<void> free_memory(std::uint64_t handle, device_address address, std::uint64_t size);
    void unmap(device_address address);
    result<void> note_mapping(std::uint64_t address, std::uint64_t handle);

    std::promise<void> closes_; // first, so that it ends last: that makes closed_ ready
    const std::shared_future<void> closed_ = closes_.get_future().share();
    context_membership sharing_; // before the rest, so that the connection to the context's owner closes late
    std::shared_ptr<const hlthunk_api> api_;
    int fd_;
    const unsigned forks_; // fork_count() at opening: a child must not undo what its parent did
    const context_owner owner_;
    const device_identity identity_;
    const std::uint64_t node_;
    const bool whole_exports_; // the driver exports nothing else
    device_loss loss_;
    std::mutex mutex_;
    result<gaudi::synapse_pool> synapse_pool_;
    address_slice slice_; // in use: mapped memory, or physical memory on gen1
};

} // namespace gaudi
