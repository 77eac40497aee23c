// SPDX-License-Identifier: BSD-3-Clause
// One side of a test of two or more processes: memory, a worker, and notes over a socket.
#pragma once

#include "tests/support/virtual_synapse.hpp"

#include <gaudi/device.hpp>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fmt/format.h>
#include <mutex>
#include <poll.h>
#include <span>
#include <stdexcept>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <ucp/api/ucp.h>
#include <utility>
#include <vector>

namespace ucp_side {

struct failure : std::runtime_error {
    using std::runtime_error::runtime_error;
};

inline void check(ucs_status_t status, const char* what) {
    if (status != UCS_OK)
        throw failure(fmt::format("{}: {}", what, ucs_status_string(status)));
}

// Test data, different for every operation, size and round. `at`: the offset of `bytes`, a multiple of eight.
inline void make(std::span<std::byte> bytes, std::uint64_t seed, std::size_t at) {
    constexpr std::uint64_t step = 0xc2b2ae3d27d4eb4f;
    auto next = seed * 0x9e3779b97f4a7c15 + at / 8 * step;
    const auto word = [&] {
        const auto made = next ^ next >> 29;
        next += step;
        return made;
    };
    const auto whole = bytes.size() / 8 * 8;
    for (std::size_t i = 0; i < whole; i += 8) {
        const auto made = word();
        std::memcpy(bytes.data() + i, &made, 8);
    }
    const auto last = word();
    std::memcpy(bytes.data() + whole, &last, bytes.size() - whole);
}

// A UCP context, configured by the environment.
class context {
public:
    explicit context(std::uint64_t features, bool workers_in_threads = false) {
        ucp_params_t params{};
        params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
        params.features = features;
        params.mt_workers_shared = workers_in_threads;
        ucp_config_t* config = nullptr;
        check(ucp_config_read(nullptr, nullptr, &config), "ucp_config_read");
        const auto status = ucp_init(&params, config, &handle_);
        ucp_config_release(config);
        check(status, "ucp_init");
    }
    ~context() { ucp_cleanup(handle_); }
    context(const context&) = delete;
    context& operator=(const context&) = delete;

    [[nodiscard]] ucp_context_h handle() const { return handle_; }

private:
    ucp_context_h handle_ = nullptr;
};

// Where device memory comes from: our library, from `devices` devices in turn; or SynapseAI's pool; otherwise
// UCX allocates it.
struct source {
    unsigned devices = 0;
    bool synapse = false;
    bool bare = false; // UCX gets only the address, neither memory type nor handle
};

// Host or device memory with UCX's handle for it.
class memory {
public:
    memory(const context& owner, const std::string& kind, std::size_t size, const source& of = {})
        : context_(owner.handle()), device_(kind == "gaudi"), size_(size), bare_(of.bare) {
        ucp_mem_map_params_t params{};
        params.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS |
                            UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE;
        params.length = size;
        params.memory_type = device_ ? UCS_MEMORY_TYPE_GAUDI : UCS_MEMORY_TYPE_HOST;
        if (device_ && (of.devices != 0 || of.synapse)) {
            params.field_mask |= UCP_MEM_MAP_PARAM_FIELD_ADDRESS;
            if (bare_)
                params.field_mask &= ~std::uint64_t{UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE};
            params.address = reinterpret_cast<void*>(of.synapse ? of_synapse() : of_library(of.devices));
        } else
            params.flags = UCP_MEM_MAP_ALLOCATE;
        check(ucp_mem_map(context_, &params, &handle_), "ucp_mem_map");
        ucp_mem_attr_t attr{};
        attr.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS;
        check(ucp_mem_query(handle_, &attr), "ucp_mem_query");
        address_ = attr.address;
    }
    ~memory() { ucp_mem_unmap(context_, handle_); }
    memory(const memory&) = delete;
    memory& operator=(const memory&) = delete;

    [[nodiscard]] void* address() const { return address_; }
    [[nodiscard]] std::size_t size() const { return size_; }
    [[nodiscard]] ucp_mem_h handle() const { return handle_; }
    [[nodiscard]] ucp_request_param_t param() const {
        ucp_request_param_t with{};
        if (bare_)
            return with;
        with.op_attr_mask = UCP_OP_ATTR_FIELD_MEMH;
        with.memh = handle_;
        return with;
    }

