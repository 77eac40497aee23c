// SPDX-License-Identifier: BSD-3-Clause
#include "src/ipc/hangup_watch.hpp"

#include <gtest/gtest.h>
#include <sys/socket.h>

namespace {

using namespace gaudi;

struct hangup_watch_test : ::testing::Test {
    struct counting : hangup_watcher {
        void hung_up() override { ++calls; }
        int calls = 0;
    };
    struct pair {
        unique_fd here, there;
        pair() {
            int ends[2];
            if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
                throw std::runtime_error("socketpair");
            here = unique_fd(ends[0]);
            there = unique_fd(ends[1]);
        }
    };
    poller events = expect(poller::make());
    hangup_watch watch{events};
};

TEST_F(hangup_watch_test, reports_an_owner_that_is_gone_once) {
    pair connection;
    const auto watcher = std::make_shared<counting>();
    ASSERT_TRUE(watch.add(connection.here.get(), watcher));
    EXPECT_TRUE(events.wait(0).empty());
    EXPECT_FALSE(watch.handle(connection.here.get()).hung_up) << "it is still there";
    connection.there.reset();
    const auto ready = events.wait(1000);
    ASSERT_EQ(ready.size(), 1U);
    const auto event = watch.handle(ready[0]);
    EXPECT_TRUE(event.mine);
    EXPECT_EQ(event.hung_up, watcher);
    EXPECT_TRUE(events.wait(0).empty());
    EXPECT_FALSE(watch.handle(connection.here.get()).mine);
}

TEST_F(hangup_watch_test, reports_revocations_and_drops_a_socket_that_was_closed) {
    pair socket;
    ASSERT_TRUE(watch.add_revoke_socket(socket.here.get()));
    for (int i = 0; i < 3; ++i)
        ASSERT_EQ(::send(socket.there.get(), "", 1, 0), 1);
    ASSERT_EQ(events.wait(1000).size(), 1U);
    EXPECT_TRUE(watch.handle(socket.here.get()).revoked);
    EXPECT_TRUE(events.wait(0).empty()) << "all three were read";
    socket.there.reset();
    ASSERT_EQ(events.wait(1000).size(), 1U);
    const auto event = watch.handle(socket.here.get());
    EXPECT_TRUE(event.mine);
    EXPECT_FALSE(event.revoked);
    EXPECT_TRUE(events.wait(0).empty());
}

TEST_F(hangup_watch_test, does_not_keep_watchers_alive) {
    pair connection;
    auto watcher = std::make_shared<counting>();
    ASSERT_TRUE(watch.add(connection.here.get(), watcher));
    EXPECT_EQ(watch.all().size(), 1U);
    watcher.reset();
    EXPECT_TRUE(watch.all().empty());
    EXPECT_TRUE(watch.take_all().empty());
}

TEST_F(hangup_watch_test, knows_nothing_of_other_descriptors) {
    EXPECT_FALSE(watch.handle(0).mine);
}

} // namespace
