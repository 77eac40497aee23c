// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/device.hpp>
#include <gaudi/memory_observer.hpp>

#include "src/ipc/wire.hpp"
#include "src/os/channel.hpp"
#include "src/os/close_on_fork.hpp"
#include "src/os/shared_memory.hpp"

#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <sys/socket.h>
#include <thread>

namespace gaudi {

// Somebody who wants to know when a socket's other end is gone.
class hangup_watcher {
public:
    virtual ~hangup_watcher() = default;
    virtual void hung_up() = 0;
    // Sends what could not be sent before. False: there is more.
    virtual bool flush() { return true; }
};

// The owner's side of sharing: one per process, a thread that answers importers on a socket of a name that
// nobody guesses. It also tells this process's own imports when their owner is gone.
class broker : public memory_observer, public std::enable_shared_from_this<broker> {
public:
    // Running, or why it cannot.
    static result<std::shared_ptr<broker>> self();
    // The one that runs, or none.
    static std::shared_ptr<broker> running();
    static void stop();
    ~broker() override;

    // `apart`: with a secret of its own.
    result<memory_handle> share(device_address address, std::uint64_t length, bool apart);
    // Begins to serve; share() does by itself.
    result<void> begin_to_listen();
    // Serves others that want to open the device.
    result<void> offer(const std::shared_ptr<hl_device>& context);
    std::vector<lease_info> leases_of(device_address address, std::uint64_t secret = 0);
    // Marks the leases of the allocation and forgets that it is shared; with a secret: only what was opened
    // with that.
    // False: there is no such thing.
    bool revoke(device_address address, std::uint64_t secret = 0);
    // No copy of it is under way, or nobody has it open.
    enum class until { quiet, closed };
    bool wait(device_address address, until what, std::chrono::milliseconds limit, std::uint64_t secret = 0);
    // The watcher hears of it once. errc::system_call_failed.
    result<void> watch(int socket, const std::shared_ptr<hangup_watcher>& watcher);
    void unwatch(int socket);
    // An owner rings it when it revokes a lease. errc::system_call_failed.
    result<void> watch_bell(int socket);
    // The watcher has something left to send.
    void flush_soon();
    void count(ipc_statistics& into);

    void window_opens(const memory_window&) override {}
    void window_closes(const memory_window&) override { wake(); } // a device that was offered may be gone
    bool memory_goes(device_address base, std::uint64_t length) override;

private:
    struct shared_allocation {
        std::uint64_t length = 0, generation = 0;
        // What a handle opens: the bytes it was made for and no others.
        struct piece {
            std::uint64_t offset = 0, length = 0;
            bool apart = false; // of share_apart(): not given to a second caller
            // A DMA-BUF of its pages alone, while there are leases.
            unique_fd window;
            std::uint64_t skip = 0, window_length = 0;
        };
        std::map<std::uint64_t, piece> pieces; // by the secret in the handle
        unsigned device_index = 0;
    };
    struct lease {
        std::uint64_t base = 0, generation = 0, secret = 0;
        // What counts; the board, which the importer can write, only tells it.
        bool revoked = false;
        bool closing = false; // when its copies have ended
        bool given = false;   // a DMA-BUF, of which the importer has something still
        unsigned copies = 0;  // that this process makes for it
        [[nodiscard]] bool is_of(std::uint64_t at, const shared_allocation& allocation) const {
            return base == at && generation == allocation.generation;
        }
        // 0: any.
        [[nodiscard]] bool opened_with(std::uint64_t which) const { return which == 0 || which == secret; }
    };
    // A copy for an importer that was given no descriptor.
    struct proxied {
        copy_ticket ticket;
        wire_reply reply;
        std::uint32_t lease;
    };
    struct guest {
        std::shared_ptr<hl_device> context;
        unsigned place;
    };
    struct client {
        lone_fd socket, process; // process: a pidfd, where the kernel gives one
        ucred who{};
        std::chrono::steady_clock::time_point since; // it came, or was condemned
        bool greeted = false, dead = false;
        bool given = false; // a descriptor: it copies itself, and counts itself in
        shared_memory board;
        lone_fd bell;        // rung when a lease is revoked: it lets go of what it has of the memory
        bool silent = false; // it was waited for in vain, and has not been heard of since
        std::map<std::uint32_t, lease> leases; // by slot of the board
        std::uint32_t next_slot = 0;
        std::vector<guest> guests;
        shared_memory slab;
        struct slab_pin {
            copy_engine engine;
            pinned_memory pinned;
        };
        std::map<unsigned, slab_pin> slab_pins; // by device
        std::list<proxied> copies;
        std::vector<unique_fd> parked; // until the other side has fetched them