    void fill(std::uint64_t seed) {
        in_pieces([&](std::size_t at, std::span<std::byte> piece) {
            make(piece, seed, at);
            write(piece, at);
        });
    }
    void write(std::span<const std::byte> bytes, std::size_t at = 0) {
        if (!device_)
            std::memcpy(static_cast<std::byte*>(address_) + at, bytes.data(), bytes.size());
        else
            gaudi::expect(gaudi::expect(engine().write(where(at), bytes)).wait());
    }
    void read(std::span<std::byte> bytes, std::size_t at = 0) const {
        if (!device_)
            std::memcpy(bytes.data(), static_cast<std::byte*>(address_) + at, bytes.size());
        else
            gaudi::expect(gaudi::expect(engine().read(bytes, where(at))).wait());
    }
    void expect(std::uint64_t seed, const std::string& what) {
        std::vector<std::byte> right(std::min(size_, piece_size));
        in_pieces([&](std::size_t at, std::span<std::byte> found) {
            read(found, at);
            make(std::span(right).first(found.size()), seed, at);
            if (std::memcmp(found.data(), right.data(), found.size()) == 0)
                return;
            const auto i = static_cast<std::size_t>(
                std::mismatch(found.begin(), found.end(), right.begin()).first - found.begin());
            throw failure(fmt::format("{}: byte {} of {} is {}, expected {}", what, at + i, size_,
                                      static_cast<int>(found[i]), static_cast<int>(right[i])));
        });
    }
    // Address and key, for the peer's remote_memory.
    [[nodiscard]] std::vector<char> pass() const {
        void* key = nullptr;
        std::size_t length = 0;
        check(ucp_rkey_pack(context_, handle_, &key, &length), "ucp_rkey_pack");
        const auto address = reinterpret_cast<std::uint64_t>(address_);
        std::vector<char> note(sizeof(address) + length);
        std::memcpy(note.data(), &address, sizeof(address));
        std::memcpy(note.data() + sizeof(address), key, length);
        ucp_rkey_buffer_release(key);
        return note;
    }

private:
    static constexpr std::size_t piece_size = 4 << 20;
    template <typename F>
    void in_pieces(F&& each) const {
        std::vector<std::byte> piece(std::min(size_, piece_size));
        for (std::size_t at = 0; at < size_; at += piece.size())
            each(at, std::span(piece).first(std::min(piece.size(), size_ - at)));
    }
    std::uint64_t of_library(unsigned devices) {
        buffer_ = gaudi::expect(next_of(devices).heap().allocate(size_));
        return buffer_.address().value();
    }
    // Hands out parts of the pool in turn; they are used only briefly.
    [[nodiscard]] std::uint64_t of_synapse() const {
        static const virtual_synapse all;
        static std::mutex mutex;
        static std::uint64_t next = 0;
        const std::lock_guard guard(mutex);
        if (next + size_ > all.pool_size())
            next = 0;
        return all.pool() + std::exchange(next, next + (size_ + 65535) / 65536 * 65536);
    }
    static gaudi::device& next_of(unsigned count) {
        // Open until exit: registrations that UCX caches keep a device busy.
        static const auto open = [&] {
            std::vector<std::shared_ptr<gaudi::device>> found;
            for (const auto& each : gaudi::expect(gaudi::list_devices()))
                if (found.size() < count)
                    if (auto device = gaudi::open_device(gaudi::by_index{each.index}))
                        found.push_back(std::move(*device));
            if (found.size() < count)
                throw failure(fmt::format("{} devices are free, {} are needed", found.size(), count));
            return found;
        }();
        static std::atomic<unsigned> turn{0};
        return *open[turn++ % count];
    }
    [[nodiscard]] gaudi::device_address where(std::size_t at = 0) const {
        return gaudi::device_address(reinterpret_cast<std::uint64_t>(address_) + at);
    }
    [[nodiscard]] gaudi::copy_engine engine() const {
        const auto index = gaudi::known_memory().device_of(where());
        if (!index)
            throw failure("UCX gave memory of no known device");
        return gaudi::expect(gaudi::find_open_device(*index)->copies());
    }

    ucp_context_h context_;
    bool device_;
    std::size_t size_;
    bool bare_;
    gaudi::device_buffer buffer_;
    ucp_mem_h handle_ = nullptr;
    void* address_ = nullptr;
};

// Memory of the peer, from the note of memory::pass.
class remote_memory {
public:
    remote_memory(ucp_ep_h endpoint, const std::vector<char>& note) {
        std::memcpy(&address_, note.data(), sizeof(address_));
        check(ucp_ep_rkey_unpack(endpoint, note.data() + sizeof(address_), &key_), "ucp_ep_rkey_unpack");
    }
    ~remote_memory() { ucp_rkey_destroy(key_); }
    remote_memory(const remote_memory&) = delete;
    remote_memory& operator=(const remote_memory&) = delete;

