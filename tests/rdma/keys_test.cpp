// SPDX-License-Identifier: BSD-3-Clause
// A hostile peer with a key must not access memory that was not offered to it. The victim is a separate
// process, in the same lab or on another virtual host, and checks all of its memory after each attack.
#include "src/connection/connection_core.hpp"
#include "src/os/internals.hpp"
#include "tests/rdma/rdma_test.hpp"
#include "tests/support/child.hpp"

#include <array>
#include <atomic>
#include <fmt/format.h>
#include <sys/mman.h>

extern "C" int gaudi_lab_hca_arm_faults(const char* script);

namespace {

using namespace testing_support;
using enum remote_access;

constexpr std::size_t one_page = 4096;

// Action of the victim before the attack.
enum class then { stay, withdraw, free, free_and_allocate };

struct attack {
    const char* name;
    remote_access rights;   // that the victim offers
    transfer_kind kind;     // the operation of the attacker
    std::int64_t shift = 0; // offset from the offered address
    std::uint64_t length = one_page;
    then first = then::stay;
    bool with_local_key = false; // the attacker uses the victim's lkey
    std::uint32_t key_shift = 0; // offset from the offered key
};

constexpr auto read_it = transfer_kind::read, write_it = transfer_kind::write,
               add_to_it = transfer_kind::fetch_add;
constexpr std::int64_t page = one_page;

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
        become("far", "127.0.0.2");
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
    void prepare(victim& it, connection& link, then what) const {
        if (what == then::withdraw)
            link.withdraw(it.regions[1]);
        if (what != then::free && what != then::free_and_allocate)
            return;
        const auto address = it.device[1].address();
        it.device[1] = {};
        if (what == then::free)
            return;
        it.allocate(1, GetParam().path);
        EXPECT_EQ(it.device[1].address(), address) << "the address is handed out again";
        it.put(1, pattern(one_page, 1));
    }
    // The library does not free host memory. Staged memory has no local key and no atomics.
    static bool applies(const attack& tried) {
        const auto path = GetParam().path;
        const bool frees = tried.first == then::free || tried.first == then::free_and_allocate;
        return !(frees && path == memory_path::host) &&
               !((tried.with_local_key || tried.kind == add_to_it || tried.rights == atomic) &&
                 path == memory_path::staged);
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
    become("near", "127.0.0.1");
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
        at.rights = all; // the attacker claims all rights
        at.address += static_cast<std::uint64_t>(tried.shift);
        at.length = tried.length;
        at.key = tried.with_local_key ? shared_->local_key.load() : offered.key + tried.key_shift;
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

class keys_test : public rdma_test {
protected:
    // Accesses 64 bytes as a peer of another connection would: by a queue pair in the same protection domain.
    static ibv_wc_status access(const std::shared_ptr<nic_core>& through, transfer_kind kind,
                                std::uint64_t address, std::uint32_t key) {
        auto a = expect(queue_pair::make(through, 4, 1)), b = expect(queue_pair::make(through, 4, 1));
        const auto from_a = a.endpoint(), from_b = b.endpoint();
        expect(a.connect(from_a, from_b, 14, 6));
        expect(b.connect(from_b, from_a, 14, 6));
        std::vector<std::byte> bytes(64);
        const auto region = expect(through->register_host(bytes));
        ibv_sge entry{reinterpret_cast<std::uintptr_t>(bytes.data()), 64, region->lkey};
        ibv_send_wr request{}, *bad = nullptr;
        request.opcode = kind == write_it ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
        request.wr.rdma = {address, key};
        request.sg_list = &entry;
        request.num_sge = 1;
        request.send_flags = IBV_SEND_SIGNALED;
        EXPECT_EQ(::ibv_post_send(a.get(), &request, &bad), 0);
        ibv_wc done{};
        while (::ibv_poll_cq(a.completions(), 1, &done) == 0) {
        }
        return done.status;
    }
};

TEST_F(keys_test, what_was_offered_still_works_for_what_it_was_offered) {
    make_pair(memory_path::host, memory_path::zero_copy, one_page);
    const auto data = pattern(one_page, 3);
    for (const auto rights : {read, write, read | write}) {
        right.put(data);
        expect(right.link->offer(right.region, rights));
        const auto remote = expect(left.link->take_offer(soon));
        EXPECT_EQ(remote.rights, rights);
        const auto done = [&](result<transfer> begun) -> result<completion> {
            if (!begun)
                return tl::unexpected(begun.error());
            finish_all(*begun);
            return begun->wait(soon);
        };
        const auto in = done(left.link->read(left.region, remote));
        EXPECT_EQ(in.has_value(), allows(rights, read));
        const auto out = done(left.link->write(left.region, remote));
        EXPECT_EQ(out.has_value(), allows(rights, write));
        const auto* refused = !in ? &in.error() : !out ? &out.error() : nullptr;
        if (refused != nullptr) {
            EXPECT_EQ(refused->code(), errc::remote_access);
            EXPECT_NE(refused->message().find("which the peer offered for: " + name_of(rights)),
                      std::string::npos)
                << refused->message();
        }
        EXPECT_TRUE(left.link->alive()) << "what is known not to be offered breaks nothing";
    }
}

// A repeated offer on the same connection makes no new registration while the first offer is valid.
TEST_F(keys_test, are_shared_while_they_live_and_end_with_the_last) {
    make_pair(memory_path::host, memory_path::zero_copy, one_page);
    const auto regions = [&] { return right.nic->statistics(); };
    expect(right.link->offer(right.region, read));
    const auto first = regions();
    const auto given = expect(left.link->take_offer(soon));
    for (int i = 0; i < 100; ++i) {
        expect(right.link->offer(right.region, read));
        EXPECT_EQ(expect(left.link->take_offer(soon)).key, given.key);
    }
    EXPECT_EQ(regions().misses, first.misses);
    EXPECT_EQ(regions().regions, first.regions);
    // Keys from expose() are separate from those of offers: withdraw() does not end or await them.
    auto held = expect(right.region.expose(read)), same = expect(right.region.expose(read));
    EXPECT_NE(held.region().key, given.key);
    EXPECT_EQ(held.region().key, same.region().key);
    auto other = expect(right.region.expose(write));
    EXPECT_NE(other.region().key, held.region().key);
    EXPECT_EQ(regions().regions, first.regions + 2);
    right.link->withdraw(right.region);
    EXPECT_TRUE(held.valid());
    EXPECT_EQ(regions().regions, first.regions + 1);
    held = same = {};
    other = {};
    EXPECT_EQ(regions().regions, first.regions - 1) << "the chunk's own is left";
}

// Two peers have the same offer, and the owner withdraws one of them.
TEST_F(keys_test, that_are_withdrawn_from_one_peer_stay_with_the_other) {
    make_pair(memory_path::host, memory_path::zero_copy, one_page);
    const auto kept_left = std::move(*left.link), kept_right = std::move(*right.link);
    auto &first_peer = const_cast<connection&>(kept_left), &first_owner = const_cast<connection&>(kept_right);
    left.link.reset();
    right.link.reset();
    connect_both();
    expect(first_owner.offer(right.region, read));
    expect(right.link->offer(right.region, read));
    const auto first = expect(first_peer.take_offer(soon)), second = expect(left.link->take_offer(soon));
    EXPECT_NE(first.key, second.key);
    first_owner.withdraw(right.region);
    // The withdrawn key fails on every connection; the other key still works.
    auto good = expect(left.link->read(left.region, second));
    finish_all(good);
    expect(good.wait(soon));
    auto bad = expect(first_peer.read(left.region, first));
    EXPECT_EQ(bad.wait(soon).error().code(), errc::remote_access);
    auto again = expect(left.link->read(left.region, second));
    finish_all(again);
    expect(again.wait(soon));
    auto borrowed = expect(left.link->read(left.region, first));
    finish_all(borrowed);
    EXPECT_EQ(borrowed.wait(soon).error().code(), errc::remote_access);
}

// Keys of a released buffer, which is never freed, become invalid when the device is closed.
TEST_F(keys_test, of_abandoned_memory_end_with_the_device) {
    equip(right, 0, memory_path::zero_copy, one_page);
    auto buffer = expect(right.gaudi->heap().allocate(one_page));
    const auto region = expect(right.nic->region(*right.gaudi, buffer));
    const auto key = expect(region.expose(all));
    (void)buffer.release();
    EXPECT_TRUE(key.valid());
    right.region = {};
    right.buffer = {};
    right.gaudi.reset();
    EXPECT_FALSE(key.valid());
}

TEST_F(keys_test, end_with_the_buffer_and_before_it_is_handed_out_again) {
    equip(right, 0, memory_path::zero_copy, one_page);
    const auto address = right.buffer.address();
    const auto key = expect(right.region.expose(all));
    const auto part = expect(expect(right.region.part(64, 8)).expose(atomic));
    EXPECT_TRUE(key.valid() && part.valid());
    right.buffer = {};
    EXPECT_FALSE(key.valid() || part.valid());
    EXPECT_FALSE(right.region.allocated());
    const auto refused = right.region.expose(read);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), errc::not_allocated);
    right.buffer = expect(right.gaudi->heap().allocate(one_page));
    ASSERT_EQ(right.buffer.address(), address);
    EXPECT_FALSE(right.region.allocated()) << "the old region is not one of the new buffer";
    EXPECT_EQ(right.region.expose(read).error().code(), errc::not_allocated);
    const auto fresh = expect(right.nic->region(*right.gaudi, right.buffer));
    EXPECT_NE(expect(fresh.expose(all)).region().key, key.region().key);
}

