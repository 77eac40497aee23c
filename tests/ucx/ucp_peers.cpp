// SPDX-License-Identifier: BSD-3-Clause
// Two processes that move memory through UCX and check every byte; ucx_perftest checks none. Linked to stock
// UCX, told by the environment what to use.
#include <gaudi/device.hpp>

#include <CLI/CLI.hpp>
#include <arpa/inet.h>
#include <csignal>
#include <cstring>
#include <fmt/format.h>
#include <map>
#include <netinet/in.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <thread>
#include <ucp/api/ucp.h>
#include <unistd.h>

namespace {

struct failure : std::runtime_error {
    using std::runtime_error::runtime_error;
};

void check(ucs_status_t status, const char* what) {
    if (status != UCS_OK)
        throw failure(fmt::format("{}: {}", what, ucs_status_string(status)));
}

struct options {
    std::vector<std::string> operations{"put", "get", "tag", "stream", "am"};
    std::vector<std::size_t> sizes{1, 7, 256, 4095, 4096, 4097, 65536, 1 << 20, (9 << 20) + 5};
    std::string here = "gaudi", there = "gaudi"; // kinds of memory of the active and the passive side
    bool library = false;                        // memory from our library instead of ucp_mem_map
    bool sleep = false;
    unsigned threads = 1;
    unsigned rounds = 2;
    unsigned die = 0; // the passive side, in its n-th operation
    std::string listen, connect;
};

// Which byte belongs where: different for every operation, size and round.
std::byte pattern(std::uint64_t seed, std::size_t index) {
    return static_cast<std::byte>((seed * 0x9e3779b97f4a7c15 + index * 0xc2b2ae3d27d4eb4f) >> 56);
}

std::vector<std::byte> made(std::uint64_t seed, std::size_t size) {
    std::vector<std::byte> bytes(size);
    for (std::size_t i = 0; i < size; ++i)
        bytes[i] = pattern(seed, i);
    return bytes;
}

// Host or device memory with UCX's handle for it.
class memory {
public:
    memory(ucp_context_h context, const std::string& kind, std::size_t size, bool library)
        : context_(context), device_(kind == "gaudi"), size_(size) {
        ucp_mem_map_params_t params{};
        params.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS |
                            UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE;
        params.length = size;
        params.memory_type = device_ ? UCS_MEMORY_TYPE_GAUDI : UCS_MEMORY_TYPE_HOST;
        if (device_ && library) {
            // Open until the end: registrations that UCX caches keep a device busy.
            static const auto device = gaudi::expect(gaudi::open_device());
            buffer_ = gaudi::expect(device->heap().allocate(size));
            params.field_mask |= UCP_MEM_MAP_PARAM_FIELD_ADDRESS;
            params.address = reinterpret_cast<void*>(buffer_.address().value());
        } else
            params.flags = UCP_MEM_MAP_ALLOCATE;
        check(ucp_mem_map(context, &params, &handle_), "ucp_mem_map");
        ucp_mem_attr_t attr{};
        attr.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS;
        check(ucp_mem_query(handle_, &attr), "ucp_mem_query");
        address_ = attr.address;
    }
    ~memory() { ucp_mem_unmap(context_, handle_); }
    memory(const memory&) = delete;
    memory& operator=(const memory&) = delete;

    [[nodiscard]] void* address() const { return address_; }
    [[nodiscard]] ucp_mem_h handle() const { return handle_; }

