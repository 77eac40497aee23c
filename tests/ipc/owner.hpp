// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/gaudi.hpp>

#include "tests/support/child.hpp"
#include "tests/support/device_bytes.hpp"
#include "tests/support/own_process.hpp"
#include "tests/support/pattern.hpp"
#include "tests/support/soon_true.hpp"

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <seccomp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace testing_support {

using namespace gaudi;
using std::chrono::milliseconds;

constexpr std::size_t mebibyte = 1 << 20;

// The name of a path within the name of a test.
inline std::string word_for(const ::testing::TestParamInfo<copy_path>& each) {
    constexpr const char* words[] = {"cpu", "engine", "context", "import", "nic", "staged", "proxy"};
    return words[static_cast<std::size_t>(each.param)];
}

inline std::uint64_t resident_bytes() {
    std::ifstream file("/proc/self/statm");
    std::uint64_t total = 0, resident = 0;
    file >> total >> resident;
    return resident * 4096;
}

// Opens every descriptor that this process may have.
class all_descriptors {
public:
    all_descriptors() {
        ::getrlimit(RLIMIT_NOFILE, &before_);
        const rlimit few{256, before_.rlim_max};
        ::setrlimit(RLIMIT_NOFILE, &few);
        for (int fd = 0; (fd = ::dup(0)) >= 0;)
            taken_.push_back(fd);
    }
    ~all_descriptors() {
        for (const int each : taken_)
            ::close(each);
        ::setrlimit(RLIMIT_NOFILE, &before_);
    }
    all_descriptors(const all_descriptors&) = delete;
    all_descriptors& operator=(const all_descriptors&) = delete;

private:
    rlimit before_{};
    std::vector<int> taken_;
};

// Makes a system call fail from now on, in this thread and in threads that it starts.
inline bool forbid(int call, int reason) {
    auto* const filter = ::seccomp_init(SCMP_ACT_ALLOW);
    const bool loaded =
        ::seccomp_rule_add(filter, SCMP_ACT_ERRNO(static_cast<std::uint32_t>(reason)), call, 0) == 0 &&
        ::seccomp_load(filter) == 0;
    ::seccomp_release(filter);
    return loaded;
}

// Another process that owns device memory and executes the commands of the test.
class owner {
public:
    // `index`: the device that it opens.
    explicit owner(unsigned index = 0, const ipc_settings& settings = {}) {
        int ends[2];
        if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
            std::abort();
        ours_ = ends[0];
        process_ = std::make_unique<child>([&] {
            ::close(ends[0]);
            return serve(ends[1], index, settings);
        });
        ::close(ends[1]);
    }
    ~owner() {
        ::close(ours_);
        (void)process_->wait();
    }
    owner(const owner&) = delete;
    owner& operator=(const owner&) = delete;

    // Allocates, fills and shares a buffer; buffers are numbered from 0.
    memory_handle share(std::uint64_t size, unsigned seed) { return ask({'s', size, seed}).handle; }
    bool holds(unsigned buffer, unsigned seed) { return ask({'h', buffer, seed}).value != 0; }
    void fill(unsigned buffer, unsigned seed) { ask({'f', buffer, seed}); }
    void free(unsigned buffer) { ask({'d', buffer, 0}); }
    // Returns an errc + 1, or 0.
    std::uint64_t free_unless_leased(unsigned buffer) { return ask({'u', buffer, 0}).value; }
    std::uint64_t free_when_unleased(unsigned buffer, unsigned ms) { return ask({'U', buffer, ms}).value; }
    // The kernel refuses to send the owner's descriptors from now on. Call it before sharing.
    bool cannot_pass_descriptors() { return ask({'x', 0, 0}).value != 0; }
    std::uint64_t revoke(unsigned buffer) { return ask({'r', buffer, 0}).value; }
    std::uint64_t leases(unsigned buffer) { return ask({'l', buffer, 0}).value; }
    std::uint64_t wait_for_leases(unsigned buffer, unsigned ms) { return ask({'w', buffer, ms}).value; }
    memory_handle share_again(unsigned buffer) { return ask({'a', buffer, 0}).handle; }
    // The buffer without its first and last `skip` bytes.
    memory_handle share_middle(unsigned buffer, unsigned skip) { return ask({'p', buffer, skip}).handle; }
    // Frees all buffers and closes the device.
    void close() { ask({'C', 0, 0}); }
    // Closes the device and opens it again at once. Returns its free memory, or 0 if it cannot be opened.
    std::uint64_t open_again() { return ask({'C', 1, 0}).value; }
    std::uint64_t descriptors() { return ask({'o', 0, 0}).value; }
    std::uint64_t mappings() { return ask({'m', 0, 0}).value; }
    std::uint64_t resident() { return ask({'R', 0, 0}).value; }
    // True: uses up all descriptors of the owner. False: frees them.
    void run_out_of_descriptors(bool out) { ask({'n', out ? 1U : 0U, 0}); }
    // The owner reads the buffer with this many copies in flight.
    bool copies(unsigned buffer, unsigned count) { return ask({'c', buffer, count}).value != 0; }
    // The child survives a kill of the owner: the test kills it.
    pid_t fork_a_child() { return static_cast<pid_t>(ask({'k', 0, 0}).value); }
    child& process() { return *process_; }

    struct answer {
        std::uint64_t value = 0;
        memory_handle handle;
    };
    struct order {
        char what;
        std::uint64_t first, second;
    };
    answer ask(const order& wanted) {
        answer got;
        if (::send(ours_, &wanted, sizeof(wanted), MSG_NOSIGNAL) != sizeof(wanted) ||
            ::recv(ours_, &got, sizeof(got), 0) != sizeof(got))
            ADD_FAILURE() << "the owner does not answer '" << wanted.what << "'";
        return got;
    }

private:
    static std::uint64_t code_of(const result<void>& done) {
        return done ? 0 : static_cast<std::uint64_t>(done.error().code()) + 1;
    }

    static int serve(int socket, unsigned index, const ipc_settings& settings) {
        set_ipc(settings);
        std::shared_ptr<device> opened_device;
        const bool opened = soon_true([&] { // the driver may still clean it after its last user
            auto attempt = open_device(by_index{index});
            if (attempt)
                opened_device = *attempt;
            return attempt || attempt.error().kind() != error_kind::busy;
        });
        if (!opened || !opened_device)
            return 1;
        std::vector<device_buffer> buffers;
        std::optional<all_descriptors> taken;
        for (order wanted; ::recv(socket, &wanted, sizeof(wanted), 0) == sizeof(wanted);) {
            answer said;
            auto* const buffer = wanted.first < buffers.size() ? &buffers[wanted.first] : nullptr;
            switch (wanted.what) {
            case 's': {
                buffers.push_back(expect(opened_device->heap().allocate(wanted.first)));
                const auto bytes = pattern(wanted.first, static_cast<unsigned>(wanted.second));
                write_bytes(*opened_device, buffers.back().address(), bytes);
                said.handle = expect(gaudi::share(buffers.back()));
                break;
            }
            case 'a':
                said.handle = expect(gaudi::share(*buffer));
                break;
            case 'f': {
                const auto bytes = pattern(buffer->size(), static_cast<unsigned>(wanted.second));
                write_bytes(*opened_device, buffer->address(), bytes);
                break;
            }
            case 'h': {
                std::vector<std::byte> bytes(buffer->size());
                read_bytes(*opened_device, bytes, buffer->address());
                said.value = bytes == pattern(bytes.size(), static_cast<unsigned>(wanted.second)) ? 1 : 0;
                break;
            }
            case 'd':
                *buffer = {};
                break;
            case 'C':
                buffers.clear();
                opened_device.reset();
                if (wanted.first == 0)
                    break;
                if (auto again = open_device(by_index{index})) {
                    opened_device = *again;
                    said.value = opened_device->info().memory_free;
                }
                break;
            case 'u':
                said.value = code_of(free_shared(*buffer, if_leased::refuse));
                break;
            case 'U':
                said.value = code_of(free_shared(*buffer, if_leased::wait, milliseconds(wanted.second)));
                break;
            case 'x':
                said.value = forbid(SCMP_SYS(sendmsg), ETOOMANYREFS) ? 1 : 0;
                break;
            case 'r':
                said.value = code_of(revoke_leases(buffer->address()));
                break;
            case 'l':
                said.value = leases_of(buffer->address()).size();
                break;
            case 'p':
                said.handle = expect(
                    gaudi::share(buffer->address() + wanted.second, buffer->size() - 2 * wanted.second));
                break;
            case 'w':
                said.value = code_of(gaudi::wait_for_leases(buffer->address(), milliseconds(wanted.second)));
                break;
            case 'o':
                said.value = open_descriptors();
                break;
            case 'm':
                said.value = mapped_regions();
                break;
            case 'R':
                said.value = resident_bytes();
                break;
            case 'n':
                taken.reset();
                if (wanted.first != 0)
                    taken.emplace();
                break;
            case 'c': {
                std::vector<std::vector<std::byte>> targets(wanted.second, std::vector<std::byte>(4096));
                std::vector<copy_ticket> tickets;
                auto engine = expect(opened_device->copies());
                for (auto& each : targets)
                    tickets.push_back(expect(engine.read(each, buffer->address())));
                said.value = 1;
                for (auto& each : tickets)
                    said.value &= each.wait() ? 1U : 0U;
                break;
            }
            case 'k':
                said.value = static_cast<std::uint64_t>(::fork());
                if (said.value == 0) {
                    ::pause();
                    ::_exit(0);
                }
                break;
            default:
                break;
            }
            if (::send(socket, &said, sizeof(said), MSG_NOSIGNAL) != sizeof(said))
                break;
        }
        buffers.clear();
        stop_ipc();
        return 0;
    }

    int ours_ = -1;
    std::unique_ptr<child> process_;
};

// The local end of a test's copies: host memory, or device memory where the path connects two devices.
class destination {
public:
    // `of`: the device; nullptr: host memory.
    destination(std::shared_ptr<device> of, std::size_t size) : host_(size), device_(std::move(of)) {
        if (device_)
            buffer_ = expect(device_->heap().allocate(size));
    }
    destination(bool on_device, std::size_t size)
        : destination(on_device ? expect(open_device(by_index{1})) : nullptr, size) {}
    destination(copy_path path, std::size_t size)
        : destination(path == copy_path::peer_dmabuf || path == copy_path::staged, size) {}

    result<copy_ticket> read(imported_buffer& from) {
        return device_ ? from.read(buffer_.address(), 0, host_.size()) : from.read(host_);
    }
    result<copy_ticket> write(imported_buffer& to, std::uint64_t offset = 0) {
        return device_ ? to.write(offset, buffer_.address(), host_.size()) : to.write(offset, host_);
    }
    void fill(std::vector<std::byte> with) {
        host_ = std::move(with);
        if (device_)
            write_bytes(*device_, buffer_.address(), host_);
    }
    const std::vector<std::byte>& bytes() {
        if (device_)
            read_bytes(*device_, host_, buffer_.address());
        return host_;
    }
    [[nodiscard]] place where() { return device_ ? place(buffer_) : place(host_); }

private:
    std::vector<std::byte> host_;
    std::shared_ptr<device> device_;
    device_buffer buffer_;
};

// Ends what the library keeps for other processes. `Where`: the fixture that has the devices.
template <typename Where>
class ipc_fixture : public Where {
protected:
    void TearDown() override {
        stop_ipc();
        set_ipc({});
        Where::TearDown();
    }
};

} // namespace testing_support
