// SPDX-License-Identifier: BSD-3-Clause
// A hostile peer with a key must not access memory that was not offered to it. The victim is a separate
// process, in the same lab or on another virtual host, and checks all of its memory after each attack.
#include "src/connection/connection_core.hpp"
#include "src/os/internals.hpp"
#include "tests/rdma/peer_access.hpp"
#include "tests/rdma/rdma_test.hpp"
#include "tests/support/child.hpp"

#include <array>
#include <atomic>
#include <fmt/format.h>
#include <sys/mman.h>

namespace {

using namespace testing_support;
using enum remote_access;

// Action of the victim before the attack.
enum class then { stay, withdraw, free, free_and_allocate };

// What the attacker has a key to.
enum class what { offered, credits, slab };

struct attack {
    const char* name;
    remote_access rights;   // that the victim offers
    transfer_kind kind;     // the operation of the attacker
    std::int64_t shift = 0; // offset from the offered address
    std::uint64_t length = one_page;
    then first = then::stay;
    bool with_local_key = false; // the attacker uses the victim's lkey
    std::uint32_t key_shift = 0; // offset from the offered key
    what to = what::offered;
};

constexpr std::int64_t page = one_page, slab_bytes = 512 << 10;

constexpr attack attacks[] = {
    {"write beyond the end", read | write, write_it, page},
    {"read beyond the end", read | write, read_it, page},
    {"write over the end by a byte", read | write, write_it, 1},
    {"read over the end by a byte", read | write, read_it, 1},
    {"write before the start", read | write, write_it, -page},
    {"read from a byte before the start", read | write, read_it, -1},
    {"one long read", read, read_it, 0, 2 * one_page},
    {"write with a key for reading", read, write_it},
    {"read with a key for writing", write, read_it},
    {"atomic with a key for both", read | write, add_to_it, 0, 8},
    {"write with a key for atomics", atomic, write_it},
    {"read with a key for atomics", atomic, read_it},
    {"atomic beyond the end", all, add_to_it, page, 8},
    {"read after withdrawal", read | write, read_it, 0, one_page, then::withdraw},
    {"write after withdrawal", read | write, write_it, 0, one_page, then::withdraw},
    {"read after free", read | write, read_it, 0, one_page, then::free},
    {"write after free, into what lies there now", read | write, write_it, 0, one_page,
     then::free_and_allocate},
    {"write with the key of the victim's own registration", read, write_it, 0, one_page, then::stay, true},
    {"read of another buffer with that key", read, read_it, page, one_page, then::stay, true},
    {"write with the next key", read | write, write_it, 0, one_page, then::stay, false, 0x100},
    {"write with the key before", read | write, write_it, 0, one_page, then::stay, false, ~0U - 0xff},
    {"write with another generation of the key", read | write, write_it, 0, one_page, then::stay, false, 1},
    {"read of the credits", read, read_it, 0, 8, then::stay, false, 0, what::credits},
    {"write beyond the credits", read, write_it, sizeof(credit::ring), 8, then::stay, false, 0,
     what::credits},
    {"write before the credits", read, write_it, -1, 8, then::stay, false, 0, what::credits},
    {"atomic on the credits", read, add_to_it, 0, 8, then::stay, false, 0, what::credits},
    {"read of a slab granted for a write", write, read_it, 0, one_page, then::stay, false, 0, what::slab},
    {"write beyond that slab", write, write_it, slab_bytes, one_page, then::stay, false, 0, what::slab},
    {"write before that slab", write, write_it, -1, one_page, then::stay, false, 0, what::slab},
};

// In memory that both processes share.
struct shared_state {
    std::atomic<unsigned> step;
    std::atomic<unsigned> port;
    std::atomic<std::uint32_t> local_key;
};

struct place_and_path {
    bool between_hosts;
    memory_path path;
};
std::string name_of_case(const ::testing::TestParamInfo<place_and_path>& info) {
    auto path = std::string(name_of(info.param.path));
    std::replace(path.begin(), path.end(), '-', '_');
    return fmt::format("{}_{}", info.param.between_hosts ? "between_hosts" : "within_a_host", path);
}
void PrintTo(const place_and_path& what, std::ostream* out) {
    *out << name_of(what.path);
}

class hostile_peer : public rdma_test, public ::testing::WithParamInterface<place_and_path> {
protected:
    hostile_peer()
        : shared_(new (::mmap(nullptr, one_page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))
                      shared_state{}) {}
    ~hostile_peer() override {
        ::munmap(shared_, one_page);
        ::unsetenv("GAUDI_LAB");
    }