// One thread makes keys of a buffer while another frees the buffer: no key stays valid.
TEST_F(keys_test, made_while_the_buffer_is_freed_do_not_survive_it) {
    equip(right, 0, memory_path::zero_copy, one_page);
    for (int round = 0; round < 50; ++round) {
        auto buffer = expect(right.gaudi->heap().allocate(one_page));
        const auto region = expect(right.nic->region(*right.gaudi, buffer));
        std::vector<remote_key> made;
        std::atomic<bool> begun = false;
        std::thread maker([&] {
            for (std::uint64_t i = 0; i < 64; ++i) {
                auto part = expect(region.part(i * 64, 64)).expose(read);
                begun = true;
                if (part)
                    made.push_back(std::move(*part));
                else
                    EXPECT_EQ(part.error().code(), errc::not_allocated);
            }
        });
        while (!begun)
            std::this_thread::yield();
        buffer = {};
        maker.join();
        for (const auto& each : made)
            EXPECT_FALSE(each.valid());
    }
}

// One thread drops the last key of a buffer while another frees the buffer: the heap must not reuse the
// memory before ibv_dereg_mr has returned.
TEST_F(keys_test, that_are_being_dropped_are_gone_before_the_memory_is_handed_out) {
    equip(left, 0, memory_path::host, one_page);
    right.nic = left.nic;
    right.gaudi = expect(open_device(by_index{1}));
    connect_both();
    for (int round = 0; round < 5; ++round) {
        auto buffer = expect(right.gaudi->heap().allocate(one_page));
        const auto region = expect(right.nic->region(*right.gaudi, buffer));
        std::optional<remote_key> key = expect(region.expose(write));
        const auto at = key->region();
        ASSERT_EQ(gaudi_lab_hca_arm_faults("ibv_dereg_mr 1 delay 200ms"), 0);
        std::atomic<bool> dropping = false;
        std::thread dropper([&] {
            dropping = true;
            key.reset();
        });
        while (!dropping)
            std::this_thread::yield();
        buffer = {};
        auto next = expect(right.gaudi->heap().allocate(one_page));
        ASSERT_EQ(next.address().value(), at.address) << "the same bytes again";
        auto begun = expect(left.link->write(left.region, at));
        dropper.join();
        gaudi_lab_hca_arm_faults("");
        EXPECT_EQ(begun.wait(soon).error().code(), errc::remote_access);
        left.link.reset();
        right.link.reset();
        connect_both();
    }
}

