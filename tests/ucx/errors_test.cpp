// SPDX-License-Identifier: BSD-3-Clause
// What goes wrong with a peer or with its memory, as UCX itself reports it: ucp_errors checks the data, the
// statuses and the handlers.
#include "tests/ucx/ucx_fixture.hpp"

namespace {

using namespace testing_support;

class errors_test : public ucx_test {
protected:
    program_result trouble(const std::string& version, const std::string& transports,
                           const std::string& what) {
        describe_lab("gaudis = 3\nhcas = 1\n"); // for three processes
        // A peer that says nothing is looked after: every 100 ms, and with rc by datagrams.
        std::vector<std::string> environment = {fmt::format("UCX_TLS={},gaudi_cpy", transports),
                                                devices_for(transports), "UCX_KEEPALIVE_INTERVAL=100ms"};
        if (transports == "rc_v")
            environment.emplace_back("UCX_UD_VERBS_TIMEOUT=1s");
        if (transports.starts_with("posix"))
            environment.emplace_back("UCX_POSIX_ERROR_HANDLING=y");
        return run(prefix_of(version), fmt::format("{} {}", UCP_ERRORS, what), environment);
    }
    // The active side's last words, after everything else was right.
    static void expect_only_a_failed(const program_result& done) {
        EXPECT_EQ(done.status, 0) << done.output;
        EXPECT_HAS(done.output, "a put and a message to B: right\nall right\n");
    }
};

struct killing {
    const char* version;
    const char* transports;
};
class killed_peer : public errors_test, public ::testing::WithParamInterface<killing> {};
INSTANTIATE_TEST_SUITE_P(over, killed_peer,
                         ::testing::Values(killing{"1.22", "tcp"}, killing{"1.23", "tcp"},
                                           killing{"1.22", "posix,cma"}, killing{"1.23", "posix,cma"},
                                           killing{"1.23", "rc_v"}, killing{"1.22", "posix,gaudi_ipc"},
                                           killing{"1.23", "posix,gaudi_ipc"}),
                         [](const auto& each) {
                             return name_of(fmt::format("{} {}", each.param.version, each.param.transports));
                         });

TEST_P(killed_peer, ends_its_requests_and_no_other_with_an_error) {
    const auto done = trouble(GetParam().version, GetParam().transports, "killed");
    expect_only_a_failed(done);
    EXPECT_TRUE(std::regex_search(
        done.output, std::regex("the message to A: (Connection reset by remote peer|Endpoint timeout|"
                                "Endpoint is not connected|Input/output error|Request canceled)\n"
                                "the handler of A: (Connection reset by remote peer|Endpoint timeout|"
                                "Endpoint is not connected|Input/output error)\n")))
        << done.output;
}

// What the transport says of a put that it cannot carry out, and whether the endpoint works on.
struct put_error {
    const char* version;
    const char* transports;
    const char* outside;
    const char* freed;
    bool outlives;
};
constexpr const char* queue_pair_ends = "Connection reset by remote peer";
class failing_put : public errors_test, public ::testing::WithParamInterface<put_error> {
protected:
    program_result put(const std::string& what) {
        return trouble(GetParam().version, GetParam().transports,
                       what + (GetParam().outlives ? " --outlives" : ""));
    }
};
INSTANTIATE_TEST_SUITE_P(
    over, failing_put,
    ::testing::Values(put_error{"1.23", "rc_v", queue_pair_ends, queue_pair_ends, false},
                      put_error{"1.22", "posix,gaudi_ipc", "Address not valid", "Invalid parameter", true},
                      put_error{"1.23", "posix,gaudi_ipc", "Address not valid", "Invalid parameter", true}),
    [](const auto& each) {
        return name_of(fmt::format("{} {}", each.param.version, each.param.transports));
    });

TEST_P(failing_put, that_leaves_the_range_of_its_key_is_an_error_and_writes_nothing_there) {
    const auto done = put("outside");
    expect_only_a_failed(done);
    EXPECT_HAS(done.output, fmt::format("the put beyond A's memory: {}\n", GetParam().outside));
}

TEST_P(failing_put, to_memory_that_was_freed_is_an_error_and_spares_what_came_after) {
    const auto done = put("freed");
    expect_only_a_failed(done);
    EXPECT_HAS(done.output, fmt::format("the put to freed memory: {}\n", GetParam().freed));
}

TEST_P(failing_put, from_a_device_that_was_reset_is_an_error) {
    std::ofstream(root() / "faults") << "hlthunk_command_submission 20 reset\n";
    const auto done = put(fmt::format("reset --faults @{}", (root() / "faults").string()));
    expect_only_a_failed(done);
    EXPECT_HAS(done.output, "the put from a device that was reset: Input/output error\n");
}

} // namespace
