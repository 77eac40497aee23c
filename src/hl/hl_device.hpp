// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/address.hpp>
#include <gaudi/device_info.hpp>
#include <gaudi/error.hpp>
#include <gaudi/unique_handle.hpp>

#include "src/hl/context_ledger.hpp"
#include "src/hl/export_plan.hpp"
#include "src/hl/generation.hpp"
#include "src/hl/hlthunk_api.hpp"
#include "src/hl/synapse.hpp"
#include "src/os/unique_fd.hpp"

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <sys/stat.h>

namespace gaudi {

class hl_device;

// Device memory, allocated and mapped; unmapped and freed in that order by the destructor.
class device_memory {
public:
    device_memory() = default;

    [[nodiscard]] device_address address() const { return allocation_->address; }
    [[nodiscard]] std::uint64_t size() const { return allocation_->size; } // what the driver really gave
    // Gives it back now. Refused while a DMA-BUF or a memory region of it lives: then it stays as it is.
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
    explicit device_memory(allocation made) : allocation_(std::move(made)) {}

    unique_handle<allocation> allocation_;
};

// An address range of the device that the driver mapped for it; unmapped by the destructor.
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
    host_mapping(device_mapping made, std::span<std::byte> bytes)
        : mapping_(std::move(made)), bytes_(bytes) {}

    unique_handle<device_mapping> mapping_;
    std::span<std::byte> bytes_;
};

// A mapping of another device's DMA-BUF, made by the vendor driver's import.
class imported_memory {
public:
    imported_memory() = default;

    [[nodiscard]] device_address address() const { return mapping_->address; }

private:
    friend class hl_device;
    explicit imported_memory(device_mapping made) : mapping_(std::move(made)) {}

    unique_handle<device_mapping> mapping_;
};

// Whose context it is: opened by this process; another process's, which gave its descriptor; SynapseAI's in
// this process, never closed by us.
enum class tenancy { opened, guest, synapse };

// One compute context, by hl-thunk's rules. Thread-safe.
class hl_device : public std::enable_shared_from_this<hl_device> {
public:
    struct identity {
        unsigned index = 0;
        gaudi::generation generation = gaudi::generation::gaudi2;
        std::string bus_id;
        hlthunk_hw_ip_info hw{};
    };

    // Takes over an open compute descriptor.
    hl_device(std::shared_ptr<const hlthunk_api> api, int fd, tenancy whose, identity who);
    ~hl_device();
    hl_device(const hl_device&) = delete;
    hl_device& operator=(const hl_device&) = delete;

    [[nodiscard]] const hlthunk_api& api() const { return *api_; }
    [[nodiscard]] int fd() const { return fd_; }
    // Memory and queues are for us to use: not SynapseAI's.
    [[nodiscard]] bool owned() const { return whose_ != tenancy::synapse; }
    [[nodiscard]] tenancy whose() const { return whose_; }
    // Which device of this machine it is, whoever opened it: the same number in every process.
    [[nodiscard]] std::uint64_t node() const { return node_; }
    [[nodiscard]] static std::uint64_t node_of(const struct stat& status, const std::string& bus_id);
    [[nodiscard]] const identity& who() const { return who_; }
    [[nodiscard]] const generation_traits& traits() const { return traits_of(who_.generation); }
    [[nodiscard]] std::uint64_t page_size() const;
    [[nodiscard]] hlthunk_dram_usage_info usage() const;
    // The range of addresses that allocate() prefers.
    [[nodiscard]] device_address slice_begin() const { return slice_begin_; }
    [[nodiscard]] std::uint64_t slice_size() const { return slice_size_; }

    result<device_memory> allocate(std::uint64_t size);
    result<host_mapping> map_host(std::span<std::byte> memory);
    result<unique_fd> export_dmabuf(const export_plan& plan);
    result<imported_memory> import_dmabuf(int dmabuf, std::uint64_t length);

    // Shared with guests of this context, once there may be any.
    [[nodiscard]] context_ledger* ledger() const { return ledger_.load(std::memory_order_acquire); }
    result<context_ledger*> open_ledger();
    // A guest takes its place; `host` is what it must not outlive.
    void join(std::shared_ptr<context_ledger> ledger, unsigned place, std::shared_ptr<void> host = {});
    void submitted(std::uint64_t sequence);

    // The one copy engine of this process on this context, if there is one: a second would not know what the
    // first has in flight.
    std::mutex engine_mutex;
    std::weak_ptr<void> engine;

    // False in a forked child: this context is its parent's.
    [[nodiscard]] bool ours() const;

    // Set once by whoever notices; from then on everything fails fast.
    void mark_lost(std::string reason);
    // SynapseAI's side of a context that is its own. Where it has let go of the device, the context is lost.
    result<synapse_device> synapse_side();
    [[nodiscard]] bool lost() const { return lost_.load(std::memory_order_acquire); }
    [[nodiscard]] error lost_error(std::string_view during) const;
    // Turns a failed driver call into an error; EIO, EBUSY and the like of a device in reset become
    // device_lost.
    error failed(errc code, std::string observed, int system_error);

private:
    friend class device_memory;
    friend struct device_mapping;

    result<device_memory> allocate_mapped(std::uint64_t size);
    result<device_memory> allocate_physical(std::uint64_t size);
    result<void> free_memory(std::uint64_t handle, device_address address, std::uint64_t size);
    void unmap(device_address address);
    // A guest's mappings are written down, for the owner to undo.
    result<void> note_mapping(std::uint64_t address, std::uint64_t handle);
    void forget_mapping(std::uint64_t address);
    [[nodiscard]] std::string pending_events();

    std::shared_ptr<void> host_; // a guest's; first, so that it goes last
    std::shared_ptr<const hlthunk_api> api_;
    int fd_;
    const unsigned forks_; // a child must not undo what its parent did
    const tenancy whose_;
    identity who_;
    std::uint64_t node_ = 0;
    std::shared_ptr<context_ledger> kept_ledger_; // set once
    std::atomic<context_ledger*> ledger_{nullptr};
    unsigned place_ = 0; // a guest's, in the ledger
    std::atomic<std::uint64_t> last_sequence_{0};
    int notifier_ = -1;
    device_address slice_begin_;
    std::uint64_t slice_size_ = 0;

    std::mutex mutex_;
    std::map<std::uint64_t, std::uint64_t>
        taken_; // address -> size: mapped memory, or gen1's physical memory
    std::atomic<bool> lost_{false};
    mutable std::mutex lost_mutex_;
    std::string lost_reason_;
};

} // namespace gaudi