// Staged memory: when a free returns, no copy for a peer's write is in flight.
TEST_F(keys_test, of_staged_memory_leave_no_copy_after_a_free) {
    make_pair(memory_path::host, memory_path::staged, 4 << 20);
    const auto address = right.buffer.address();
    for (int round = 0; round < 4; ++round) {
        expect(right.link->offer(right.region, write));
        const auto remote = expect(left.link->take_offer(soon));
        std::fill(left.host.begin(), left.host.end(), std::byte{0x66});
        auto writing = expect(left.link->write(left.region, remote));
        for (int i = 0; i < 50 * (round + 1); ++i) { // free in the middle of the write
            left.link->poll();
            right.link->poll();
        }
        right.buffer = {};
        right.buffer = expect(right.gaudi->heap().allocate(4 << 20));
        ASSERT_EQ(right.buffer.address(), address);
        const auto mine = pattern(4 << 20, 3);
        right.put(mine);
        for (int i = 0; i < 200; ++i) {
            left.link->poll();
            right.link->poll();
        }
        EXPECT_EQ(right.get(), mine) << "bytes of a peer that had no right to them any more";
        left.link.reset();
        right.link.reset();
        right.region = expect(right.nic->region(*right.gaudi, right.buffer, path_policy::staged_only));
        connect_both();
    }
}