    void become(const char* name, const char* address) const {
        if (!GetParam().between_hosts)
            return;
        const auto made = lab::parse_description(
            fmt::format("gaudis = 1\nhbm_pages = 2\nhcas = 1\nlink_layer = ethernet\naddress = {}\n",
                        address),
            name);
        ASSERT_TRUE(made) << made.error().text;
        ASSERT_TRUE(lab::folder::enter(name, *made));
        ::setenv("GAUDI_LAB", name, 1);
    }
    bool reached(unsigned step) const {
        for (int i = 0; i < 30000 && shared_->step < step; ++i)
            std::this_thread::sleep_for(milliseconds(1));
        return shared_->step >= step;
    }

    // Three adjacent buffers of one chunk. The victim offers the middle one.
    struct victim {
        side self;
        std::array<device_buffer, 3> device;
        std::array<local_region, 3> regions;

        void allocate(std::size_t index, memory_path path) {
            device[index] = expect(self.gaudi->heap().allocate(one_page));
            regions[index] = expect(self.nic->region(
                *self.gaudi, device[index],
                path == memory_path::staged ? path_policy::staged_only : path_policy::require_zero_copy));
        }
        void open(memory_path path, unsigned gaudi) {
            self.nic = expect(open_nic());
            if (path == memory_path::host) {
                self.host.resize(3 * one_page);
                for (std::size_t i = 0; i < 3; ++i)
                    regions[i] =
                        expect(self.nic->region(std::span(self.host).subspan(i * one_page, one_page)));
                return;
            }
            self.gaudi = expect(open_device(by_index{gaudi}));
            for (std::size_t i = 0; i < 3; ++i)
                allocate(i, path);
        }
        void put(std::size_t index, std::span<const std::byte> bytes) {
            if (self.gaudi)
                expect(expect(expect(self.gaudi->copies()).write(device[index].address(), bytes)).wait());
            else
                std::copy(bytes.begin(), bytes.end(),
                          self.host.begin() + static_cast<std::ptrdiff_t>(index * one_page));
        }
        std::vector<std::byte> get(std::size_t index) {
            std::vector<std::byte> bytes(one_page);
            if (self.gaudi)
                expect(expect(expect(self.gaudi->copies()).read(bytes, device[index].address())).wait());
            else
                std::copy_n(self.host.begin() + static_cast<std::ptrdiff_t>(index * one_page), one_page,
                            bytes.begin());
            return bytes;
        }
    };

    // Steps of attack n: 2n + 1: the victim is prepared; 2n + 2: the attack is over.
    int be_victim() {
        const auto path = GetParam().path;
        become("remote", "127.0.0.2");
        victim it;
        it.open(path, GetParam().between_hosts ? 0 : 1);
        const auto door = expect(listener::open(0, "127.0.0.1"));
        shared_->port = door.port();
        unsigned step = 0;
        for (const auto& tried : attacks) {
            if (!applies(tried))
                continue;
            for (std::size_t i = 0; i < 3; ++i)
                it.put(i, pattern(one_page, static_cast<unsigned>(i)));
            auto link = expect(door.accept(it.self.nic, soon));
            expect(link.offer(it.regions[1], tried.rights));
            shared_->local_key = it.regions[1].local_key();
            (void)expect(link.receive_note(soon)); // the peer has the offer
            prepare(it, link, tried.first);
            shared_->step = ++step;
            ++step;
            // The victim serves accesses to staged memory. On other paths it must not poll: a victim that
            // detects the attack sends a goodbye frame, which may arrive before the completion of the NIC.
            while (shared_->step < step)
                if (path == memory_path::staged)
                    link.poll();
                else
                    std::this_thread::sleep_for(milliseconds(1));
            for (std::size_t i = 0; i < 3; ++i)
                if (it.device[i] || !it.self.gaudi) {
                    EXPECT_EQ(it.get(i), pattern(one_page, static_cast<unsigned>(i)))
                        << tried.name << ": buffer " << i << " was changed";
                }
            if (tried.first == then::free)
                it.allocate(1, path);
        }
        return ::testing::Test::HasFailure() ? 1 : 0;
    }
    void prepare(victim& it, connection& link, then next) const {
        if (next == then::withdraw)
            link.withdraw(it.regions[1]);
        if (next != then::free && next != then::free_and_allocate)
            return;
        const auto address = it.device[1].address();
        it.device[1] = {};
        if (next == then::free)
            return;
        it.allocate(1, GetParam().path);
        EXPECT_EQ(it.device[1].address(), address) << "the address is handed out again";
        it.put(1, pattern(one_page, 1));
    }
    // The library does not free host memory. Staged memory has no local key and no atomics.
    static bool applies(const attack& tried) {
        const auto path = GetParam().path;
        const bool frees = tried.first == then::free || tried.first == then::free_and_allocate;
        if (tried.to == what::slab)
            return path == memory_path::staged;
        return !(frees && path == memory_path::host) &&
               !((tried.with_local_key || (tried.to == what::offered && tried.kind == add_to_it) ||
                  tried.rights == atomic) &&
                 path == memory_path::staged);
    }

