// SPDX-License-Identifier: BSD-3-Clause
// What the owner's broker answers to an importer. The importer is the other end of a socket; no device is
// open, so that requests which would use one end with errc::not_allocated.
#include "src/ipc/request_handler.hpp"

#include "tests/support/expect_has.hpp"
#include "tests/support/test_lab.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

namespace {

using namespace gaudi;

struct request_handler_test : ::testing::Test {
    static constexpr std::uint64_t base = 0x100000, allocated = 0x4000, generation = 3;
    static constexpr std::uint64_t offset = 0x1000, length = 0x2000; // what of it is shared
    static constexpr auto no_time = channel_deadline{};

    struct importer {
        unique_fd socket;
        client* served = nullptr;
        std::uint64_t last_id = 100;
        answer_head head;     // of the last answer
        message_bytes body{}; // of the last answer
        std::array<unique_fd, most_passed> passed{};
        unsigned descriptors = 0;
    };

    importer connect(std::uint32_t user = ::geteuid()) {
        int ends[2];
        if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
            throw std::runtime_error("socketpair");
        importer connected;
        connected.socket = unique_fd(ends[0]);
        connected.served = &clients.all().emplace_back(unique_fd(ends[1]), ucred{::getpid(), user, 0});
        return connected;
    }
    static void send(const importer& by, std::span<const std::byte> message,
                     std::span<const int> descriptors = {}) {
        expect(send_message(by.socket.get(), message, descriptors, no_time));
    }
    // False if there is no answer.
    static bool receive(importer& by) {
        std::array<std::byte, longest_answer> bytes;
        auto answer = receive_message(by.socket.get(), bytes, no_time);
        if (!answer)
            return false;
        by.head = read_as<answer_head>(std::span(bytes).first(sizeof(answer_head))).value();
        by.body.assign(bytes.begin() + sizeof(answer_head),
                       bytes.begin() + static_cast<std::ptrdiff_t>(answer->bytes));
        by.passed = std::move(answer->passed);
        by.descriptors = answer->descriptors;
        return true;
    }
    // The error that a request is answered with, none if it succeeded.
    template <typename Request>
    std::optional<errc> failure_of(importer& by, const Request& request,
                                   std::span<const int> descriptors = {}) {
        send(by, request_message(++by.last_id, request), descriptors);
        EXPECT_TRUE(handler.serve(*by.served)) << "the connection goes on";
        if (!receive(by)) {
            ADD_FAILURE() << "no answer";
            return errc::peer_silent;
        }
        EXPECT_EQ(by.head.id, by.last_id);
        if (by.head.failed == 0)
            return {};
        return static_cast<errc>(by.head.failed - 1);
    }
    template <typename Request>
    typename Request::answer ask(importer& by, const Request& request,
                                 std::span<const int> descriptors = {}) {
        EXPECT_EQ(failure_of(by, request, descriptors), std::nullopt) << by.head.observed;
        return read_as<typename Request::answer>(by.body).value();
    }
    // A request without an answer.
    template <typename Request>
    void tell(importer& by, const Request& request) {
        send(by, request_message(++by.last_id, request));
        EXPECT_TRUE(handler.serve(*by.served));
        EXPECT_FALSE(receive(by));
    }

    // A handle of memory that this process shares.
    handle_record share() {
        handle_record record;
        record.set_owner(own_identity());
        record.base = base;
        record.allocated = allocated;
        record.generation = generation;
        record.offset = offset;
        record.length = length;
        record.secret =
            shares.add({device_address(base), allocated, generation, 0, 0}, offset, length, false);
        (void)record.seal();
        return record;
    }
    std::uint32_t open_lease(importer& by) { return ask(by, open_lease_request{share()}).lease; }

