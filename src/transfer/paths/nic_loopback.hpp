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

// A NIC of this process that sends to itself.
struct nic_loop {
    // Order of members is order of tear-down, last first.
    std::shared_ptr<nic> opened_nic;
    // Devices' memory as the far end of a transfer: in the loopback domain, with remote rights.
    std::shared_ptr<registration_cache> remote_memory;
    ibv_pd* domain = nullptr;
    // Small copies go through a room in host memory, which is registered once.
    mapping room;
    mr_handle room_region;
    std::unique_ptr<nic_copier> small;
    std::shared_ptr<nic_copier> large; // made when it is first needed: small copies do not wait behind it

    nic_loop() = default;
    ~nic_loop();
    nic_loop(const nic_loop&) = delete;
    nic_loop& operator=(const nic_loop&) = delete;
    static result<std::shared_ptr<nic_loop>> make(const std::shared_ptr<nic>& opened_nic);
};

// A NIC that sends to itself: between any two places that it can register.
class nic_loopback final : public path {
public:
    explicit nic_loopback(const path_tools& tools);
    ~nic_loopback() override;

    [[nodiscard]] copy_path which() const override { return copy_path::nic_loopback; }
    [[nodiscard]] const char* unsuited(const copy_job& job) const override;
    result<void> prepare(const copy_job& job) override;
    result<copy_ticket> start(const copy_job& job) override;
    // Between host and device, done when it returns: a few microseconds for a few bytes. One that fails for
    // another reason than its memory is the last.
    result<copy_ticket> copy_now(const copy_job& job);
    // Whether none of its transfers has failed: until then it may be preferred.
    [[nodiscard]] bool works() const { return !state_->failed.load(std::memory_order_relaxed); }
    void forget(unsigned device_index) override;
    void drop_lost() override;

private:
    struct entry {
        std::weak_ptr<device> owner;
        std::weak_ptr<hl_device> core; // whose it is: buffers may outlive the other
        std::shared_ptr<nic_loop> loop;
        std::optional<error> why_none;
    };
    // An end as the NIC addresses it, and what keeps it so.
    struct reached {
        nic_copier::region at;
        std::shared_ptr<const void> kept;
    };
    struct ready {
        std::shared_ptr<nic_copier> copier;
        reached local, remote;
        bool write = false; // from near to far
    };

    // All with the mutex held.
    // `owner`: of the end that is a device's.
    result<entry*> entry_for(const copy_job& job, std::shared_ptr<device>& owner);
    result<void> make_loop(entry& of, const std::shared_ptr<device>& near_to);
    result<void> move_small(nic_loop& loop, device& owner, const copy_job& job);
    void drop_loops(const std::function<bool(const entry&)>& of);

    // All without it: an owner may have to be asked, and much memory to be pinned.
    result<ready> reach_both(const copy_job& job);
    result<reached> local_end(nic_loop& loop, const copy_job& job, const copy_end& end);
    result<reached> remote_end(nic_loop& loop, const copy_job& job, const copy_end& end);

    device_table& devices_;
    pending_copies& pending_;
    // Shared with copies that outlive this object.
    struct shared_state {
        std::mutex mutex; // guards everything here, and the NIC's queues
        std::atomic<bool> failed{false};
    };
    friend class nic_copy;
    const std::shared_ptr<shared_state> state_ = std::make_shared<shared_state>();
    std::vector<entry> entries_; // by device; the first: of copies without one
    std::vector<std::weak_ptr<nic_loop>> loops_;
};

} // namespace gaudi
