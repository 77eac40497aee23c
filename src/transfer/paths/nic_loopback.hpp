// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "src/os/mapping.hpp"
#include "src/rdma/nic_copier.hpp"
#include "src/rdma/registration_cache.hpp"
#include "src/transfer/path.hpp"

#include <mutex>

namespace gaudi {

// A NIC of this process that sends to itself.
struct nic_loop {
    // Order of members is order of tear-down, last first.
    std::shared_ptr<nic> card;
    // Devices' memory as the far end of a transfer: in the loopback domain, with remote rights.
    std::shared_ptr<registration_cache> far_memory;
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
    static result<std::shared_ptr<nic_loop>> make(const std::shared_ptr<nic>& card);
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
    // another reason than its memory is the last on this device.
    result<copy_ticket> copy_now(const copy_job& job);
    void forget(unsigned device_index) override;
    void drop_lost() override;

private:
    struct entry {
        std::weak_ptr<device> owner;
        std::shared_ptr<nic_loop> loop;
        bool no_small = false;
        std::optional<error> why_none;
    };
    // An end as the NIC addresses it, and what keeps it so.
    struct reached {
        nic_copier::region at;
        std::shared_ptr<const void> kept;
    };
    struct ready {
        std::shared_ptr<nic_loop> loop;
        reached near, far;
        bool write = false; // from near to far
    };

    // All with the mutex held.
    // `owner`: of the end that is a device's.
    result<entry*> entry_for(const copy_job& job, std::shared_ptr<device>& owner);
    result<void> make_loop(entry& of, const std::shared_ptr<device>& near_to);
    result<void> move_small(nic_loop& loop, device& owner, const copy_job& job);
    result<ready> reach_both(const copy_job& job);
    result<reached> reach_near(nic_loop& loop, const copy_job& job, const copy_end& end);
    result<reached> reach_far(nic_loop& loop, const copy_job& job, const copy_end& end);

    device_table& devices_;
    pending_copies& pending_;
    // Guards everything here, and the NIC's queues: also those of copies that outlive this object.
    const std::shared_ptr<std::mutex> mutex_ = std::make_shared<std::mutex>();
    std::vector<entry> entries_; // by device; the first: of copies without one
    std::vector<std::weak_ptr<nic_loop>> loops_;
};

} // namespace gaudi