    void fill(const std::vector<std::byte>& bytes) {
        if (!device_)
            std::memcpy(address_, bytes.data(), bytes.size());
        else
            gaudi::expect(gaudi::expect(engine().write(where(), bytes)).wait());
    }
    std::vector<std::byte> read() {
        std::vector<std::byte> bytes(size_);
        if (!device_)
            std::memcpy(bytes.data(), address_, size_);
        else
            gaudi::expect(gaudi::expect(engine().read(bytes, where())).wait());
        return bytes;
    }
    void expect(std::uint64_t seed, const std::string& what) {
        const auto found = read();
        for (std::size_t i = 0; i < size_; ++i)
            if (found[i] != pattern(seed, i))
                throw failure(fmt::format("{}: byte {} of {} is {}, expected {}", what, i, size_,
                                          static_cast<int>(found[i]), static_cast<int>(pattern(seed, i))));
    }

private:
    [[nodiscard]] gaudi::device_address where() const {
        return gaudi::device_address(reinterpret_cast<std::uint64_t>(address_));
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
    gaudi::device_buffer buffer_;
    ucp_mem_h handle_ = nullptr;
    void* address_ = nullptr;
};

// One worker, one endpoint to the peer's, and a socket beside them for what UCX is not asked to carry.
class peer {
public:
    peer(ucp_context_h context, int socket, bool active, bool sleeps, bool handles_errors)
        : active_(active), socket_(socket), sleeps_(sleeps) {
        ucp_worker_params_t params{};
        params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
        params.thread_mode = UCS_THREAD_MODE_SINGLE;
        check(ucp_worker_create(context, &params, &worker_), "ucp_worker_create");
        if (sleeps)
            check(ucp_worker_get_efd(worker_, &event_), "ucp_worker_get_efd");
        ucp_am_handler_param_t handler{};
        handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                             UCP_AM_HANDLER_PARAM_FIELD_ARG | UCP_AM_HANDLER_PARAM_FIELD_FLAGS;
        handler.id = 1;
        handler.cb = [](void* self, const void*, size_t, void* data, size_t length,
                        const ucp_am_recv_param_t*) {
            static_cast<peer*>(self)->message_ = {data, length};
            return UCS_INPROGRESS;
        };
        handler.arg = this;
        handler.flags = UCP_AM_FLAG_PERSISTENT_DATA;
        check(ucp_worker_set_am_recv_handler(worker_, &handler), "ucp_worker_set_am_recv_handler");

        ucp_address_t* mine = nullptr;
        std::size_t length = 0;
        check(ucp_worker_get_address(worker_, &mine, &length), "ucp_worker_get_address");
        tell(std::vector<char>(reinterpret_cast<char*>(mine), reinterpret_cast<char*>(mine) + length));
        ucp_worker_release_address(worker_, mine);
        const auto theirs = hear();
        ucp_ep_params_t to{};
        to.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
        to.address = reinterpret_cast<const ucp_address_t*>(theirs.data());
        to.err_mode = handles_errors ? UCP_ERR_HANDLING_MODE_PEER : UCP_ERR_HANDLING_MODE_NONE;
        check(ucp_ep_create(worker_, &to, &endpoint_), "ucp_ep_create");
    }
    ~peer() { ucp_worker_destroy(worker_); } // an endpoint that was not closed in order goes with it
    peer(const peer&) = delete;
    peer& operator=(const peer&) = delete;

    [[nodiscard]] bool active() const { return active_; }
    [[nodiscard]] ucp_ep_h endpoint() const { return endpoint_; }
    [[nodiscard]] ucp_worker_h worker() const { return worker_; }

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

    // Sends and receives a note over the socket; UCX goes on meanwhile.
    void tell(const std::vector<char>& note) {
        const auto size = static_cast<std::uint32_t>(note.size());
        send_all(&size, sizeof(size));
        send_all(note.data(), note.size());
    }
    std::vector<char> hear() {
        std::uint32_t size = 0;
        receive_all(&size, sizeof(size));
        std::vector<char> note(size);
        receive_all(note.data(), size);
        return note;
    }
    // Both come here before either goes on.
    void meet() {
        tell({'m'});
        (void)hear();
    }

    // Nothing is under way any more, on either side: a queue pair that goes earlier leaves its peer waiting.
    void end() {
        ucp_request_param_t none{};
        done(ucp_worker_flush_nbx(worker_, &none), "ucp_worker_flush_nbx");
        meet();
        done(ucp_ep_close_nbx(std::exchange(endpoint_, nullptr), &none), "ucp_ep_close_nbx");
        meet();
    }