    [[nodiscard]] std::uint64_t address() const { return address_; }
    [[nodiscard]] ucp_rkey_h key() const { return key_; }

private:
    std::uint64_t address_ = 0;
    ucp_rkey_h key_ = nullptr;
};

// Sends and receives notes over a socket; `meanwhile` runs while a caller waits for a note.
class notes {
public:
    explicit notes(int socket) : socket_(socket) {}

    [[nodiscard]] int socket() const { return socket_; }
    [[nodiscard]] bool ended() const {
        char byte = 0;
        return ::recv(socket_, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
    }
    void send_note(const std::vector<char>& note) {
        const auto size = static_cast<std::uint32_t>(note.size());
        send_all(&size, sizeof(size));
        send_all(note.data(), note.size());
    }
    template <typename F>
    std::vector<char> receive_note(F&& meanwhile) {
        std::uint32_t size = 0;
        receive_all(&size, sizeof(size), meanwhile);
        std::vector<char> note(size);
        receive_all(note.data(), size, meanwhile);
        return note;
    }

private:
    void send_all(const void* bytes, std::size_t count) {
        const auto* at = static_cast<const char*>(bytes);
        for (ssize_t sent = 0; count > 0; at += sent, count -= static_cast<std::size_t>(sent))
            if ((sent = ::send(socket_, at, count, MSG_NOSIGNAL)) <= 0)
                throw failure("the peer is gone");
    }
    template <typename F>
    void receive_all(void* bytes, std::size_t count, F&& meanwhile) {
        auto* at = static_cast<char*>(bytes);
        while (count > 0) {
            const auto got = ::recv(socket_, at, count, MSG_DONTWAIT);
            if (got > 0) {
                at += got;
                count -= static_cast<std::size_t>(got);
            } else if (got == 0)
                throw failure("the peer is gone");
            else
                meanwhile();
        }
    }

    int socket_;
};

class worker {
public:
    worker(const context& owner, bool sleeps, ucs_thread_mode_t mode = UCS_THREAD_MODE_SINGLE)
        : sleeps_(sleeps) {
        ucp_worker_params_t params{};
        params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
        params.thread_mode = mode;
        check(ucp_worker_create(owner.handle(), &params, &handle_), "ucp_worker_create");
        ucp_worker_attr_t attr{};
        attr.field_mask = UCP_WORKER_ATTR_FIELD_THREAD_MODE;
        check(ucp_worker_query(handle_, &attr), "ucp_worker_query");
        if (attr.thread_mode != mode)
            throw failure("UCX was built without this mode of threads");
        if (sleeps)
            check(ucp_worker_get_efd(handle_, &event_), "ucp_worker_get_efd");
    }
    ~worker() { ucp_worker_destroy(handle_); } // destroys endpoints that were not closed
    worker(const worker&) = delete;
    worker& operator=(const worker&) = delete;

    [[nodiscard]] ucp_worker_h handle() const { return handle_; }

