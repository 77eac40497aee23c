// SPDX-License-Identifier: BSD-3-Clause
// Errors of a peer or of its memory, as UCX itself reports them: ucp_errors checks the data, the statuses and
// the error handlers.
#include "tests/ucx/ucx_fixture.hpp"

namespace {

using namespace testing_support;

class errors_test : public ucx_test {
protected:
    program_result trouble(const std::string& version, const std::string& transports, const std::string& what,
                           std::vector<std::string> environment = {}, int nics = 1) {
        describe_lab(fmt::format("gaudis = 3\nhcas = {}\n", nics)); // one Gaudi a process
        // UCX sends keep-alive messages every 100 ms; with rc they are datagrams.
        environment.insert(environment.end(), {fmt::format("UCX_TLS={},gaudi_cpy", transports),
                                               devices_for(transports), "UCX_KEEPALIVE_INTERVAL=100ms"});
        if (transports.ends_with("_v"))
            environment.emplace_back(what.starts_with("killed") ? "UCX_UD_VERBS_TIMEOUT=1s"
                                                                : "UCX_UD_VERBS_TIMEOUT=4s");
        if (transports.starts_with("posix"))
            environment.emplace_back("UCX_POSIX_ERROR_HANDLING=y");
        return run(prefix_of(version), fmt::format("{} {}", UCP_ERRORS, what), environment);
    }
    // A fault script: this submission of the process that loads it resets the device.
    std::string reset_at(int submission) {
        std::ofstream(root() / "faults") << fmt::format("hlthunk_command_submission {} reset\n", submission);
        return "@" + (root() / "faults").string();
    }
    static std::ptrdiff_t errors_in(const std::string& output) {
        const std::regex line("GAUDI ERROR");
        return std::distance(std::sregex_iterator(output.begin(), output.end(), line), {});
    }
    // The last output of the active process, if all else was right.
    static void expect_only_a_failed(const program_result& done) {
        EXPECT_EQ(done.status, 0) << done.output;
        EXPECT_HAS(done.output, "a put and a message to B: right\nall right\n");
    }
    // `lines` is a regular expression: several statuses are possible.
    static void expect_match(const program_result& done, const std::string& lines) {
        EXPECT_TRUE(std::regex_search(done.output, std::regex(lines + "\n"))) << lines << "\n" << done.output;
    }
};

// A peer ended: the transport reports the first status, the keep-alive, which may be earlier, the second.
constexpr const char* peer_gone = "(Connection reset by remote peer|Endpoint timeout)";

class both_versions_of_errors : public errors_test, public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(ucx, both_versions_of_errors, ::testing::Values("1.22", "1.23"),
                         [](const auto& each) { return name_of(each.param); });

struct killing {
    const char* version;
    const char* transports;
};
void PrintTo(const killing& what, std::ostream* out) {
    *out << what.version << ' ' << what.transports;
}
class killed_peer : public errors_test, public ::testing::WithParamInterface<killing> {};
INSTANTIATE_TEST_SUITE_P(over, killed_peer,
                         ::testing::Values(killing{"1.22", "tcp"}, killing{"1.23", "tcp"},
                                           killing{"1.22", "posix,cma"}, killing{"1.23", "posix,cma"},
                                           killing{"1.23", "rc_v"}, killing{"1.23", "ud_v"},
                                           killing{"1.22", "posix,gaudi_ipc"},
                                           killing{"1.23", "posix,gaudi_ipc"}),
                         [](const auto& each) {
                             return name_of(fmt::format("{} {}", each.param.version, each.param.transports));
                         });

TEST_P(killed_peer, ends_its_requests_and_no_other_with_an_error) {
    const auto done = trouble(GetParam().version, GetParam().transports, "killed");
    expect_only_a_failed(done);
    expect_match(done, "the message to A: (Connection reset by remote peer|Endpoint timeout|"
                       "Endpoint is not connected|Input/output error|Request canceled)\n"
                       "the handler of A: (Connection reset by remote peer|Endpoint timeout|"
                       "Endpoint is not connected|Input/output error)");
}

// The result of a put that must fail: the transport reports an error, and the endpoint stays usable or not.
// Where UCX sends the put as messages, it cannot report an error to the sender and aborts the target process.
struct put_error {
    const char* version;
    const char* transports;
    const char* outside;
    const char* freed;
    const char* then;
};
void PrintTo(const put_error& what, std::ostream* out) {
    *out << what.version << ' ' << what.transports;
}
class failing_put : public errors_test, public ::testing::WithParamInterface<put_error> {
protected:
    program_result put(const std::string& what) {
        return trouble(GetParam().version, GetParam().transports, what + " --then " + GetParam().then);
    }
    [[nodiscard]] static bool staged() { return GetParam().then == std::string_view("process_ends"); }
    // The plugin logs the cause in one line, and UCX that it aborts the process.
    static void expect_the_target_said_why(const program_result& done, const char* why) {
        if (!staged())
            return;
        EXPECT_EQ(errors_in(done.output), 1) << done.output;
        EXPECT_HAS(done.output, why);
        EXPECT_HAS(done.output, "Fatal: mem type unpack failed to uct_ep_put_short() Address not valid\n");
        expect_match(done, fmt::format("the handler of A: {}", peer_gone));
    }
};
std::string name_of_put(const ::testing::TestParamInfo<put_error>& each) {
    return name_of(fmt::format("{} {}", each.param.version, each.param.transports));
}
INSTANTIATE_TEST_SUITE_P(over, failing_put,
                         ::testing::Values(put_error{"1.23", "rc_v", "Connection reset by remote peer",
                                                     "Connection reset by remote peer", "endpoint_ends"},
                                           put_error{"1.22", "posix,gaudi_ipc", "Address not valid",
                                                     "Invalid parameter", "endpoint_lives"},
                                           put_error{"1.23", "posix,gaudi_ipc", "Address not valid",
                                                     "Invalid parameter", "endpoint_lives"},
                                           put_error{"1.22", "tcp", peer_gone, peer_gone, "process_ends"},
                                           put_error{"1.23", "tcp", peer_gone, peer_gone, "process_ends"},
                                           // Over shared memory a flush may complete before the abort.
                                           put_error{"1.22", "posix,cma", ".*", ".*", "process_ends"},
                                           put_error{"1.23", "posix,cma", ".*", ".*", "process_ends"}),
                         name_of_put);

// labels: waits
INSTANTIATE_TEST_SUITE_P(slowly, failing_put,
                         ::testing::Values(put_error{"1.23", "ud_v", ".*", ".*", "process_ends"}),
                         name_of_put);

TEST_P(failing_put, beyond_its_key_is_an_error) {
    const auto done = put("outside");
    expect_only_a_failed(done);
    expect_match(done, fmt::format("the put beyond A's memory: {}", GetParam().outside));
    expect_the_target_said_why(done, "a range that ends outside its allocation");
}

TEST_P(failing_put, before_its_key_is_an_error) {
    const auto done = put("before");
    expect_only_a_failed(done);
    expect_match(done, fmt::format("the put before A's memory: {}", GetParam().outside));
    expect_the_target_said_why(done, "");
}

TEST_P(failing_put, to_freed_memory_is_an_error) {
    const auto done = put("freed");
    expect_only_a_failed(done);
    expect_match(done, fmt::format("the put to freed memory: {}", GetParam().freed));
    expect_the_target_said_why(done, "no live allocation at this address");
}

// Only where a key is checked: UCX writes messages to whatever is allocated there now, as with host memory.
TEST_P(failing_put, to_freed_memory_spares_its_successor) {
    if (staged())
        GTEST_SKIP() << "UCX looks at no key here (gotcha U5)";
    const auto done = put("reused");
    expect_only_a_failed(done);
    expect_match(done, fmt::format("the put to freed memory: {}", GetParam().freed));
}

TEST_P(failing_put, from_a_device_that_was_reset_is_an_error) {
    if (staged()) {
        const auto done = trouble(GetParam().version, GetParam().transports,
                                  "reset --then self_ends --faults " + reset_at(20));
        EXPECT_EQ(done.status, 0) << done.output;
        EXPECT_HAS(done.output, "Fatal: mem type pack failed to uct_ep_get_short() Input/output error\n");
        EXPECT_HAS(done.output, "A: the peer is gone\n");
        return;
    }
    const auto done = put("reset --faults " + reset_at(20));
    expect_only_a_failed(done);
    EXPECT_HAS(done.output, "the put from a device that was reset: Input/output error\n");
}

// A and B are on another virtual host.
TEST_F(errors_test, a_put_outside_a_key_between_hosts_is_an_error) {
    for (const auto& [name, address] : {std::pair("local", "127.0.0.1"), std::pair("remote", "127.0.0.2")}) {
        std::ofstream(root() / (name + std::string(".lab")))
            << fmt::format("gaudis = 2\nhcas = 1\nlink_layer = ethernet\naddress = {}\n", address);
        const auto made =
            run_program(in_lab(fmt::format("--lab {0} --config {1}/{0}.lab", name, root().string()), "true"),
                        without_hlthunk);
        ASSERT_EQ(made.status, 0) << made.output;
    }
    for (const std::string what : {"outside", "before", "freed", "reused"}) {
        SCOPED_TRACE(what);
        const auto done = run_program(
            in_lab(fmt::format("--lab local --config {}/local.lab --ucx {}", root().string(), new_ucx),
                   fmt::format("{} {} --lab-of-others remote", UCP_ERRORS, what)),
            {"GAUDI_DIRECT_HLTHUNK", "UCX_TLS=rc_v,gaudi_cpy", "UCX_NET_DEVICES=vhca0:1",
             "UCX_KEEPALIVE_INTERVAL=100ms", "UCX_UD_VERBS_TIMEOUT=4s"});
        expect_only_a_failed(done);
        expect_match(done, "the put .*: Connection reset by remote peer");
    }
}

TEST_P(both_versions_of_errors, a_corrupted_key_is_refused_alone) {
    const auto done = trouble(GetParam(), "posix,gaudi_ipc", "corrupted --key-begins 1GDH");
    expect_only_a_failed(done);
    const std::regex line("unpacking a corrupted key: Invalid parameter\n");
    EXPECT_EQ(std::distance(std::sregex_iterator(done.output.begin(), done.output.end(), line), {}), 3)
        << done.output;
    EXPECT_EQ(errors_in(done.output), 3) << done.output;
}

// ---- a device reset with operations in flight ----

// UCX stages in fragments, which the engine copies here: the reset hits one of them.
class reset_under_staging : public errors_test, public ::testing::WithParamInterface<killing> {
protected:
    program_result message(const std::string& more) {
        return trouble(GetParam().version, GetParam().transports,
                       fmt::format("in_flight --faults {} {}", reset_at(600), more),
                       {"UCX_GAUDI_COPY_NIC_MAX=0"});
    }
};
INSTANTIATE_TEST_SUITE_P(over, reset_under_staging,
                         ::testing::Values(killing{"1.22", "tcp"}, killing{"1.23", "tcp"},
                                           killing{"1.22", "posix,cma"}, killing{"1.23", "posix,cma"}),
                         [](const auto& each) {
                             return name_of(fmt::format("{} {}", each.param.version, each.param.transports));
                         });

TEST_P(reset_under_staging, of_the_receiver_fails_both_sides) {
    const auto done = message("--faulty A --then process_ends");
    expect_only_a_failed(done);
    expect_match(done, fmt::format("the message under the reset: {0}\nthe handler of A: {0}", peer_gone));
    EXPECT_EQ(errors_in(done.output), 1) << done.output;
    EXPECT_HAS(done.output, "Fatal: mem type unpack failed");
}

TEST_P(reset_under_staging, of_the_sender_ends_it_and_no_other) {
    const auto done = message("--then self_ends");
    EXPECT_EQ(done.status, 0) << done.output;
    EXPECT_HAS(done.output, "Fatal: mem type pack failed");
    EXPECT_HAS(done.output, "A: the peer is gone\n");
    EXPECT_HAS(done.output, "B: the peer is gone\n");
}

// For endpoints without error handling UCX uses pipelined rendezvous and ignores the status of its copies:
// nothing hangs or aborts, and the plugin logs the consequence.
TEST_P(both_versions_of_errors, a_reset_during_a_pipeline_is_only_logged) {
    for (const auto* whose : {"A", "active"}) {
        SCOPED_TRACE(whose);
        const auto done =
            trouble(GetParam(), "posix,cma",
                    fmt::format("in_flight --careless --faults {} --faulty {}", reset_at(600), whose),
                    {"UCX_GAUDI_COPY_NIC_MAX=0"});
        expect_only_a_failed(done);
        EXPECT_HAS(done.output, "the device failed or was reset (device lost)");
        EXPECT_HAS(done.output, "UCX does not check the end of copies that it stages messages with");
        EXPECT_EQ(errors_in(done.output), 2) << done.output;
        EXPECT_TRUE(std::regex_search(
            done.output, std::regex("the message under the reset: Success; its receiver: Success\n")))
            << done.output;
    }
}

// gaudi_ipc copies with both devices in turn: over the four runs, each of the two is lost.
TEST_P(both_versions_of_errors, a_reset_under_ipc_is_an_error_of_the_put) {
    std::string all;
    for (const int at : {40, 41, 42, 43}) {
        SCOPED_TRACE(at);
        const auto done = trouble(GetParam(), "posix,gaudi_ipc", "putting --faults " + reset_at(at), {}, 0);
        expect_only_a_failed(done);
        EXPECT_HAS(done.output, "the put under the reset: Input/output error\n");
        EXPECT_EQ(errors_in(done.output), 1) << done.output;
        all += done.output;
    }
    EXPECT_HAS(all, "lost: the device of A\n");
    EXPECT_HAS(all, "lost: the device of the active process\n");
}

TEST_F(errors_test, a_reset_under_puts_of_a_nic_takes_nothing_from_them) {
    const auto done = trouble("1.23", "rc_v", "past_the_device --faults " + reset_at(40));
    expect_only_a_failed(done);
    EXPECT_HAS(done.output, "device lost");
    EXPECT_HAS(done.output, "puts under the reset: right\n");
}

} // namespace
