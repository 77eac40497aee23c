// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "tests/lab/hca/verbs_node.hpp"
#include "tests/support/child.hpp"
#include "tests/support/test_lab.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

namespace testing_support {

// Two labs with different addresses: this process is the local host, a child the remote host, linked by TCP.
class two_hosts : public test_lab {
protected:
    // Creates a lab with its own address; this process opens all later devices in it.
    static void become_host(const char* name, const char* address) {
        const auto made = lab::parse_description(
            fmt::format("gaudis = 1\nhbm_pages = 2\nhcas = 1\nlink_layer = ethernet\naddress = {}\n",
                        address),
            name);
        ASSERT_TRUE(made) << made.error().text;
        const auto entered = lab::folder::enter(name, *made);
        ASSERT_TRUE(entered) << entered.error().text;
        ::setenv("GAUDI_LAB", name, 1);
    }
    void SetUp() override {
        shared = static_cast<address*>(
            ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    }
    void TearDown() override {
        ::munmap(shared, 4096);
        ::unsetenv("GAUDI_LAB");
        test_lab::TearDown();
    }

    using body = std::function<void(node&, ibv_qp*)>;
    // Connects a queue pair between the hosts, then runs `local_side` here and `remote_side` on the remote
    // host. Returns the exit status of the remote host.
    int on_both(const body& local_side, const body& remote_side, const qp_options& how = {},
                const connect_options& connection = {}) {
        return on_both(local_side, remote_side, how, connection, connection);
    }
    int on_both(const body& local_side, const body& remote_side, const qp_options& how,
                const connect_options& local_options, const connect_options& remote_options) {
        gate up, down;
        child other([&] {
            become_host("remote", "127.0.0.2");
            node there;
            const auto qp = there.make_qp(how);
            shared[1] = there.address_of(qp.get());
            up.open();
            if (!down.wait())
                return 90;
            connect(qp.get(), shared[1], shared[0], remote_options);
            up.open();
            remote_side(there, qp.get());
            return ::testing::Test::HasFailure() ? 91 : 0;
        });
        peer = &other;
        EXPECT_TRUE(up.wait());
        become_host("local", "127.0.0.1");
        {
            node here;
            const auto qp = here.make_qp(how);
            shared[0] = here.address_of(qp.get());
            connect(qp.get(), shared[0], shared[1], local_options);
            down.open();
            EXPECT_TRUE(up.wait());
            local_side(here, qp.get());
        }
        const int status = other.wait();
        peer = nullptr;
        return status;
    }
    const address& remote() const { return shared[1]; }
    // The remote host calls stay(), which waits for say_done() of the local host.
    void say_done() { say(1); }
    void stay() { EXPECT_TRUE(is_said(1)); }
    // One host announces a step with say(), the other waits for it with is_said().
    void say(std::uint32_t step) { std::atomic_ref(shared[2].psn).store(step); }
    bool step_reached(std::uint32_t step) { return std::atomic_ref(shared[2].psn).load() >= step; }
    bool is_said(std::uint32_t step) {
        for (int i = 0; i < 20000 && !step_reached(step); ++i)
            ::usleep(1000);
        return step_reached(step);
    }

    address* shared = nullptr;
    child* peer = nullptr;
};

} // namespace testing_support