    // Exchanges addresses and creates an endpoint; `how`: the other parameters.
    ucp_ep_h connect(notes& with, ucp_ep_params_t how) {
        ucp_address_t* mine = nullptr;
        std::size_t length = 0;
        check(ucp_worker_get_address(handle_, &mine, &length), "ucp_worker_get_address");
        with.send_note(
            std::vector<char>(reinterpret_cast<char*>(mine), reinterpret_cast<char*>(mine) + length));
        ucp_worker_release_address(handle_, mine);
        const auto theirs = with.receive_note([&] { ucp_worker_progress(handle_); });
        how.field_mask |= UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
        how.address = reinterpret_cast<const ucp_address_t*>(theirs.data());
        ucp_ep_h endpoint = nullptr;
        check(ucp_ep_create(handle_, &how, &endpoint), "ucp_ep_create");
        return endpoint;
    }
    // Progresses the worker; if nothing progressed, sleeps until an event or a note arrives.
    void turn(int socket) {
        if (ucp_worker_progress(handle_) != 0)
            return;
        if (!sleeps_)
            return std::this_thread::yield(); // there are more threads than cores
        if (const auto status = ucp_worker_arm(handle_); status == UCS_ERR_BUSY)
            return;
        else
            check(status, "ucp_worker_arm");
        pollfd both[] = {{event_, POLLIN, 0}, {socket, POLLIN, 0}};
        if (::poll(both, 2, 20000) == 0)
            throw failure("asleep for 20 s, and nothing happened");
    }

private:
    ucp_worker_h handle_ = nullptr;
    bool sleeps_;
    int event_ = -1;
};

inline ucp_ep_params_t errors_handled(bool handled) {
    ucp_ep_params_t how{};
    how.field_mask = UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
    how.err_mode = handled ? UCP_ERR_HANDLING_MODE_PEER : UCP_ERR_HANDLING_MODE_NONE;
    return how;
}

// One end of a pair that communicates through an endpoint and over a socket. Several may share a worker and
// an endpoint; each has its own id for active messages.
class peer {
public:
    peer(worker& on, ucp_ep_h endpoint, int socket, bool active, unsigned id = 1)
        : worker_(on), endpoint_(endpoint), notes_(socket), active_(active), id_(id) {
        ucp_am_handler_param_t handler{};
        handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                             UCP_AM_HANDLER_PARAM_FIELD_ARG | UCP_AM_HANDLER_PARAM_FIELD_FLAGS;
        handler.id = id;
        handler.cb = [](void* self, const void*, size_t, void* data, size_t length,
                        const ucp_am_recv_param_t*) {
            static_cast<peer*>(self)->keep({data, length});
            return UCS_INPROGRESS;
        };
        handler.arg = this;
        handler.flags = UCP_AM_FLAG_PERSISTENT_DATA;
        check(ucp_worker_set_am_recv_handler(on.handle(), &handler), "ucp_worker_set_am_recv_handler");
        meet(); // UCX drops messages that arrive before the handler is set
    }
    peer(const peer&) = delete;
    peer& operator=(const peer&) = delete;

    [[nodiscard]] bool active() const { return active_; }
    [[nodiscard]] unsigned id() const { return id_; }
    [[nodiscard]] ucp_ep_h endpoint() const { return endpoint_; }
    [[nodiscard]] ucp_worker_h worker_handle() const { return worker_.handle(); }

    ucs_status_t finish(ucs_status_ptr_t request) {
        if (!UCS_PTR_IS_PTR(request))
            return UCS_PTR_STATUS(request);
        auto status = ucp_request_check_status(request);
        for (; status == UCS_INPROGRESS; status = ucp_request_check_status(request))
            turn();
        ucp_request_free(request);
        return status;
    }
    void done(ucs_status_ptr_t request, const char* what) { check(finish(request), what); }

    void send_note(const std::vector<char>& note) { notes_.send_note(note); }
    std::vector<char> receive_note() {
        return notes_.receive_note([this] { turn(); });
    }
    // A barrier of the two processes.
    void meet() {
        send_note({'m'});
        (void)receive_note();
    }
    // Flushes both sides: no operation is outstanding afterwards.
    void settle() {
        ucp_request_param_t none{};
        done(ucp_worker_flush_nbx(worker_.handle(), &none), "ucp_worker_flush_nbx");
        meet();
    }
    // Call settle() first: a queue pair that closes earlier leaves its peer waiting.
    void close() {
        ucp_request_param_t none{};
        done(ucp_ep_close_nbx(std::exchange(endpoint_, nullptr), &none), "ucp_ep_close_nbx");
        meet();
    }

    struct message {
        void* data = nullptr;
        std::size_t length = 0;
    };
    message next_message() {
        for (;;) {
            {
                const std::lock_guard guard(mutex_);
                if (message_.data != nullptr)
                    return std::exchange(message_, {});
            }
            turn();
        }
    }

private:
    // Runs in the thread that progresses the worker.
    void keep(message came) {
        const std::lock_guard guard(mutex_);
        message_ = came;
    }
    void turn() {
        if (++turns_ % 1024 == 0 && notes_.ended()) { // the peer has ended: UCX would wait forever
            using clock = std::chrono::steady_clock;
            if (!gone_since_)
                gone_since_ = clock::now();
            else if (clock::now() - *gone_since_ > std::chrono::seconds(10)) // UCX had time to report it
                throw failure("the peer is gone");
        }
        worker_.turn(notes_.socket());
    }

    worker& worker_;
    ucp_ep_h endpoint_;
    notes notes_;
    bool active_;
    unsigned id_;
    unsigned turns_ = 0;
    std::optional<std::chrono::steady_clock::time_point> gone_since_;
    std::mutex mutex_;
    message message_;
};

} // namespace ucp_side
