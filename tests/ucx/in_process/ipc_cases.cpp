// SPDX-License-Identifier: BSD-3-Clause
// gaudi_ipc, call by call, with memory of another process. Runs in the lab, under either UCX. The other
// process is this program again, as the "test" other.DISABLED_process, which executes orders from a socket.
#include "tests/support/soon_true.hpp"
#include "tests/ucx/in_process/uct_case.hpp"

#include <gaudi/device.hpp>
#include <gaudi/ipc.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <sys/socket.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace {

using namespace testing_ucx;

constexpr std::size_t size = 1 << 20;

struct order {
    char what;
    unsigned seed;
};
struct owner_info {
    std::uint64_t address = 0, value = 0;
    std::array<std::byte, 512> key{};
    std::array<std::byte, 128> machine{}, process{};
};

// Reads device memory with the engine: the CPU cannot access it.
std::vector<std::byte> seen_at(std::uint64_t address) {
    auto engine = engine_at(address);
    std::vector<std::byte> bytes(size);
    gaudi::expect(gaudi::expect(engine.read(bytes, gaudi::device_address(address))).wait());
    return bytes;
}
void fill_at(std::uint64_t address, unsigned seed) {
    auto engine = engine_at(address);
    const auto bytes = numbered(size, seed);
    gaudi::expect(gaudi::expect(engine.write(gaudi::device_address(address), bytes)).wait());
}

// ---- the other process ----

class shared_buffer {
public:
    shared_buffer() { allocate(1); }
    ~shared_buffer() { free(); }

    void allocate(unsigned seed) {
        memory_.emplace(copy_, size);
        fill_at(memory_->number(), seed);
        add_registration();
    }
    void free() {
        while (!memhs_.empty())
            drop_registration();
        memory_.reset();
    }
    void add_registration() {
        uct_md_mem_reg_params_t params{};
        params.field_mask = UCT_MD_MEM_REG_FIELD_FLAGS;
        params.flags = UCT_MD_MEM_ACCESS_ALL;
        check(uct_md_mem_reg_v2(ipc_.md, memory_->memory.address, size, &params, &memhs_.emplace_back()),
              "mem_reg");
    }
    void drop_registration() {
        check(uct_md_mem_dereg(ipc_.md, memhs_.back()), "mem_dereg");
        memhs_.pop_back();
    }
    // Revokes keys that were packed with the invalidate flag. Returns the number of completion callbacks.
    std::uint64_t invalidate() {
        finished done;
        uct_md_mem_dereg_params_t params{};
        params.field_mask =
            UCT_MD_MEM_DEREG_FIELD_MEMH | UCT_MD_MEM_DEREG_FIELD_FLAGS | UCT_MD_MEM_DEREG_FIELD_COMPLETION;
        params.memh = memhs_.back();
        memhs_.pop_back();
        params.flags = UCT_MD_MEM_DEREG_FLAG_INVALIDATE;
        params.comp = &done.comp;
        check(uct_md_mem_dereg_v2(ipc_.md, &params), "mem_dereg");
        return static_cast<std::uint64_t>(done.times);
    }
    void pack(owner_info& into, bool to_be_taken_back) {
        uct_md_mkey_pack_params_t params{};
        params.field_mask = UCT_MD_MKEY_PACK_FIELD_FLAGS;
        params.flags = to_be_taken_back ? UCT_MD_MKEY_PACK_FLAG_INVALIDATE_RMA : 0;
        check(uct_md_mkey_pack_v2(ipc_.md, memhs_.back(), memory_->memory.address, size, &params,
                                  into.key.data()),
              "mkey_pack");
        into.address = memory_->number();
        check(uct_iface_get_address(iface_, reinterpret_cast<uct_iface_addr_t*>(into.process.data())),
              "iface_get_address");
        check(uct_iface_get_device_address(iface_, reinterpret_cast<uct_device_addr_t*>(into.machine.data())),
              "iface_get_device_address");
    }
    // A key of gaudi_copy, which is valid only inside one process.
    void pack_for_copies(owner_info& into) {
        const auto key = key_of(copy_, memory_->memory.memh);
        std::memcpy(into.key.data(), &key, sizeof(key));
        into.address = memory_->number();
    }
    [[nodiscard]] bool holds(unsigned seed) const {
        return seen_at(memory_->number()) == numbered(size, seed);
    }