TEST_F(keys_test, with_impossible_rights_are_refused) {
    equip(left, 0, memory_path::host, one_page);
    EXPECT_EQ(left.region.expose(none).error().code(), errc::rights_invalid);
    EXPECT_EQ(left.region.expose(static_cast<remote_access>(8)).error().code(), errc::rights_invalid);
    equip(right, 0, memory_path::staged, one_page);
    EXPECT_EQ(right.region.expose(read).error().code(), errc::remote_staged);
    connect_both();
    EXPECT_EQ(right.link->offer(right.region, none).error().code(), errc::rights_invalid);
    EXPECT_EQ(left.link->offer(left.region, none).error().code(), errc::rights_invalid);
    EXPECT_EQ(name_of(read | atomic), "read, atomic");
    EXPECT_EQ(name_of(none), "nothing");
}

TEST_F(keys_test, are_bounded_like_other_registrations) {
    left.nic = expect(open_nic({}, {.bytes = 1ULL << 40, .regions = 4}));
    left.host.resize(8 * one_page);
    const auto region = expect(left.nic->region(left.host));
    std::vector<remote_key> held;
    for (std::uint64_t i = 0; i < 3; ++i)
        held.push_back(expect(expect(region.part(i * one_page, one_page)).expose(read)));
    const auto refused = expect(region.part(4 * one_page, one_page)).expose(read);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), errc::registrations_exhausted);
    held.pop_back();
    EXPECT_TRUE(expect(region.part(4 * one_page, one_page)).expose(read));
}

// The key in the handshake allows writes to the credit ring only.
TEST_F(keys_test, of_the_handshake_reach_the_credits_and_no_more) {
    for (const bool reading : {false, true}) {
        make_pair(memory_path::host, memory_path::host, one_page);
        const auto& theirs = core_of(*left.link)->link().theirs;
        remote_region at{theirs.credits_address, sizeof(credit::ring), theirs.credits_key};
        const auto mine = expect(left.nic->region(std::span(left.host).first(8)));
        if (!reading)
            at.address += at.length;
        at.length = 8;
        auto begun = reading ? expect(left.link->read(mine, at)) : expect(left.link->write(mine, at));
        finish_all(begun);
        EXPECT_EQ(begun.wait(soon).error().code(), errc::remote_access);
        left = {};
        right = {};
    }
}

// The owner has closed the connection and keeps its object.
TEST_F(keys_test, end_with_the_connection) {
    make_pair(memory_path::host, memory_path::zero_copy, one_page);
    expect(right.link->offer(right.region, all));
    const auto direct = expect(left.link->take_offer(soon));
    const auto staged = expect(right.nic->region(*right.gaudi, right.buffer, path_policy::staged_only));
    expect(right.link->offer(staged, read | write));
    const auto by_slabs = expect(left.link->take_offer(soon));
    auto& wire = const_cast<connection_link&>(core_of(*left.link)->link());
    expect(wire.control.send(
        frame_kind::access_request,
        encode_frame(access_request{1, by_slabs.address, one_page, by_slabs.key, /*writing*/ true})));
    std::optional<slab_grant> slab;
    while (!slab) {
        right.link->poll();
        for (const auto& received : expect(wire.control.receive()))
            if (received.kind == frame_kind::slab_grant)
                slab = decode_frame<slab_grant>(received.body);
    }
    const std::array<std::pair<std::uint64_t, std::uint32_t>, 3> keys{
        std::pair{direct.address, direct.key},
        std::pair{slab->address, slab->key},
        std::pair{wire.theirs.credits_address, wire.theirs.credits_key},
    };
    const auto outcome = [&](std::size_t index) {
        return access(core_of(*right.nic), write_it, keys[index].first, keys[index].second);
    };
    for (std::size_t i = 0; i < keys.size(); ++i)
        EXPECT_EQ(outcome(i), IBV_WC_SUCCESS) << "key " << i;
    right.link->close();
    for (std::size_t i = 0; i < keys.size(); ++i)
        EXPECT_EQ(outcome(i), IBV_WC_REM_ACCESS_ERR) << "key " << i;
}

