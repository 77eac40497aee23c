// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/copier.hpp>

#include "src/os/event_set.hpp"
#include "src/transfer/device_table.hpp"
#include "src/transfer/path.hpp"
#include "src/transfer/pending_copy.hpp"
#include "src/transfer/slab_pool.hpp"

#include <array>
#include <atomic>

namespace gaudi {

class nic_loopback;

// Plans copies: chooses the first viable path for two places that the policy allows.
class copier_core {
public:
    // The copier of imported memory, which has no copier of its own. It keeps no device open. A child of fork
    // starts with a new one.
    static std::shared_ptr<copier_core> of_process();
    static void drop_of_process();

    explicit copier_core(const copier_options& options);
    ~copier_core();
    copier_core(const copier_core&) = delete;
    copier_core& operator=(const copier_core&) = delete;

    result<copy_ticket> copy(const place& to, const place& from, const copy_policy& policy);
    std::vector<path_verdict> paths(const place& to, const place& from);
    void poll();
    result<int> event_fd();
    void arm();
    void forget(unsigned device_index);
    void drop_lost();
    [[nodiscard]] device_table& devices() { return devices_; }

private:
    // These fill the job in place: moving objects costs measurable time in small copies.
    [[nodiscard]] static result<void> look_up(const place& to, const place& from, copy_job& job);
    [[nodiscard]] static result<void> look_up(const place& which, copy_end& end, copy_job& job);
    [[nodiscard]] static result<void> look_up_imported(const place& which, copy_end& end, copy_job& job);
    [[nodiscard]] result<copy_ticket> try_paths(const copy_job& job, const copy_policy& policy,
                                                bool nic_first);
    [[nodiscard]] error nothing_viable(const copy_job& job, const copy_policy& policy,
                                       std::span<const std::pair<copy_path, error>> failures) const;
    void watch(copy_core& engine);

    const copier_options options_;
    const unsigned forks_;
    device_table devices_;
    pending_copies pending_;
    nic_loopback* small_;                                 // of paths_
    std::array<std::unique_ptr<path>, copy_paths> paths_; // in the order of copy_path
    std::mutex events_mutex_;
    event_set events_;                   // of event_fd(), once it was called
    std::atomic<bool> armed_{false};     // a thread may be asleep: the next pending copy sets the timer
    std::atomic<bool> unwatched_{false}; // descriptors were exhausted: the timer stands in for an engine's
};

} // namespace gaudi