    void close() { uct_iface_close(iface_); }

private:
    memory_domain copy_{"gaudi_copy", "gaudi_copy"}, ipc_{"gaudi_ipc", "gaudi_ipc"};
    worker worker_;
    uct_iface_h iface_ = testing_ucx::open_interface(ipc_, worker_, "gaudi_ipc", "gaudi_ipc");
    std::optional<allocated> memory_;
    std::vector<uct_mem_h> memhs_;
};

TEST(other, DISABLED_process) {
    const int socket = std::atoi(std::getenv("GAUDI_TEST_SOCKET"));
    shared_buffer memory;
    for (order wanted{}; ::recv(socket, &wanted, sizeof(wanted), 0) == sizeof(wanted);) {
        owner_info said;
        switch (wanted.what) {
        case 'k':
        case 'K':
            memory.pack(said, wanted.what == 'K');
            break;
        case 'c':
            memory.pack_for_copies(said);
            break;
        case 'h':
            said.value = memory.holds(wanted.seed) ? 1 : 0;
            break;
        case 'f':
            memory.free();
            memory.allocate(wanted.seed);
            break;
        case '+':
            memory.add_registration();
            break;
        case '-':
            memory.drop_registration();
            break;
        case 'i':
            said.value = memory.invalidate();
            break;
        default:
            break;
        }
        ASSERT_EQ(::send(socket, &said, sizeof(said), MSG_NOSIGNAL), static_cast<ssize_t>(sizeof(said)));
    }
    memory.free();
    memory.close();
}

class other_process {
public:
    other_process() {
        int ends[2];
        check(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0 ? UCS_OK : UCS_ERR_IO_ERROR, "socketpair");
        socket_ = ends[0];
        process_ = ::fork();
        if (process_ == 0) {
            ::close(ends[0]);
            ::setenv("GAUDI_TEST_SOCKET", std::to_string(ends[1]).c_str(), 1);
            ::execl("/proc/self/exe", "uct_cases", "--gtest_filter=other.DISABLED_process",
                    "--gtest_also_run_disabled_tests", "--gtest_brief=1", nullptr);
            ::_exit(127);
        }
        ::close(ends[1]);
    }
    ~other_process() { end(0); }
    other_process(const other_process&) = delete;
    other_process& operator=(const other_process&) = delete;

    owner_info ask(char what, unsigned seed = 0) const {
        const order wanted{what, seed};
        owner_info said;
        if (::send(socket_, &wanted, sizeof(wanted), MSG_NOSIGNAL) != sizeof(wanted) ||
            ::recv(socket_, &said, sizeof(said), 0) != sizeof(said))
            throw std::runtime_error("the other process does not answer");
        return said;
    }
    // All threads of the other process have stopped when this returns.
    void stop() const {
        ::kill(process_, SIGSTOP);
        siginfo_t stopped{};
        ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(process_), &stopped, WSTOPPED | WNOWAIT), 0);
    }
    void go_on() const { ::kill(process_, SIGCONT); }
    void end(int signal) {
        if (process_ <= 0)
            return;
        if (signal != 0)
            ::kill(process_, signal);
        ::close(socket_);
        int status = 0;
        ::waitpid(std::exchange(process_, 0), &status, 0);
        if (signal == 0 && status != 0)
            ADD_FAILURE() << "the other process failed: " << status;
    }

private:
    int socket_ = -1;
    pid_t process_ = 0;
};

// ---- this process ----

// Whether this process has a device open, its own or as a member of another process's context.
bool has_a_device_open() {
    const std::filesystem::directory_iterator all("/proc/self/fd");
    return std::any_of(begin(all), end(all), [](const auto& entry) {
        std::error_code closed_meanwhile;
        return std::filesystem::read_symlink(entry.path(), closed_meanwhile).string().find("/accel/accel") !=
               std::string::npos;
    });
}

