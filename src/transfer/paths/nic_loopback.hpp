// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "src/os/mapping.hpp"
#include "src/rdma/nic_copier.hpp"
#include "src/rdma/registration_cache.hpp"
#include "src/transfer/path.hpp"

#include <atomic>
#include <functional>
#include <mutex>

namespace gaudi {

// The queue pairs of copies that complete later. Nothing waits with the mutex held: callers of done() and
// poll() take it.
struct shared_copier {
    explicit shared_copier(std::unique_ptr<nic_copier> copier) : copies(std::move(copier)) {}
    [[nodiscard]] bool broken() {
        const std::lock_guard guard(mutex);
        return copies->broken().has_value();
    }
    std::mutex mutex;
    const std::unique_ptr<nic_copier> copies;
};

// A NIC of this process that sends to itself.
struct nic_loop {
    // Members are destroyed in reverse order: this order is required.
    std::shared_ptr<nic> opened_nic;
    // Device memory as the remote end of a transfer: in the loopback domain, with remote rights.
    std::shared_ptr<registration_cache> remote_memory;
    ibv_pd* domain = nullptr;
    // Small copies go through host memory that is registered once.
    mapping bounce;
    mr_handle bounce_region;
    std::unique_ptr<nic_copier> small;
    // Made on first use; separate, so that small copies do not queue after large ones.
    std::shared_ptr<shared_copier> large;

    nic_loop() = default;
    ~nic_loop();
    nic_loop(const nic_loop&) = delete;
    nic_loop& operator=(const nic_loop&) = delete;
    static result<std::shared_ptr<nic_loop>> make(const std::shared_ptr<nic>& opened_nic);
};

// A NIC that sends to itself: copies between any two places that it can register.
class nic_loopback final : public path {
public:
    explicit nic_loopback(const path_tools& tools);
    ~nic_loopback() override;

    [[nodiscard]] copy_path which() const override { return copy_path::nic_loopback; }
    [[nodiscard]] const char* unsuited(const copy_job& job) const override;
    result<void> prepare(const copy_job& job) override;
    result<copy_ticket> start(const copy_job& job) override;
    // A copy between host and device that has completed when this returns: a few microseconds for a few
    // bytes. After a failure other than of its memory, works() returns false.
    result<copy_ticket> copy_now(const copy_job& job);
    // Whether no transfer has failed so far; only then the NIC may be preferred.
    [[nodiscard]] bool works() const { return !failed_->load(std::memory_order_relaxed); }
    void forget(unsigned device_index) override;
    void drop_lost() override;

private:
    struct entry {
        std::weak_ptr<device> owner;
        std::weak_ptr<hl_device> core; // identifies the context: buffers keep it alive after `owner` is gone
        std::shared_ptr<nic_loop> loop;
        std::optional<error> why_none;
        std::chrono::steady_clock::time_point try_again;
    };
    // An end as the NIC addresses it, and what keeps it registered.
    struct registered_end {
        nic_copier::region at;
        std::shared_ptr<const void> kept;
    };
    struct ready {
        std::shared_ptr<shared_copier> copier;
        registered_end local, remote;
        bool write = false; // from local to remote
    };

    // The caller holds the mutex. `owner`: the device of the end that is device memory.
    result<entry*> entry_for(const copy_job& job, std::shared_ptr<device>& owner);
    result<void> make_loop(entry& of, const std::shared_ptr<device>& near_to);
    result<void> move_small(nic_loop& loop, device& owner, const copy_job& job);
    void drop_loops(const std::function<bool(const entry&)>& of);

    // The caller does not hold the mutex: these may send a request to an owner, or pin much memory.
    result<ready> register_both(const copy_job& job);
    result<registered_end> local_end(nic_loop& loop, const copy_job& job, const copy_end& end);
    result<registered_end> remote_end(nic_loop& loop, const copy_job& job, const copy_end& end);

    device_table& devices_;
    pending_copies& pending_;
    friend class nic_copy;
    // Shared with copies that outlive this object.
    const std::shared_ptr<std::atomic<bool>> failed_ = std::make_shared<std::atomic<bool>>(false);
    std::mutex mutex_;           // guards what follows, and small copies; held while a NIC is opened
    std::vector<entry> entries_; // by device index + 1; the first entry is for copies without a device
    std::vector<std::weak_ptr<nic_loop>> loops_;
};

} // namespace gaudi
