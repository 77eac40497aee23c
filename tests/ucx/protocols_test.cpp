// SPDX-License-Identifier: BSD-3-Clause
// Rendezvous schemes that a user forces: the data is right, and UCX reports the scheme that it used. The two
// sides are two programs, because the side that executes a scheme chooses it.
#include "tests/ucx/ucx_fixture.hpp"

namespace {

using namespace testing_support;

constexpr std::uint64_t message_size = 9 << 20;

// UCX prints (?) first where the peer makes the final choice.
struct scheme {
    const char* name;
    const char* version;
    const char* transports;
    const char* sender;   // settings
    const char* receiver; // settings
    const char* more;     // options of ucp_peers
    const char* sender_says;
    const char* receiver_says = nullptr; // nullptr: not checked
    const char* sender_does = nullptr;   // nullptr: not checked
};

std::uint64_t bytes_of(const std::string& shown) {
    if (shown == "inf")
        return UINT64_MAX;
    std::size_t end = 0;
    const auto number = std::stoull(shown, &end);
    const auto unit = std::string_view("KMG").find(shown[std::min(end, shown.size() - 1)]);
    return end == shown.size() ? number : number << 10 * (unit + 1);
}

// The description of a size in the table with this title, from the output of UCX_PROTO_INFO.
std::string taken(const std::string& output, const std::string& title, std::uint64_t size) {
    // Tables of used protocols have one more column, a count.
    const std::regex row(R"(\| +(?:\d+ +\| +)?(\d+[KMG]?)(?:\.\.(\w+))? +\| (.*?) *\| [^|]*\|$)");
    std::istringstream lines(output);
    std::smatch match;
    bool inside = false;
    for (std::string line; std::getline(lines, line);) {
        if (line.find(" ucp_context_") != line.npos)
            inside = false;
        else if (line.find("| " + title) != line.npos)
            inside = true;
        else if (inside && std::regex_search(line, match, row) && bytes_of(match[1]) <= size &&
                 size <= bytes_of(match[2].matched ? match[2] : match[1]))
            return match[3];
    }
    return "no table, or no row for this size";
}

class forced_scheme : public ucx_test, public ::testing::WithParamInterface<scheme> {};
INSTANTIATE_TEST_SUITE_P(
    ucx, forced_scheme,
    ::testing::Values(
        scheme{"put_pipeline_1_22", "1.22", "posix,cma", "put_ppln", "put_ppln", "",
               "(?) rendezvous pipeline gaudi_cpy, copy to attached, frag host, gaudi_cpy, frag host",
               "pipeline gaudi_cpy, copy to attached, frag host, gaudi_cpy, frag host"},
        scheme{"put_pipeline_1_23", "1.23", "posix,cma", "put_ppln", "put_ppln", "",
               "(?) rendezvous pipeline gaudi_cpy, copy to attached, frag host, gaudi_cpy, frag host",
               "pipeline gaudi_cpy, copy to attached, frag host, gaudi_cpy, frag host"},
        scheme{"get_pipeline_1_22", "1.22", "posix,cma", "get_zcopy", "get_ppln", "--here host",
               "(?) rendezvous zero-copy read from remote",
               "pipeline read from remote, gaudi_cpy, frag host"},
        scheme{"get_pipeline_1_23", "1.23", "posix,cma", "get_zcopy", "get_ppln", "--here host",
               "(?) rendezvous zero-copy read from remote",
               "pipeline read from remote, gaudi_cpy, frag host"},
        // With get_ppln forced at the sender, UCX finds no rendezvous scheme there and sends eagerly.
        scheme{"get_pipeline_at_the_sender_1_22", "1.22", "posix,cma", "get_ppln", "get_ppln", "",
               "multi-frag eager copy-in copy-out"},
        scheme{"put_pipeline_rc", "1.23", "rc_v", "put_ppln UCX_GAUDI_COPY_DMABUF=no",
               "put_ppln UCX_GAUDI_COPY_DMABUF=no", "",
               "(?) rendezvous pipeline gaudi_cpy, fenced write to remote, frag host, gaudi_cpy, frag host",
               "pipeline gaudi_cpy, fenced write to remote, frag host, gaudi_cpy, frag host"},
        scheme{"get_pipeline_rc", "1.23", "rc_v", "get_zcopy", "get_ppln UCX_GAUDI_COPY_DMABUF=no", "",
               "(?) rendezvous zero-copy read from remote",
               "pipeline read from remote, gaudi_cpy, frag host"},
        scheme{"put_zcopy_rc", "1.23", "rc_v", "put_zcopy", "put_zcopy", "",
               "(?) rendezvous zero-copy fenced write to remote", "(?) zero-copy fenced write to remote",
               "zero-copy fenced write to remote"},
        scheme{"get_zcopy_rc", "1.23", "rc_v", "get_zcopy", "get_zcopy", "",
               "(?) rendezvous zero-copy read from remote", "zero-copy read from remote"},
        scheme{"am_tcp_1_22", "1.22", "tcp", "am", "am", "", "(?) rendezvous fragmented copy-in copy-out",
               "(?) fragmented copy-in copy-out", "fragmented copy-in copy-out"},
        scheme{"am_tcp_1_23", "1.23", "tcp", "am", "am", "", "(?) rendezvous fragmented copy-in copy-out",
               "(?) fragmented copy-in copy-out", "fragmented copy-in copy-out"},
        scheme{"am_cma_1_22", "1.22", "posix,cma", "am", "am", "",
               "(?) rendezvous fragmented copy-in copy-out", "(?) fragmented copy-in copy-out",
               "fragmented copy-in copy-out"},
        scheme{"am_rc_staged", "1.23", "rc_v", "am UCX_GAUDI_COPY_DMABUF=no", "am UCX_GAUDI_COPY_DMABUF=no",
               "", "(?) rendezvous fragmented copy-in copy-out", "(?) fragmented copy-in copy-out",
               "fragmented copy-in copy-out"},
        scheme{"am_rc", "1.23", "rc_v", "am", "am", "", "(?) rendezvous zero-copy", "(?) zero-copy",
               "zero-copy"}),
    [](const auto& each) { return std::string(each.param.name); });

TEST_P(forced_scheme, is_taken_and_moves_every_byte) {
    const auto& how = GetParam();
    const auto port = free_port();
    const auto program = [&](const char* settings, const char* role, const char* info) {
        return lab(prefix_of(how.version),
                   fmt::format("env UCX_PROTO_INFO={} UCX_TLS={},gaudi_cpy UCX_NET_DEVICES=all "
                               "UCX_RNDV_THRESH=1k UCX_RNDV_SCHEME={} {} --operations tag,am --sizes {} "
                               "--rounds 1 {} --{} 127.0.0.1:{}",
                               info, how.transports, settings, UCP_PEERS, message_size, how.more, role,
                               port));
    };
    const auto run = [&](const char* info) {
        return run_both(program(how.receiver, "listen", info), program(how.sender, "connect", info), port);
    };
    const auto both = run("y");
    const auto &sender = both.client.output, &receiver = both.server.output;
    EXPECT_HAS(sender, fmt::format("active: {} bytes, all right", 2 * message_size));
    EXPECT_HAS(receiver, fmt::format("passive: {} bytes, all right", 2 * message_size));
    const std::string from = std::string_view(how.more).empty() ? "gaudi" : "host memory";
    EXPECT_EQ(taken(sender, "tagged message by ucp_tag_send* from " + from, message_size), how.sender_says)
        << sender;
    if (how.receiver_says != nullptr) {
        EXPECT_EQ(taken(receiver, "rendezvous data fetch into gaudi", message_size), how.receiver_says)
            << receiver;
    }
    if (how.sender_does != nullptr) {
        const auto used = run("used").client.output;
        EXPECT_EQ(taken(used, "rendezvous data send from gaudi", message_size), how.sender_does) << used;
    }
}

} // namespace