    // Asks for a slab of the offered memory and returns where it is.
    static remote_region granted_slab(connection_link& link, const remote_region& offered) {
        expect(link.control.send(
            frame_kind::access_request,
            encode_frame(access_request{1, offered.address, offered.length, offered.key, /*writing*/ true})));
        for (;;)
            for (const auto& received : expect(link.control.receive()))
                if (received.kind == frame_kind::slab_grant) {
                    const auto slab = *decode_frame<slab_grant>(received.body);
                    return {slab.address, slab.bytes, slab.key, memory_path::zero_copy, write};
                }
    }
    static result<completion> strike(connection& link, const local_region& mine, const remote_region& at,
                                     transfer_kind kind) {
        auto begun = kind == write_it  ? link.write(mine, at)
                     : kind == read_it ? link.read(mine, at)
                                       : link.fetch_add(at, 1);
        if (!begun)
            return tl::unexpected(begun.error());
        return begun->wait(soon);
    }

    shared_state* shared_;
};

TEST_P(hostile_peer, gets_nowhere) {
    child target([&] { return be_victim(); });
    become("local", "127.0.0.1");
    left.nic = expect(open_nic());
    left.host.assign(2 * one_page, std::byte{0x5a});
    for (int i = 0; i < 30000 && shared_->port == 0; ++i)
        std::this_thread::sleep_for(milliseconds(1));
    const auto peer = fmt::format("127.0.0.1:{}", shared_->port.load());
    unsigned step = 0;
    for (const auto& tried : attacks) {
        if (!applies(tried))
            continue;
        SCOPED_TRACE(tried.name);
        auto link = expect(connect(left.nic, peer));
        const auto offered = expect(link.take_offer(soon));
        EXPECT_EQ(offered.rights, tried.rights);
        EXPECT_EQ(offered.length, one_page);
        expect(link.send_note({}));
        ASSERT_TRUE(reached(++step));
        auto at = offered;
        auto& wire = const_cast<connection_link&>(core_of(link)->link());
        if (tried.to == what::credits)
            at = {wire.remote_hello.credits_address, 0, wire.remote_hello.credits_key, memory_path::host,
                  write};
        if (tried.to == what::slab)
            at = granted_slab(wire, offered);
        at.rights = all; // the attacker claims all rights
        at.address += static_cast<std::uint64_t>(tried.shift);
        at.length = tried.length;
        at.key = tried.with_local_key ? shared_->local_key.load() : at.key + tried.key_shift;
        std::fill(left.host.begin(), left.host.end(), std::byte{0x5a});
        const auto mine = expect(left.nic->region(std::span(left.host).first(tried.length)));
        const auto outcome = strike(link, mine, at, tried.kind);
        EXPECT_FALSE(outcome) << "it was let in";
        if (!outcome) {
            EXPECT_EQ(outcome.error().code(), errc::remote_access) << outcome.error().message();
        }
        EXPECT_EQ(left.host, std::vector<std::byte>(2 * one_page, std::byte{0x5a})) << "bytes came out";
        shared_->step = ++step;
    }
    EXPECT_EQ(target.wait(), 0);
}
INSTANTIATE_TEST_SUITE_P(keys, hostile_peer,
                         ::testing::Values(place_and_path{false, memory_path::zero_copy},
                                           place_and_path{false, memory_path::host},
                                           place_and_path{false, memory_path::staged},
                                           place_and_path{true, memory_path::zero_copy},
                                           place_and_path{true, memory_path::host},
                                           place_and_path{true, memory_path::staged}),
                         name_of_case);

} // namespace