    poller events = expect(poller::make());
    ipc_settings settings;
    share_table shares;
    device_offers offers{events};
    client_list clients{events, settings};
    request_handler handler{shares, offers, clients, settings};
};

TEST_F(request_handler_test, answers_every_message_in_order_but_not_all_at_once) {
    auto by = connect();
    EXPECT_TRUE(handler.serve(*by.served)) << "nothing was sent";
    EXPECT_FALSE(by.served->greeted);
    for (std::uint64_t id = 0; id < 20; ++id)
        send(by, request_message(id, open_lease_request{share()}));
    ASSERT_TRUE(handler.serve(*by.served));
    EXPECT_TRUE(by.served->greeted);
    std::uint64_t next = 0;
    for (; receive(by); ++next)
        EXPECT_EQ(by.head.id, next);
    EXPECT_EQ(next, 16U) << "then other clients are served";
    ASSERT_TRUE(handler.serve(*by.served));
    for (; receive(by); ++next)
        EXPECT_EQ(by.head.id, next);
    EXPECT_EQ(next, 20U);
    EXPECT_EQ(handler.leases_opened(), 20U);
}

TEST_F(request_handler_test, ends_the_connection_for_what_is_no_request) {
    const auto good = request_message(1, open_lease_request{share()});
    auto wrong_magic = good;
    wrong_magic[0] ^= std::byte{1};
    auto too_long = good;
    too_long.resize(longest_request + 1);
    for (const auto& message : {message_bytes(good.begin(), good.begin() + sizeof(request_head) - 1),
                                message_bytes(1), wrong_magic, too_long}) {
        auto by = connect();
        send(by, message);
        send(by, good);
        EXPECT_FALSE(handler.serve(*by.served)) << message.size();
        EXPECT_FALSE(receive(by));
        EXPECT_TRUE(by.served->leases.all().empty()) << "what follows is not served";
    }
    auto by = connect();
    send(by, good);
    by.socket.reset();
    EXPECT_FALSE(handler.serve(*by.served)) << "the importer is gone";
}

TEST_F(request_handler_test, refuses_another_version_and_unknown_requests) {
    auto by = connect();
    const open_lease_request body{share()};
    send(by, message_of(request_head{.version = 7, .kind = kind_of<open_lease_request>(), .id = 5}, body));
    EXPECT_TRUE(handler.serve(*by.served));
    ASSERT_TRUE(receive(by));
    EXPECT_EQ(by.head.id, 5U);
    EXPECT_EQ(by.head.failed, static_cast<std::uint32_t>(errc::version_mismatch) + 1);
    EXPECT_HAS(std::string(by.head.observed), "version 7, the owner 2");
    EXPECT_TRUE(by.served->leases.all().empty());
    constexpr auto kinds = static_cast<std::uint16_t>(std::variant_size_v<ipc_request>);
    for (const auto kind : {std::uint16_t{0}, std::uint16_t{kinds + 1}, std::uint16_t{0xffff},
                            kind_of<copy_request>()}) { // of another size
        send(by, message_of(request_head{.kind = kind, .id = 6}, body));
        EXPECT_TRUE(handler.serve(*by.served));
        ASSERT_TRUE(receive(by));
        EXPECT_EQ(by.head.id, 6U);
        EXPECT_EQ(by.head.failed, static_cast<std::uint32_t>(errc::protocol_violated) + 1) << kind;
    }
    EXPECT_EQ(failure_of(by, body), std::nullopt) << "the connection still works";
}

TEST_F(request_handler_test, leases_only_what_this_process_shares) {
    auto by = connect();
    const auto failure_with = [&](auto change, bool sealed = true) {
        auto record = share();
        change(record);
        if (sealed)
            (void)record.seal();
        return failure_of(by, open_lease_request{record});
    };
    EXPECT_EQ(failure_with([](handle_record& record) { record.secret ^= 1; }, false), errc::handle_invalid);
    EXPECT_EQ(failure_with([](handle_record& record) { record.pid ^= 1; }), errc::handle_invalid);
    EXPECT_EQ(failure_with([](handle_record& record) { record.start_time ^= 1; }), errc::handle_invalid);
    EXPECT_EQ(failure_with([](handle_record& record) { record.random[1] ^= 1; }), errc::handle_invalid);
    EXPECT_EQ(failure_with([](handle_record& record) { record.secret ^= 1; }), errc::handle_stale);
    EXPECT_EQ(failure_with([](handle_record& record) { record.offset = 0; }), errc::handle_stale);
    EXPECT_EQ(failure_with([](handle_record& record) { record.length -= 1; }), errc::handle_stale);
    EXPECT_EQ(failure_with([](handle_record& record) { record.generation += 1; }), errc::handle_stale);
    const auto revoked = share();
    ASSERT_TRUE(shares.revoke(device_address(base), 0));
    EXPECT_EQ(failure_of(by, open_lease_request{revoked}), errc::handle_stale);
    EXPECT_TRUE(by.served->leases.all().empty());
    EXPECT_EQ(handler.leases_opened(), 0U);
    EXPECT_EQ(failure_of(by, open_lease_request{share()}), std::nullopt);
    EXPECT_EQ(handler.leases_opened(), 1U);
}

TEST_F(request_handler_test, passes_the_table_when_wanted_and_the_revoke_socket_once) {
    auto by = connect();
    EXPECT_EQ(ask(by, open_lease_request{share()}).passed, 0U);
    EXPECT_EQ(by.descriptors, 0U);
    const auto first = ask(by, open_lease_request{share(), 1});
    EXPECT_EQ(first.passed, opened_lease::table | opened_lease::revoke_socket);
    ASSERT_EQ(by.descriptors, 2U);
    const auto table =
        expect(shared_memory::of(std::move(by.passed[0]), leases_per_client * sizeof(lease_word)));
    const auto revoke_socket = std::move(by.passed[1]);
    const auto second = ask(by, open_lease_request{share(), 1});
    EXPECT_EQ(second.passed, opened_lease::table);
    EXPECT_EQ(by.descriptors, 1U);
    EXPECT_NE(second.lease, first.lease);
    by.served->leases.revoke_if([](const lease_record&) { return true; });
    EXPECT_EQ(reinterpret_cast<const lease_word*>(table.data())[second.lease].revoked, 1U);
    char byte = 0;
    EXPECT_EQ(::recv(revoke_socket.get(), &byte, 1, MSG_DONTWAIT), 1);
}

TEST_F(request_handler_test, forgets_revoked_memory_with_its_last_lease) {
    auto one = connect(), other = connect();
    const auto first = open_lease(one), second = open_lease(one), third = open_lease(other);
    ASSERT_TRUE(shares.revoke(device_address(base), 0));
    tell(one, close_lease_request{first});
    tell(one, close_lease_request{first}); // closed already
    tell(one, close_lease_request{second});
    EXPECT_TRUE(one.served->leases.all().empty());
    EXPECT_EQ(shares.size(), 1U) << "the other client's lease is open";
    tell(other, close_lease_request{third});
    EXPECT_EQ(shares.size(), 0U);
}

TEST_F(request_handler_test, a_lease_belongs_to_its_client_and_ends_when_revoked) {
    auto by = connect(), stranger = connect();
    const auto lease = open_lease(by);
    EXPECT_EQ(failure_of(by, open_dmabuf_request{lease}), errc::not_allocated) << "the device was closed";
    EXPECT_EQ(failure_of(by, open_context_request{lease}), errc::copies_absent);
    const auto expect_nothing = [&](importer& from) {
        EXPECT_EQ(failure_of(from, open_dmabuf_request{lease}), errc::handle_stale);
        EXPECT_EQ(failure_of(from, open_context_request{lease}), errc::handle_stale);
        EXPECT_EQ(failure_of(from, copy_request{lease, 1, offset, 1, 0}), errc::lease_revoked);
    };
    expect_nothing(stranger);
    tell(stranger, close_lease_request{lease});
    EXPECT_EQ(by.served->leases.all().size(), 1U);
    by.served->leases.revoke_if([](const lease_record&) { return true; });
    expect_nothing(by);
    const auto fresh = open_lease(by);
    EXPECT_EQ(failure_of(by, open_dmabuf_request{fresh}), errc::not_allocated);
    ASSERT_TRUE(shares.revoke(device_address(base), 0)); // the memory is shared no more
    EXPECT_EQ(failure_of(by, open_dmabuf_request{fresh}), errc::handle_stale);
    EXPECT_EQ(failure_of(by, copy_request{fresh, 1, offset, 1, 0}), errc::lease_revoked);
}

TEST_F(request_handler_test, passes_descriptors_only_as_the_settings_and_users_permit) {
    auto same_user = connect(), other_user = connect(::geteuid() + 1);
    const auto lease = open_lease(same_user), lease_of_other = open_lease(other_user);
    EXPECT_EQ(failure_of(other_user, open_context_request{lease_of_other}), errc::not_granted);
    EXPECT_EQ(failure_of(other_user, open_device_request{1}), errc::peer_refused);
    EXPECT_EQ(failure_of(same_user, open_device_request{1}), errc::device_unknown);
    EXPECT_EQ(failure_of(other_user, open_dmabuf_request{lease_of_other}), errc::not_allocated);
    settings.give = ipc_give::dmabuf;
    EXPECT_EQ(failure_of(same_user, open_context_request{lease}), errc::not_granted);
    EXPECT_EQ(failure_of(same_user, open_dmabuf_request{lease}), errc::not_allocated);
    settings.give = ipc_give::nothing;
    EXPECT_EQ(failure_of(same_user, open_context_request{lease}), errc::not_granted);
    EXPECT_EQ(failure_of(same_user, open_dmabuf_request{lease}), errc::not_granted);
}

TEST_F(request_handler_test, attaches_only_memory_that_cannot_shrink_and_no_descriptor) {
    auto by = connect();
    const auto slab = expect(shared_memory::make("slab", 8192));
    const unique_fd may_shrink(::memfd_create("slab", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    ASSERT_EQ(::ftruncate(may_shrink.get(), 8192), 0);
    const int good[] = {slab.descriptor()}, loose[] = {may_shrink.get()},
              two[] = {slab.descriptor(), slab.descriptor()};
    const auto descriptors = testing_support::open_descriptors();
    for (const auto wrong : {0ULL, 8193ULL, (64ULL << 20) + 1, ~0ULL})
        EXPECT_EQ(failure_of(by, attach_slab_request{wrong}, good), errc::protocol_violated) << wrong;
    EXPECT_EQ(failure_of(by, attach_slab_request{8192}), errc::protocol_violated) << "no descriptor";
    EXPECT_EQ(failure_of(by, attach_slab_request{8192}, two), errc::protocol_violated);
    EXPECT_EQ(failure_of(by, attach_slab_request{8192}, loose), errc::protocol_violated);
    EXPECT_TRUE(by.served->slab.bytes().empty());
    EXPECT_EQ(failure_of(by, attach_slab_request{8192}, good), std::nullopt);
    EXPECT_EQ(failure_of(by, attach_slab_request{4096}, good), std::nullopt) << "in place of the first";
    EXPECT_EQ(testing_support::open_descriptors(), descriptors);
    ASSERT_EQ(by.served->slab.bytes().size(), 4096U);
    slab.bytes()[4095] = std::byte{0x5a};
    EXPECT_EQ(by.served->slab.bytes()[4095], std::byte{0x5a}) << "the same memory";
}

TEST_F(request_handler_test, copies_only_between_the_shared_bytes_and_the_slab) {
    auto by = connect();
    const auto lease = open_lease(by);
    EXPECT_EQ(failure_of(by, copy_request{lease, 1, offset, 1, 0}), errc::range_leaves_allocation)
        << "no slab";
    const auto slab = expect(shared_memory::make("slab", 4096));
    const int descriptor[] = {slab.descriptor()};
    (void)ask(by, attach_slab_request{4096}, descriptor);
    for (const std::uint32_t to_slab : {0U, 1U}) {
        const auto failure = [&](std::uint64_t from, std::uint64_t bytes, std::uint64_t at) {
            return failure_of(by, copy_request{lease, to_slab, from, bytes, at});
        };
        EXPECT_EQ(failure(offset, 4096, 0), errc::not_allocated) << "allowed, but the device was closed";
        EXPECT_EQ(failure(offset + length - 1, 1, 4095), errc::not_allocated);
        for (const auto& [from, bytes, at] : {std::tuple{offset - 1, 1ULL, 0ULL},
                                              {offset + length, 1ULL, 0ULL},
                                              {offset + length - 1, 2ULL, 0ULL},
                                              {offset, 0ULL, 0ULL},
                                              {offset, 1ULL, 4096ULL},
                                              {offset, 2ULL, 4095ULL},
                                              {offset, 1ULL, ~0ULL},
                                              {offset, ~0ULL, 1ULL},
                                              {~std::uint64_t{0}, 2ULL, 0ULL},
                                              {std::uint64_t{0}, 4096ULL, 0ULL}})
            EXPECT_EQ(failure(from, bytes, at), errc::range_leaves_allocation) << from << " " << bytes;
    }
    EXPECT_TRUE(by.served->copies.empty());
    EXPECT_TRUE(by.served->leases.quiet());
}

TEST_F(request_handler_test, the_next_request_ends_what_waited_for_the_importer) {
    auto by = connect();
    const auto lease = open_lease(by);
    by.served->parked.emplace_back(::dup(by.socket.get()));
    by.served->unresponsive = true;
    by.served->leases.find_usable(lease)->dmabuf_given = true;
    EXPECT_TRUE(handler.serve(*by.served));
    EXPECT_EQ(by.served->parked.size(), 1U) << "no message has come";
    tell(by, release_dmabuf_request{lease + 1});
    EXPECT_TRUE(by.served->parked.empty());
    EXPECT_FALSE(by.served->unresponsive);
    EXPECT_TRUE(by.served->leases.find_usable(lease)->dmabuf_given) << "that was another lease";
    tell(by, release_dmabuf_request{lease});
    EXPECT_FALSE(by.served->leases.find_usable(lease)->dmabuf_given);
}

} // namespace