// The broker's thread leaves the context of a process that has ended as soon as it sees the end: until then
// that device is busy.
struct no_device_open {
    no_device_open() {
        if (!testing_support::soon_true([] { return !has_a_device_open(); }))
            throw std::runtime_error("a device is still open from an earlier test");
    }
};

class uct_ipc : public ::testing::Test {
protected:
    uct_ipc() {
        iface = testing_ucx::open_interface(
            ipc, worker_, "gaudi_ipc", "gaudi_ipc",
            [](void* self, uct_ep_h failed, ucs_status_t status) {
                static_cast<uct_ipc*>(self)->failures.emplace_back(failed, status);
                return UCS_OK;
            },
            this);
        connect(other.ask('k'));
    }
    ~uct_ipc() override {
        uct_rkey_release(ipc.component, &rkey);
        uct_ep_destroy(ep);
        uct_iface_close(iface);
    }
    void connect(const owner_info& with) {
        theirs = with;
        uct_ep_params_t params{};
        params.field_mask =
            UCT_EP_PARAM_FIELD_IFACE | UCT_EP_PARAM_FIELD_IFACE_ADDR | UCT_EP_PARAM_FIELD_DEV_ADDR;
        params.iface = iface;
        params.iface_addr = reinterpret_cast<const uct_iface_addr_t*>(theirs.process.data());
        params.dev_addr = reinterpret_cast<const uct_device_addr_t*>(theirs.machine.data());
        check(uct_ep_create(&params, &ep), "uct_ep_create");
        check(uct_rkey_unpack(ipc.component, theirs.key.data(), &rkey), "uct_rkey_unpack");
    }
    int reaches(const void* machine, const void* process) {
        uct_iface_is_reachable_params_t params{};
        params.field_mask = 1 | 2; // both addresses
        params.device_addr = static_cast<const uct_device_addr_t*>(machine);
        params.iface_addr = static_cast<const uct_iface_addr_t*>(process);
        return uct_iface_is_reachable_v2(iface, &params);
    }
    ucs_status_t put(std::vector<std::byte>& from, finished& done) {
        uct_iov_t iov{from.data(), size, nullptr, 0, 1};
        return uct_ep_put_zcopy(ep, &iov, 1, theirs.address, rkey.rkey, &done.comp);
    }
    ucs_status_t move(bool writes, void* local, uct_rkey_t with) {
        finished done;
        uct_iov_t iov{local, size, nullptr, 0, 1};
        const auto begun = writes ? uct_ep_put_zcopy(ep, &iov, 1, theirs.address, with, &done.comp)
                                  : uct_ep_get_zcopy(ep, &iov, 1, theirs.address, with, &done.comp);
        if (begun != UCS_INPROGRESS)
            return begun;
        while (done.times == 0)
            uct_worker_progress(worker_.handle);
        return done.comp.status;
    }

    const no_device_open nothing_left;
    memory_domain copy{"gaudi_copy", "gaudi_copy"}, ipc{"gaudi_ipc", "gaudi_ipc"};
    worker worker_;
    const allocated mine{copy, size}; // opens this process's device before the other process opens one
    std::vector<std::pair<uct_ep_h, ucs_status_t>> failures;
    uct_iface_h iface = nullptr;
    uct_ep_h ep = nullptr;
    other_process other;
    owner_info theirs;
    uct_rkey_bundle_t rkey{};
};

TEST_F(uct_ipc, only_other_processes_of_this_host_are_reachable) {
    EXPECT_EQ(reaches(theirs.machine.data(), theirs.process.data()), 1);
    owner_info self;
    check(uct_iface_get_address(iface, reinterpret_cast<uct_iface_addr_t*>(self.process.data())), "address");
    check(uct_iface_get_device_address(iface, reinterpret_cast<uct_device_addr_t*>(self.machine.data())),
          "device address");
    EXPECT_EQ(reaches(self.machine.data(), self.process.data()), 0);
    auto elsewhere = theirs;
    elsewhere.machine[0] ^= std::byte{1};
    EXPECT_EQ(reaches(elsewhere.machine.data(), elsewhere.process.data()), 0);
    auto other_network = theirs;
    other_network.machine[8] ^= std::byte{1};
    EXPECT_EQ(reaches(other_network.machine.data(), other_network.process.data()), 0);
}

