// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/memory_observer.hpp>

#include "src/ipc/hangup_watch.hpp"
#include "src/ipc/request_handler.hpp"

#include <mutex>
#include <thread>

namespace gaudi {

// The owner's side of sharing: one broker per process, whose thread answers importers on a socket with a
// random name. The same thread watches this process's own connections to other owners (hangup_watch), because
// an importer needs such a thread too.
//
// One mutex guards everything below it; the parts have none of their own.
class broker : public memory_observer {
public:
    // Starts the broker if it is not running. An error where it cannot start.
    static result<std::shared_ptr<broker>> self();
    // The running broker, or nullptr.
    static std::shared_ptr<broker> running();
    static void stop();

    // `separate`: the handle gets a secret of its own.
    result<memory_handle> share(device_address address, std::uint64_t length, bool separate);
    bool is_shared(const handle_record& handle);
    // Lets other processes of this user join the device's context.
    result<void> offer(const std::shared_ptr<hl_device>& context);
    // The leases of the allocation that holds the address; with a secret, only those opened with it.
    std::vector<lease_info> leases_of(device_address address, std::uint64_t secret = 0);
    // Revokes those leases and invalidates their handles. False where nothing is shared there.
    bool revoke(device_address address, std::uint64_t secret = 0);
    // Waits until no copy of those leases is in flight, or until all of them are closed. False on timeout.
    enum class until { quiet, closed };
    bool wait(device_address address, until what, std::chrono::milliseconds limit, std::uint64_t secret = 0);
    void count(ipc_statistics& into);

    // Watches a connection of this process to another owner, see hangup_watch. errc::system_call_failed.
    result<void> watch(int socket, const std::shared_ptr<hangup_watcher>& watcher);
    result<void> watch_revoke_socket(int socket);
    void unwatch(int socket);
    // A watcher has unsent messages: the broker's thread calls its flush().
    void flush_soon();

    void window_opens(const memory_window&) override {}
    void window_closes(const memory_window&) override { events_.wake(); } // an offered device may be closed
    bool memory_goes(device_address base, std::uint64_t length) override;

private:
    broker(poller events, ipc_settings settings);
    result<void> listen();
    void run();
    void handle(std::span<const int> ready);
    bool end_clients();
    bool finished(client& ended);
    [[nodiscard]] bool is_leased(const shared_allocation& allocation) const;
    void flush_watchers();
    // How long the thread may sleep, in milliseconds; -1: until the next event.
    [[nodiscard]] int longest_sleep() const;
    // Waits for importers to release their DMA-BUFs of these allocations. An importer that does not release
    // within half a second is not waited for again until it sends a message.
    void wait_for_releases(const std::vector<std::uint64_t>& bases);
    void end();

    std::mutex mutex_;
    poller events_;
    const ipc_settings settings_;
    fork_private_fd listener_;
    share_table shares_;
    device_offers offers_{events_};
    client_list clients_{events_, settings_};
    request_handler requests_{shares_, offers_, clients_, settings_};
    hangup_watch hangups_{events_};
    std::atomic<bool> unsent_{false};
    bool ending_ = false;
    std::thread thread_;
};

} // namespace gaudi