    struct message {
        void* data = nullptr;
        std::size_t length = 0;
    };
    message next_message() {
        while (message_.data == nullptr)
            turn();
        return std::exchange(message_, {});
    }

private:
    // Some progress; without any, sleep until there may be some.
    void turn() {
        char byte = 0;
        if (++turns_ % 1024 == 0 && ::recv(socket_, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0)
            throw failure("the peer is gone"); // what UCX still waits for never comes
        if (ucp_worker_progress(worker_) != 0 || !sleeps_)
            return;
        if (const auto status = ucp_worker_arm(worker_); status == UCS_ERR_BUSY)
            return;
        else
            check(status, "ucp_worker_arm");
        pollfd both[] = {{event_, POLLIN, 0}, {socket_, POLLIN, 0}};
        if (::poll(both, 2, 20000) == 0)
            throw failure("asleep for 20 s, and nothing happened");
    }
    void send_all(const void* bytes, std::size_t count) {
        const auto* at = static_cast<const char*>(bytes);
        for (ssize_t sent = 0; count > 0; at += sent, count -= static_cast<std::size_t>(sent))
            if ((sent = ::send(socket_, at, count, MSG_NOSIGNAL)) <= 0)
                throw failure("the peer is gone");
    }
    void receive_all(void* bytes, std::size_t count) {
        auto* at = static_cast<char*>(bytes);
        while (count > 0) {
            const auto got = ::recv(socket_, at, count, MSG_DONTWAIT);
            if (got > 0) {
                at += got;
                count -= static_cast<std::size_t>(got);
            } else if (got == 0)
                throw failure("the peer is gone");
            else if (worker_ != nullptr)
                turn();
        }
    }

    bool active_;
    int socket_;
    bool sleeps_;
    ucp_worker_h worker_ = nullptr;
    ucp_ep_h endpoint_ = nullptr;
    int event_ = -1;
    unsigned turns_ = 0;
    message message_;
};

ucp_request_param_t with(const memory& used) {
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_MEMH;
    param.memh = used.handle();
    return param;
}

class campaign {
public:
    campaign(const options& what, ucp_context_h context, int socket, bool active)
        : options_(what), context_(context), peer_(context, socket, active, what.sleep, what.die != 0) {}

    std::uint64_t run() {
        for (const auto& operation : options_.operations)
            for (const auto size : options_.sizes)
                for (unsigned round = 0; round < options_.rounds; ++round) {
                    ++seed_;
                    const auto what = fmt::format("{} of {} bytes, {} to {}, round {}", operation, size,
                                                  options_.here, options_.there, round);
                    memory mine(context_, peer_.active() ? options_.here : options_.there, size,
                                options_.library);
                    if (!peer_.active() && ++operations_ == options_.die)
                        ::raise(SIGKILL);
                    one(operation, mine, size, what);
                    bytes_ += size;
                    peer_.meet();
                }
        peer_.end();
        return bytes_;
    }

private:
    void one(const std::string& operation, memory& mine, std::size_t size, const std::string& what) {
        if (operation == "put" || operation == "get" || operation == "fadd")
            one_sided(operation, mine, size, what);
        else if (operation == "tag")
            tagged(mine, size, what);
        else if (operation == "stream")
            streamed(mine, size, what);
        else if (operation == "am")
            active_message(mine, size, what);
        else
            throw failure("no such operation: " + operation);
    }

    // The passive side's memory is reached with its key; who ends up with the data checks it.
    void one_sided(const std::string& operation, memory& mine, std::size_t size, const std::string& what) {
        const bool from_here = operation == "put";
        const bool gives = from_here == peer_.active();
        mine.fill(made(gives ? seed_ : ~seed_, size));
        if (!peer_.active()) {
            void* key = nullptr;
            std::size_t length = 0;
            check(ucp_rkey_pack(context_, mine.handle(), &key, &length), "ucp_rkey_pack");
            const auto address = reinterpret_cast<std::uint64_t>(mine.address());
            std::vector<char> note(sizeof(address) + length);
            std::memcpy(note.data(), &address, sizeof(address));
            std::memcpy(note.data() + sizeof(address), key, length);
            ucp_rkey_buffer_release(key);
            peer_.tell(note);
            (void)peer_.hear(); // it is done
            if (from_here)
                mine.expect(seed_, what);
            else if (operation == "fadd")
                expect_sum(mine, what);
            return;
        }
        const auto note = peer_.hear();
        std::uint64_t remote = 0;
        std::memcpy(&remote, note.data(), sizeof(remote));
        ucp_rkey_h key = nullptr;
        check(ucp_ep_rkey_unpack(peer_.endpoint(), note.data() + sizeof(remote), &key), "ucp_ep_rkey_unpack");
        auto param = with(mine);
        ucp_request_param_t none{};
        if (operation == "fadd")
            fetch_add(remote, key, what);
        else if (from_here)
            peer_.done(ucp_put_nbx(peer_.endpoint(), mine.address(), size, remote, key, &param),
                       "ucp_put_nbx");
        else
            peer_.done(ucp_get_nbx(peer_.endpoint(), mine.address(), size, remote, key, &param),
                       "ucp_get_nbx");
        peer_.done(ucp_ep_flush_nbx(peer_.endpoint(), &none), "ucp_ep_flush_nbx");
        ucp_rkey_destroy(key);
        if (operation == "get")
            mine.expect(seed_, what);
        peer_.tell({'d'});
    }