// Offsets in a device address: the user of the process, the number of other users that it serves, whether its
// devices copy, whether it passes DMA-BUFs, and the ids of those users.
constexpr std::size_t user_at = 12, allowed_at = 16, copies_at = 18, gives_at = 19, allow_at = 20;

TEST_F(uct_ipc, a_process_without_a_common_path_is_not_reachable) {
    EXPECT_EQ(theirs.machine[copies_at], std::byte{1});
    EXPECT_EQ(theirs.machine[gives_at], std::byte{1});
    auto without_engines = theirs;
    without_engines.machine[copies_at] = std::byte{0};
    EXPECT_EQ(reaches(without_engines.machine.data(), without_engines.process.data()), 1)
        << "by the NIC here";
    without_engines.machine[gives_at] = std::byte{0};
    EXPECT_EQ(reaches(without_engines.machine.data(), without_engines.process.data()), 0);
    auto miser = theirs;
    miser.machine[gives_at] = std::byte{0};
    EXPECT_EQ(reaches(miser.machine.data(), miser.process.data()), 1) << "it copies itself";
}

TEST_F(uct_ipc, users_that_do_not_serve_each_other_are_not_reachable) {
    const auto put = [](owner_info& place, std::size_t at, std::uint32_t value) {
        std::memcpy(place.machine.data() + at, &value, sizeof(value));
    };
    auto other_user = theirs;
    put(other_user, user_at, ::geteuid() + 1);
    EXPECT_EQ(reaches(other_user.machine.data(), other_user.process.data()), 0)
        << "it does not serve this user";
    other_user.machine[allowed_at] = std::byte{1};
    put(other_user, allow_at, ::geteuid());
    EXPECT_EQ(reaches(other_user.machine.data(), other_user.process.data()), 0)
        << "nor is it on the list here";
    const unsigned other_uid = ::geteuid() + 1;
    ::setenv("UCX_GAUDI_IPC_ALLOW", std::to_string(other_uid).c_str(), 1);
    {
        memory_domain open("gaudi_ipc", "gaudi_ipc");
        worker own;
        auto* with_list = testing_ucx::open_interface(open, own, "gaudi_ipc", "gaudi_ipc");
        std::swap(iface, with_list);
        EXPECT_EQ(reaches(other_user.machine.data(), other_user.process.data()), 1);
        put(other_user, allow_at, ::geteuid() + 2);
        EXPECT_EQ(reaches(other_user.machine.data(), other_user.process.data()), 0)
            << "it serves another user";
        std::swap(iface, with_list);
        uct_iface_close(with_list);
    }
    ::unsetenv("UCX_GAUDI_IPC_ALLOW");
    gaudi::set_ipc({});
}

TEST_F(uct_ipc, device_and_host_memory_in_both_directions) {
    fill_at(mine.number(), 2);
    ASSERT_EQ(move(true, mine.memory.address, rkey.rkey), UCS_OK);
    EXPECT_EQ(other.ask('h', 2).value, 1U);
    auto host = numbered(size, 3);
    ASSERT_EQ(move(false, host.data(), rkey.rkey), UCS_OK);
    EXPECT_EQ(host, numbered(size, 2));
    host = numbered(size, 4);
    ASSERT_EQ(move(true, host.data(), rkey.rkey), UCS_OK);
    ASSERT_EQ(move(false, mine.memory.address, rkey.rkey), UCS_OK);
    EXPECT_EQ(seen_at(mine.number()), numbered(size, 4));
    EXPECT_TRUE(failures.empty());
}