// Each key of a granted slab allows access to one slab, in one direction.
TEST_F(keys_test, to_granted_slabs_open_one_slab_in_one_direction) {
    equip(left, 0, memory_path::staged, 4 * one_page);
    const auto& opened_device = core_of(*left.nic);
    std::vector<slab_grant> grants;
    for (const bool writing : {false, true}) {
        grants.clear();
        auto staging = expect(remote_staging::make(
            *opened_device, *internals::staging(left.region), one_page,
            [&](frame_kind kind, std::span<const std::byte> body) -> result<void> {
                if (kind == frame_kind::slab_grant)
                    grants.push_back(*decode_frame<slab_grant>(body));
                return {};
            },
            [](const access_request&) -> result<void> { return {}; }));
        ASSERT_TRUE(staging->open_access({1, left.region.address(), 4 * one_page, 0, writing}));
        while (grants.size() < 4)
            (void)expect(staging->progress());
        EXPECT_NE(grants[0].key, grants[1].key);
        const auto tries = [&](transfer_kind kind, std::uint64_t address, std::uint32_t key) {
            return access(opened_device, kind, address, key);
        };
        const auto allowed = writing ? write_it : read_it, other = writing ? read_it : write_it;
        EXPECT_EQ(tries(allowed, grants[0].address, grants[0].key), IBV_WC_SUCCESS);
        EXPECT_EQ(tries(other, grants[0].address, grants[0].key), IBV_WC_REM_ACCESS_ERR);
        EXPECT_EQ(tries(allowed, grants[1].address, grants[0].key), IBV_WC_REM_ACCESS_ERR);
        EXPECT_EQ(tries(allowed, grants[0].address + one_page - 63, grants[0].key), IBV_WC_REM_ACCESS_ERR);
        EXPECT_EQ(tries(allowed, grants[0].address - 1, grants[0].key), IBV_WC_REM_ACCESS_ERR);
        staging.reset();
        EXPECT_EQ(tries(allowed, grants[0].address, grants[0].key), IBV_WC_REM_ACCESS_ERR);
    }
}

// Registrations for loopback have their own protection domain: connections cannot access them.
TEST_F(keys_test, of_loopback_transfers_are_out_of_reach_for_connections) {
    equip(left, 0, memory_path::zero_copy, one_page);
    const auto& opened_device = core_of(*left.nic);
    std::vector<std::byte> room(64);
    const auto region =
        expect(opened_device->register_host(room, read | write, expect(opened_device->loopback_pd())));
    right.nic = left.nic;
    connect_both();
    left.host.resize(64);
    const auto mine = expect(left.nic->region(left.host));
    const remote_region at{reinterpret_cast<std::uintptr_t>(room.data()), 64, region->rkey, memory_path::host,
                           all};
    auto begun = expect(left.link->read(mine, at));
    finish_all(begun);
    EXPECT_EQ(begun.wait(soon).error().code(), errc::remote_access);
    copier copies;
    const copy_policy by_nic{copy_path::nic_loopback};
    std::array<std::byte, 8> word{std::byte{7}}, back{};
    const place there(left.buffer.address(), 8);
    expect(expect(copies.copy(there, std::span(word), by_nic)).wait());
    expect(expect(copies.copy(std::span(back), there, by_nic)).wait());
    EXPECT_EQ(word, back);
}

} // namespace