    std::uint64_t first_word() const {
        std::uint64_t word = 0;
        const auto bytes = made(seed_, sizeof(word));
        std::memcpy(&word, bytes.data(), sizeof(word));
        return word;
    }
    void fetch_add(std::uint64_t remote, ucp_rkey_h key, const std::string& what) {
        std::uint64_t added = 1000, found = 0;
        ucp_request_param_t param{};
        param.op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_REPLY_BUFFER;
        param.datatype = ucp_dt_make_contig(sizeof(added));
        param.reply_buffer = &found;
        peer_.done(ucp_atomic_op_nbx(peer_.endpoint(), UCP_ATOMIC_OP_ADD, &added, 1, remote, key, &param),
                   "ucp_atomic_op_nbx");
        if (found != first_word())
            throw failure(fmt::format("{}: fetched {:#x}, expected {:#x}", what, found, first_word()));
    }
    void expect_sum(memory& mine, const std::string& what) {
        std::uint64_t now = 0;
        std::memcpy(&now, mine.read().data(), sizeof(now));
        if (now != first_word() + 1000)
            throw failure(
                fmt::format("{}: {:#x} after the addition, expected {:#x}", what, now, first_word() + 1000));
    }

    void tagged(memory& mine, std::size_t size, const std::string& what) {
        auto param = with(mine);
        if (peer_.active()) {
            mine.fill(made(seed_, size));
            peer_.done(ucp_tag_send_nbx(peer_.endpoint(), mine.address(), size, seed_, &param),
                       "ucp_tag_send_nbx");
            return;
        }
        mine.fill(made(~seed_, size));
        peer_.done(ucp_tag_recv_nbx(peer_.worker(), mine.address(), size, seed_, ~0ULL, &param),
                   "ucp_tag_recv_nbx");
        mine.expect(seed_, what);
    }

    void streamed(memory& mine, std::size_t size, const std::string& what) {
        auto param = with(mine);
        if (peer_.active()) {
            mine.fill(made(seed_, size));
            peer_.done(ucp_stream_send_nbx(peer_.endpoint(), mine.address(), size, &param),
                       "ucp_stream_send_nbx");
            return;
        }
        mine.fill(made(~seed_, size));
        param.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
        param.flags = UCP_STREAM_RECV_FLAG_WAITALL;
        std::size_t got = 0;
        peer_.done(ucp_stream_recv_nbx(peer_.endpoint(), mine.address(), size, &got, &param),
                   "ucp_stream_recv_nbx");
        mine.expect(seed_, what);
    }

    void active_message(memory& mine, std::size_t size, const std::string& what) {
        auto param = with(mine);
        if (peer_.active()) {
            mine.fill(made(seed_, size));
            peer_.done(ucp_am_send_nbx(peer_.endpoint(), 1, nullptr, 0, mine.address(), size, &param),
                       "ucp_am_send_nbx");
            return;
        }
        mine.fill(made(~seed_, size));
        const auto message = peer_.next_message();
        if (message.length != size)
            throw failure(fmt::format("{}: {} bytes came", what, message.length));
        peer_.done(ucp_am_recv_data_nbx(peer_.worker(), message.data, mine.address(), size, &param),
                   "ucp_am_recv_data_nbx");
        mine.expect(seed_, what);
    }