TEST_F(uct_ipc, a_flush_ends_after_all_before_it_and_a_fence_keeps_the_order) {
    auto first = numbered(size, 5), second = numbered(size, 6);
    finished one, two, all;
    const auto before = put(first, one);
    ASSERT_TRUE(before == UCS_OK || before == UCS_INPROGRESS) << ucs_status_string(before);
    ASSERT_EQ(uct_ep_fence(ep, 0), UCS_OK);
    const auto queued = put(second, two);
    ASSERT_TRUE(queued == UCS_OK || queued == UCS_INPROGRESS) << ucs_status_string(queued);
    if (before == UCS_INPROGRESS) {
        EXPECT_EQ(one.times, 0) << "only progress completes it";
        uct_worker_progress(worker_.handle);
        EXPECT_EQ(one.times, 1) << "it was over before the second began";
    }
    const auto flushing = uct_ep_flush(ep, 0, &all.comp);
    while (flushing == UCS_INPROGRESS && all.times == 0)
        uct_worker_progress(worker_.handle);
    EXPECT_EQ(other.ask('h', 6).value, 1U);
}

// How often a thread of this process has slept in the kernel.
std::uint64_t sleeps_of(pid_t thread) {
    constexpr std::string_view name = "voluntary_ctxt_switches:";
    std::ifstream file(fmt::format("/proc/self/task/{}/status", thread));
    for (std::string line; std::getline(file, line);)
        if (line.starts_with(name))
            return std::stoull(line.substr(name.size()));
    return 0;
}

// The owner copies on request, so a test can delay it.
struct gives_nothing {
    setting give{"UCX_GAUDI_IPC_GIVE", "nothing"};
};
class uct_ipc_on_request : gives_nothing, public uct_ipc {
protected:
    ~uct_ipc_on_request() override { gaudi::set_ipc({}); }
};
TEST_F(uct_ipc_on_request, copies_after_a_fence_wait_for_those_before_it) {
    auto first = numbered(size, 5), second = numbered(size, 6);
    ASSERT_EQ(move(true, first.data(), rkey.rkey), UCS_OK);
    finished one, two;
    other.stop();
    ASSERT_EQ(put(first, one), UCS_INPROGRESS);
    ASSERT_EQ(uct_ep_fence(ep, 0), UCS_OK);
    // The owner goes on once the second put waits: a wait sleeps again and again, a put that overtakes
    // returns and finds the first copy unfinished.
    constexpr unsigned many = 20;
    const auto sleeps = sleeps_of(::gettid());
    std::atomic<bool> checked = false;
    std::thread resumer([&, caller = ::gettid()] {
        EXPECT_TRUE(
            testing_support::soon_true([&] { return checked || sleeps_of(caller) >= sleeps + many; }));
        other.go_on();
    });
    const auto queued = put(second, two);
    EXPECT_TRUE(queued == UCS_OK || queued == UCS_INPROGRESS) << ucs_status_string(queued);
    uct_worker_progress(worker_.handle);
    EXPECT_EQ(one.times, 1) << "the second copy began before the first had completed";
    checked = true;
    resumer.join();
    while (queued == UCS_INPROGRESS && two.times == 0)
        uct_worker_progress(worker_.handle);
    EXPECT_EQ(other.ask('h', 6).value, 1U);
}

TEST_F(uct_ipc, a_key_for_copies_opens_nothing_in_another_process) {
    copier copies(copy);
    const auto foreign = other.ask('c');
    uct_rkey_bundle_t bundle{};
    ASSERT_EQ(uct_rkey_unpack(copy.component, foreign.key.data(), &bundle), UCS_OK);
    uint64_t word = 1;
    EXPECT_EQ(uct_ep_put_short(copies.ep, &word, 8, foreign.address, bundle.rkey), UCS_ERR_INVALID_PARAM);
    EXPECT_EQ(uct_ep_get_short(copies.ep, &word, 8, foreign.address, bundle.rkey), UCS_ERR_INVALID_PARAM);
    uct_rkey_release(copy.component, &bundle);
    uct_md_mem_attach_params_t params{};
    uct_mem_h memh = nullptr;
    EXPECT_EQ(uct_md_mem_attach(copy.md, foreign.key.data(), &params, &memh), UCS_ERR_UNREACHABLE);
    EXPECT_EQ(other.ask('h', 1).value, 1U) << "its memory is as it was";
}