        [[nodiscard]] unsigned in_flight(std::uint32_t slot, const lease& held) const {
            return held.copies + (given ? word(slot).in_flight.load() : 0);
        }
        void revoke(std::uint32_t slot, lease& held);
        [[nodiscard]] lease_word& word(std::uint32_t slot) const {
            return reinterpret_cast<lease_word*>(board.data())[slot];
        }
    };
    using answer = result<std::vector<int>>; // descriptors to pass

    broker() = default;
    result<void> start();
    result<void> listen();
    result<void> add(int fd, std::uint32_t events);
    void wake();
    [[nodiscard]] bool serves(std::uint32_t user) const;
    void run();
    // Whoever hung up is told afterwards, without the lock; imports that were revoked are let go.
    void dispatch(int fd, std::vector<std::shared_ptr<hangup_watcher>>& hung_up, bool& revoked);
    void flush_all();
    void accept_all(int listener);
    void make_room_for_one();
    void send_one_away(int listener);
    void keep_a_spare();
    // Reads what the client sent. False: it has to go.
    bool serve(client& from);
    answer carry_out(client& from, const wire_request& asked, received_message& with, wire_reply& reply);
    answer open_lease(client& from, const wire_request& asked, wire_reply& reply);
    answer open_context(client& from, const wire_request& asked, wire_reply& reply);
    answer open_dmabuf(client& from, const wire_request& asked, wire_reply& reply);
    answer open_device(client& from, const wire_request& asked, wire_reply& reply);
    answer admit(client& from, const std::shared_ptr<hl_device>& context, wire_reply& reply);
    result<void> attach_slab(client& from, const wire_request& asked, received_message& with);
    result<void> start_copy(client& from, const wire_request& asked, const wire_reply& reply);
    result<void> open_window(std::uint64_t base, const shared_allocation& of,
                             shared_allocation::piece& piece);
    bool send_reply(client& to, wire_reply& reply, std::span<const int> passed);
    // The allocation that holds the address, or the end.
    std::map<std::uint64_t, shared_allocation>::iterator shared_at(device_address address);
    // What the lease is of, if that is still there.
    shared_allocation* leased(const client& by, std::uint32_t slot, std::uint64_t& base);
    void condemn(client& gone);
    void close_lease(client& from, std::uint32_t slot);
    void close_window_if_unused(const lease& ended);
    // Importers that were told to let go do so in a moment. One that does not is not waited for again.
    void wait_for_importers(const std::vector<std::uint64_t>& bases);
    void finish_copies(client& of);
    // Nothing that it began can touch memory any more.
    [[nodiscard]] static bool is_harmless(const client& gone);
    // The other side is gone: what it held ends. True: nothing of it is left.
    bool bury(client& gone);
    void bury_the_dead();
    // How long the thread may sleep, in milliseconds; -1: until something comes.
    [[nodiscard]] int patience() const;
    // A device that was reset opens again only when nobody holds on to it.
    void let_go_of_lost_devices(client& of);
    void end();

    std::mutex mutex_;
    lone_fd epoll_, wake_, listener_;
    std::set<int> bells_; // of owners
    std::atomic<bool> unsent_{false};
    lone_fd spare_; // a number to give free when there are no others
    std::thread thread_;
    bool ending_ = false;
    ipc_settings settings_;
    std::map<std::uint64_t, shared_allocation> shared_; // by base
    struct offered {
        std::weak_ptr<hl_device> context;
        lone_fd listener;
    };
    std::map<std::uint64_t, offered> offered_; // by node
    std::list<client> clients_;
    std::uint64_t leases_given_ = 0;
    std::map<int, std::weak_ptr<hangup_watcher>> watched_;
    std::vector<std::shared_ptr<device>> used_; // devices of the requests at hand: let go without the lock
};

} // namespace gaudi