    const options& options_;
    ucp_context_h context_;
    peer peer_;
    std::uint64_t seed_ = 0x6a09e667f3bcc908;
    std::uint64_t bytes_ = 0;
    unsigned operations_ = 0;
};

// One side: a context, and a worker for each thread.
int side(const options& what, const std::vector<int>& sockets, bool active) {
    const char* name = active ? "active" : "passive";
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
    params.features = UCP_FEATURE_TAG | UCP_FEATURE_RMA | UCP_FEATURE_STREAM | UCP_FEATURE_AM |
                      UCP_FEATURE_AMO64 | (what.sleep ? UCP_FEATURE_WAKEUP : 0);
    params.mt_workers_shared = what.threads > 1;
    ucp_config_t* config = nullptr;
    ucp_context_h context = nullptr;
    std::atomic<int> failures{0};
    std::atomic<std::uint64_t> bytes{0};
    try {
        check(ucp_config_read(nullptr, nullptr, &config), "ucp_config_read");
        check(ucp_init(&params, config, &context), "ucp_init");
        ucp_config_release(config);
        std::vector<std::thread> threads;
        for (const int socket : sockets)
            threads.emplace_back([&, socket] {
                try {
                    bytes += campaign(what, context, socket, active).run();
                } catch (const std::exception& error) {
                    fmt::print(stderr, "{}: {}\n", name, error.what());
                    ::shutdown(socket, SHUT_RDWR);
                    ++failures;
                }
            });
        for (auto& thread : threads)
            thread.join();
        ucp_cleanup(context);
    } catch (const std::exception& error) {
        fmt::print(stderr, "{}: {}\n", name, error.what());
        ++failures;
    }
    if (failures == 0)
        fmt::print("{}: {} bytes, all right\n", name, bytes.load());
    return failures == 0 ? 0 : 1;
}

// HOST:PORT of another network namespace, or this one's own.
int tcp(const std::string& where, bool listening) {
    const auto colon = where.find(':');
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(where.substr(colon + 1))));
    ::inet_pton(AF_INET, where.substr(0, colon).c_str(), &address.sin_addr);
    const auto* generic = reinterpret_cast<const sockaddr*>(&address);
    const int made = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int yes = 1;
    ::setsockopt(made, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    if (!listening) {
        for (int tries = 0; ::connect(made, generic, sizeof(address)) != 0; ++tries) {
            if (tries == 100)
                throw failure("nobody listens at " + where);
            ::usleep(100000);
        }
        return made;
    }
    if (::bind(made, generic, sizeof(address)) != 0 || ::listen(made, 1) != 0)
        throw failure("cannot listen at " + where);
    const int accepted = ::accept4(made, nullptr, nullptr, SOCK_CLOEXEC);
    ::close(made);
    return accepted;
}

} // namespace

int main(int argc, char** argv) try {
    options what;
    CLI::App app("two processes that move memory through UCX and check every byte");
    app.add_option("--operations", what.operations)->delimiter(',');
    app.add_option("--sizes", what.sizes)->delimiter(',')->transform(CLI::AsSizeValue(false));
    app.add_option("--here", what.here)->check(CLI::IsMember({"host", "gaudi"}));
    app.add_option("--there", what.there)->check(CLI::IsMember({"host", "gaudi"}));
    app.add_flag("--library", what.library, "device memory from libgaudi-direct, not from UCX");
    app.add_flag("--sleep", what.sleep);
    app.add_option("--threads", what.threads);
    app.add_option("--rounds", what.rounds);
    app.add_option("--die", what.die, "the passive side is killed in its n-th operation; errors are handled");
    app.add_option("--listen", what.listen, "HOST:PORT; this process is the passive side");
    app.add_option("--connect", what.connect, "HOST:PORT; this process is the active side");
    CLI11_PARSE(app, argc, argv);

    if (!what.listen.empty() || !what.connect.empty()) {
        const bool active = what.listen.empty();
        return side(what, {tcp(active ? what.connect : what.listen, !active)}, active);
    }
    std::vector<int> mine, theirs;
    for (unsigned i = 0; i < what.threads; ++i) {
        int pair[2];
        if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
            throw failure("socketpair");
        mine.push_back(pair[0]);
        theirs.push_back(pair[1]);
    }
    const auto child = ::fork(); // before either has touched UCX
    if (child == 0)
        ::prctl(PR_SET_PDEATHSIG, SIGKILL); // a parent that is ended for its slowness leaves nobody behind
    for (const int other : child == 0 ? mine : theirs)
        ::close(other);
    const int status = side(what, child == 0 ? theirs : mine, child != 0);
    if (child == 0)
        return status;
    int other = 0;
    ::waitpid(child, &other, 0);
    if (!WIFEXITED(other))
        fmt::print(stderr, "passive: ended by signal {}\n", WTERMSIG(other));
    return status != 0 || other != 0 ? 1 : 0;
} catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
}