TEST_F(uct_ipc, damaged_keys_are_refused_and_equal_ones_are_equal) {
    for (const std::size_t at : {0UL, 5UL, 40UL, 100UL, 127UL}) {
        auto damaged = theirs.key;
        damaged[at] ^= std::byte{0x10};
        uct_rkey_bundle_t unpacked{};
        EXPECT_EQ(uct_rkey_unpack(ipc.component, damaged.data(), &unpacked), UCS_ERR_INVALID_PARAM) << at;
    }
    uct_rkey_bundle_t same{}, apart{};
    check(uct_rkey_unpack(ipc.component, theirs.key.data(), &same), "uct_rkey_unpack");
    check(uct_rkey_unpack(ipc.component, other.ask('K').key.data(), &apart), "uct_rkey_unpack");
    const uct_rkey_compare_params_t none{};
    int result = 1;
    EXPECT_EQ(uct_rkey_compare(ipc.component, rkey.rkey, same.rkey, &none, &result), UCS_OK);
    EXPECT_EQ(result, 0);
    EXPECT_EQ(uct_rkey_compare(ipc.component, rkey.rkey, apart.rkey, &none, &result), UCS_OK);
    EXPECT_NE(result, 0);
    uct_rkey_release(ipc.component, &same);
    uct_rkey_release(ipc.component, &apart);
}

TEST_F(uct_ipc, a_key_dies_with_its_allocation) {
    auto host = numbered(size, 7);
    ASSERT_EQ(move(true, host.data(), rkey.rkey), UCS_OK);
    (void)other.ask('f', 8); // frees, and allocates again at the same address
    EXPECT_TRUE(UCS_STATUS_IS_ERR(move(true, host.data(), rkey.rkey)));
    EXPECT_TRUE(UCS_STATUS_IS_ERR(move(false, host.data(), rkey.rkey)));
    EXPECT_EQ(host, numbered(size, 7)) << "nothing of the later one was seen";
    EXPECT_EQ(other.ask('h', 8).value, 1U) << "nor changed";
}

TEST_F(uct_ipc, an_invalidated_key_opens_nothing_and_others_still_do) {
    other.ask('+'); // UCX invalidates one registration of two
    uct_rkey_bundle_t apart{}, shared{};
    check(uct_rkey_unpack(ipc.component, other.ask('K').key.data(), &apart), "uct_rkey_unpack");
    check(uct_rkey_unpack(ipc.component, other.ask('k').key.data(), &shared), "uct_rkey_unpack");
    auto host = numbered(size, 9);
    ASSERT_EQ(move(true, host.data(), apart.rkey), UCS_OK);
    EXPECT_EQ(other.ask('i').value, 1U) << "the completion was called once";
    EXPECT_TRUE(UCS_STATUS_IS_ERR(move(false, host.data(), apart.rkey)));
    EXPECT_EQ(move(false, host.data(), shared.rkey), UCS_OK) << "the other registration has that key too";
    EXPECT_EQ(move(false, host.data(), rkey.rkey), UCS_OK);
    uct_rkey_release(ipc.component, &apart);
    uct_rkey_release(ipc.component, &shared);
}

TEST_F(uct_ipc, a_key_ends_with_the_last_registration_though_the_memory_stays) {
    auto host = numbered(size, 9);
    ASSERT_EQ(move(true, host.data(), rkey.rkey), UCS_OK);
    other.ask('+');
    other.ask('k');
    other.ask('-');
    EXPECT_EQ(move(false, host.data(), rkey.rkey), UCS_OK) << "one registration is left";
    other.ask('-');
    auto written = numbered(size, 10);
    EXPECT_TRUE(UCS_STATUS_IS_ERR(move(true, written.data(), rkey.rkey))) << "by an import that was kept";
    uct_rkey_bundle_t late{};
    check(uct_rkey_unpack(ipc.component, theirs.key.data(), &late), "uct_rkey_unpack");
    EXPECT_TRUE(UCS_STATUS_IS_ERR(move(true, written.data(), late.rkey)))
        << "and by the same key, unpacked now";
    uct_rkey_release(ipc.component, &late);
    EXPECT_EQ(other.ask('h', 9).value, 1U) << "nothing was written";
    other.ask('+');
    uct_rkey_bundle_t again{};
    check(uct_rkey_unpack(ipc.component, other.ask('k').key.data(), &again), "uct_rkey_unpack");
    EXPECT_EQ(move(true, written.data(), again.rkey), UCS_OK);
    EXPECT_EQ(other.ask('h', 10).value, 1U);
    uct_rkey_release(ipc.component, &again);
}

TEST_F(uct_ipc, a_process_that_does_not_answer_is_an_error_in_time_and_forgiven) {
    constexpr auto answer_timeout = std::chrono::milliseconds(300);
    gaudi::ipc_settings hurried;
    hurried.answer_timeout = answer_timeout;
    gaudi::set_ipc(hurried);
    other.stop();
    auto host = numbered(size, 11);
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(move(false, host.data(), rkey.rkey), UCS_ERR_TIMED_OUT);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
    EXPECT_EQ(host, numbered(size, 11));
    other.go_on();
    gaudi::set_ipc({});
    gaudi::stop_ipc(); // the open connection keeps its short timeout
    ASSERT_EQ(other.ask('h', 1).value, 1U);
    EXPECT_EQ(move(false, host.data(), rkey.rkey), UCS_OK);
    EXPECT_EQ(host, numbered(size, 1));
    uct_worker_progress(worker_.handle);
    EXPECT_TRUE(failures.empty()) << "the endpoint is as good as before";
}

TEST_F(uct_ipc, a_setting_says_how_many_imports_are_kept) {
    const auto kept_with = [&](const char* limit) {
        const setting imports("UCX_GAUDI_IPC_IMPORTS", limit);
        const memory_domain limited("gaudi_ipc", "gaudi_ipc");
        auto host = numbered(size, 12);
        for (const char kind : {'k', 'K'}) { // two handles of the same memory
            uct_rkey_bundle_t once{};
            check(uct_rkey_unpack(ipc.component, other.ask(kind).key.data(), &once), "uct_rkey_unpack");
            EXPECT_EQ(move(false, host.data(), once.rkey), UCS_OK);
            uct_rkey_release(ipc.component, &once);
        }
        return gaudi::process_statistics().ipc.imports;
    };
    EXPECT_EQ(kept_with("1"), 1U);
    EXPECT_EQ(kept_with("2"), 2U);
    gaudi::set_ipc({});
}

TEST_F(uct_ipc, keepalive_fails_the_endpoint_of_a_process_that_ended) {
    finished done;
    for (int i = 0; i < 10; ++i) {
        EXPECT_EQ(uct_ep_check(ep, 0, nullptr), UCS_OK);
        uct_worker_progress(worker_.handle);
    }
    EXPECT_TRUE(failures.empty());
    other.end(SIGKILL);
    for (int i = 0; i < 20000 && failures.empty(); ++i) {
        EXPECT_EQ(uct_ep_check(ep, 0, nullptr), UCS_OK);
        uct_worker_progress(worker_.handle);
        ::usleep(1000);
    }
    ASSERT_EQ(failures.size(), 1U);
    EXPECT_EQ(failures[0].first, ep);
    EXPECT_EQ(failures[0].second, UCS_ERR_ENDPOINT_TIMEOUT);
}

TEST_F(uct_ipc, a_copy_with_a_process_that_ended_fails_its_endpoint) {
    auto host = numbered(size, 10);
    ASSERT_EQ(move(true, host.data(), rkey.rkey), UCS_OK);
    other.end(SIGKILL);
    ucs_status_t status = UCS_OK;
    for (int i = 0; i < 20000 && !UCS_STATUS_IS_ERR(status); ++i) {
        status = move(false, host.data(), rkey.rkey);
        ::usleep(1000);
    }
    EXPECT_EQ(status, UCS_ERR_CONNECTION_RESET);
    uct_worker_progress(worker_.handle);
    ASSERT_EQ(failures.size(), 1U);
    EXPECT_EQ(failures[0].first, ep);
}

} // namespace
