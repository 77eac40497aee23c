// SPDX-License-Identifier: BSD-3-Clause
// Facts go over TCP, so that a missing fabric can be explained; then a connection of the library carries
// messages of 4 MiB in both directions, from host memory and from Gaudi memory.
#include "tools/doctor/peer.hpp"

#include "tools/doctor/checks.hpp"
#include "tools/doctor/json_stream.hpp"
#include "tools/doctor/pattern.hpp"

#include <gaudi/gaudi.hpp>

#include <algorithm>
#include <chrono>
#include <fmt/format.h>

namespace tools::doctor {
namespace {

using note = nlohmann::json; // what goes over TCP
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr unsigned rounds = 4;
constexpr auto answer_limit = milliseconds(20000);

// What this side has for transfers: a NIC, host memory, and where a Gaudi is free, its memory.
class own_end {
public:
    explicit own_end(const std::vector<gaudi::device_info>& devices) : host_(message_bytes) {
        gaudi::nic_choice choice;
        if (!devices.empty()) {
            choice.near_to = devices.front();
            const auto nics = gaudi::list_nics();
            choice.needs_dmabuf = nics && std::ranges::any_of(*nics, &gaudi::nic_info::moves_device_memory);
        }
        auto opened = gaudi::open_nic(choice);
        auto region = opened ? (*opened)->region(host_) : tl::unexpected(opened.error());
        if (!region) {
            problem_ = region.error().observed();
            return;
        }
        nic_ = *opened;
        on_host_ = *region;
        for (const auto& info : devices)
            if (auto device = gaudi::open_device(gaudi::by_index{info.index}); device && (*device)->copies())
                if (auto buffer = (*device)->heap().allocate(message_bytes))
                    if (auto direct =
                            nic_->region(**device, *buffer, gaudi::path_policy::require_zero_copy)) {
                        device_ = *device;
                        buffer_ = std::move(*buffer);
                        on_device_ = *direct;
                        break;
                    }
    }
    [[nodiscard]] const std::shared_ptr<gaudi::nic>& nic() const { return nic_; }
    [[nodiscard]] const std::string& problem() const { return problem_; }
    [[nodiscard]] bool has_device() const { return device_ != nullptr; }
    [[nodiscard]] const gaudi::local_region& region(bool of_device) const {
        return of_device ? on_device_ : on_host_;
    }
    void put(bool to_device, const std::vector<std::byte>& data) {
        if (to_device)
            gaudi::expect(
                gaudi::expect(gaudi::expect(device_->copies()).write(buffer_.address(), data)).wait());
        else
            host_ = data;
    }
    [[nodiscard]] bool holds(bool on_device, const std::vector<std::byte>& data) const {
        if (!on_device)
            return host_ == data;
        std::vector<std::byte> seen(message_bytes);
        gaudi::expect(gaudi::expect(gaudi::expect(device_->copies()).read(seen, buffer_.address())).wait());
        return seen == data;
    }
    [[nodiscard]] note facts() const {
        note all = {{"doctor", 1},
                    {"version", gaudi::version()},
                    {"ucx", ucx_version()},
                    {"gaudi", has_device()},
                    {"problem", problem_}};
        if (nic_) {
            const auto& info = nic_->info();
            all["nic"] = {{"name", fmt::format("{}:{}", info.name, info.port)},
                          {"ethernet", info.link_layer == gaudi::link_layer::ethernet},
                          {"gbps", info.gbps},
                          {"mtu", info.mtu},
                          {"gid", nic_->gid_text()}};
        }
        return all;
    }

private:
    std::shared_ptr<gaudi::nic> nic_;
    std::string problem_;
    std::vector<std::byte> host_; // never resized: it is registered
    gaudi::local_region on_host_, on_device_;
    std::shared_ptr<gaudi::device> device_;
    gaudi::device_buffer buffer_;
};

const char* network(const note& nic) {
    return nic.at("ethernet").get<bool>() ? "Ethernet" : "InfiniBand";
}

std::string text_of(const note& nic) {
    return fmt::format("{} ({} {:g} Gbit/s, GID {})", nic.at("name").get<std::string>(), network(nic),
                       nic.at("gbps").get<double>(), nic.at("gid").get<std::string>());
}

// The type of a RoCE GID, as far as its text shows it.
std::string kind_of_gid(const note& nic) {
    const auto gid = nic.at("gid").get<std::string>();
    return gid.starts_with("::ffff:") ? "IPv4" : gid.starts_with("fe80:") ? "link-local" : "IPv6";
}

// What the two sides say of themselves. False: a transfer makes no sense.
bool compare_facts(report& into, const std::string& peer, const note& here, const note& there) {
    if (here.at("version") != there.at("version"))
        into.warning("peer.version", peer,
                     fmt::format("gaudi-direct {} here, {} there", here.at("version").get<std::string>(),
                                 there.at("version").get<std::string>()),
                     "install the same version on both");
    else
        into.good("peer.version", peer, "gaudi-direct " + here.at("version").get<std::string>());
    if (const auto ucx = there.at("ucx").get<std::string>(); ucx.empty())
        into.unknown("peer.ucx", peer, "no UCX is found there", "run its doctor where the program runs");
    else if (ucx.starts_with("1.") && std::atoi(ucx.c_str() + 2) < 21)
        into.warning("peer.ucx", peer, "UCX " + ucx,
                     "use UCX 1.21 or newer there: an older one must not be sent keys of Gaudi memory");
    else
        into.good("peer.ucx", peer, "UCX " + ucx);
    for (const auto* side : {&here, &there})
        if (!side->contains("nic")) {
            into.broken("peer.nic", side == &here ? "this side" : peer,
                        side->at("problem").get<std::string>(),
                        "run doctor on that side alone: it says what is missing");
            return false;
        }
    const auto &own = here.at("nic"), &other = there.at("nic");
    const auto both = fmt::format("{} here, {} there", text_of(own), text_of(other));
    if (own.at("ethernet") != other.at("ethernet")) {
        into.broken("peer.fabric", peer, both, "use NICs of one fabric");
        return false;
    }
    into.good("peer.fabric", peer, both);
    if (own.at("ethernet").get<bool>() && kind_of_gid(own) != kind_of_gid(other))
        into.warning("peer.gid", peer, fmt::format("GIDs of unlike types: {}", both),
                     "choose GIDs of one type on both sides (--gid-index, UCX_IB_GID_INDEX)");
    else
        into.good("peer.gid", peer, "GIDs of one type");
    if (own.at("mtu") != other.at("mtu"))
        into.warning("peer.mtu", peer,
                     fmt::format("MTU {} here, {} there: the smaller one is used",
                                 own.at("mtu").get<unsigned>(), other.at("mtu").get<unsigned>()),
                     "set the same MTU on both NICs and on the switch");
    else
        into.good("peer.mtu", peer, fmt::format("MTU {}", own.at("mtu").get<unsigned>()));
    return true;
}

// ---- the transfers; commands and answers go over TCP ----

struct outcome_of_transfer {
    std::string error; // empty: every byte is right
    double gigabytes = 0;
};

double seconds_since(steady_clock::time_point begin) {
    return std::chrono::duration<double>(steady_clock::now() - begin).count();
}

gaudi::result<void> post_and_wait(gaudi::result<gaudi::transfer> posted) {
    if (!posted)
        return tl::unexpected(posted.error());
    auto ended = posted->wait(answer_limit);
    return ended ? gaudi::result<void>() : tl::unexpected(ended.error());
}

// The answering side: receives or sends one message as it was told.
note carry_out(own_end& end, gaudi::connection& link, json_stream& line, const note& order) {
    const bool of_device = order.value("gaudi", false) && end.has_device();
    const auto data = pattern(order.value("seed", 0U));
    gaudi::result<void> done;
    double seconds = 0; // of a send: from the post to the acknowledgement of the other NIC
    if (order.value("do", "") == "send") {
        end.put(of_device, data);
        const auto begin = steady_clock::now();
        done = post_and_wait(link.send(end.region(of_device)));
        seconds = seconds_since(begin);
    } else {
        end.put(of_device, std::vector<std::byte>(message_bytes));
        auto receiving = link.receive(end.region(of_device));
        line.send({{"ready", true}});
        done = post_and_wait(std::move(receiving));
    }
    if (!done)
        return {{"error", done.error().message()}};
    const bool right = end.holds(of_device, data);
    return {{"error", right ? "" : "bytes arrived wrong there"}, {"seconds", seconds}};
}

// The asking side: one direction, several rounds.
outcome_of_transfer move(own_end& end, gaudi::connection& link, json_stream& line, bool outwards,
                         bool of_device, unsigned seed) {
    outcome_of_transfer result;
    for (unsigned round = 0; round < rounds && result.error.empty(); ++round) {
        const auto data = pattern(seed + round);
        const note order = {
            {"do", outwards ? "receive" : "send"}, {"gaudi", of_device}, {"seed", seed + round}};
        end.put(of_device, outwards ? data : std::vector<std::byte>(message_bytes));
        gaudi::result<void> done;
        double seconds = 0;
        if (outwards) {
            if (!line.send(order) || !line.receive())
                return {"the other doctor left", 0};
            const auto begin = steady_clock::now();
            done = post_and_wait(link.send(end.region(of_device)));
            seconds = seconds_since(begin);
        } else {
            auto receiving = link.receive(end.region(of_device));
            if (!line.send(order))
                return {"the other doctor left", 0};
            done = post_and_wait(std::move(receiving));
        }
        const auto answer = line.receive();
        if (!done)
            result.error = done.error().message();
        else if (!answer)
            result.error = "the other doctor left";
        else if (result.error = answer->value("error", "");
                 result.error.empty() && !outwards && !end.holds(of_device, data))
            result.error = "bytes arrived wrong here";
        if (result.error.empty())
            result.gigabytes =
                std::max(result.gigabytes, static_cast<double>(message_bytes) /
                                               (outwards ? seconds : answer->value("seconds", 1e9)) / 1e9);
    }
    return result;
}

void check_transfers(report& into, const std::string& peer, own_end& end, gaudi::connection& link,
                     json_stream& line, bool gaudi_there) {
    for (const bool of_device : {false, true}) {
        const char* const check = of_device ? "peer.gaudi_transfer" : "peer.host_transfer";
        if (of_device && (!end.has_device() || !gaudi_there)) {
            into.unknown(check, peer,
                         fmt::format("no Gaudi is free for it {}", end.has_device() ? "there" : "here"),
                         "run both doctors when one is free on each side");
            continue;
        }
        double rates[2] = {};
        std::string error;
        for (const bool outwards : {true, false})
            if (error.empty()) {
                const auto moved = move(end, link, line, outwards, of_device, outwards ? 100 : 200);
                error = moved.error;
                rates[outwards ? 0 : 1] = moved.gigabytes;
            }
        const auto what = of_device ? "HBM to HBM" : "host memory to host memory";
        if (!error.empty()) {
            into.broken(
                check, peer, fmt::format("{}: {}", what, error),
                error.starts_with("bytes arrived wrong")
                    ? pcie_remedy
                    : "packets do not pass: for RoCE open UDP port 4791, use one MTU, and compare the "
                      "VLANs of both NICs");
            return;
        }
        into.good(check, peer,
                  fmt::format("{}, every byte right, {:.1f} GB/s there, {:.1f} GB/s back", what, rates[0],
                              rates[1]));
    }
}

void ask(report& into, const std::string& peer, const std::string& host, json_stream& line,
         const std::vector<gaudi::device_info>& devices) {
    own_end end(devices);
    const auto here = end.facts();
    line.send(here);
    const auto there = line.receive();
    if (!there || there->value("doctor", 0) != 1) {
        into.broken("peer.reachable", peer, "what listens there is no doctor",
                    "start gaudi-direct doctor --serve there, of this version");
        return;
    }
    into.good("peer.reachable", peer, "a doctor answers");
    if (!compare_facts(into, peer, here, *there))
        return;
    gaudi::connection_options options;
    options.deadline = milliseconds(10000);
    auto link = gaudi::connect(end.nic(), fmt::format("{}:{}", host, there->value("port", 0)), options);
    if (!link) {
        into.broken("peer.connection", peer, link.error().observed(), std::string(link.error().remedy()));
        return;
    }
    check_transfers(into, peer, end, *link, line, there->value("gaudi", false));
}

// Answers until the peer leaves; empty: nothing failed.
std::string answer_orders(own_end& end, gaudi::connection& link, json_stream& line, unsigned& messages) try {
    std::string error;
    while (error.empty()) {
        const auto order = line.receive();
        if (!order)
            break;
        const auto answer = carry_out(end, link, line, *order);
        error = answer["error"].get<std::string>();
        line.send(answer);
        ++messages;
    }
    return error;
} catch (const std::exception& error) { // another version's words, or a device that was lost
    return error.what();
}

} // namespace

void check_peer(report& into, const std::string& peer, const std::vector<gaudi::device_info>& devices) {
    const auto colon = peer.rfind(':');
    const bool names_port = colon != peer.npos && peer.find(':') == colon;
    const auto host = peer.substr(0, names_port ? colon : peer.npos);
    const auto port = names_port ? peer.substr(colon + 1) : std::to_string(default_doctor_port);
    std::string why;
    auto line = json_stream::connect(host, port, why);
    if (!line) {
        into.broken("peer.reachable", peer, why,
                    fmt::format("start gaudi-direct doctor --serve there, and open TCP port {}", port));
        return;
    }
    try {
        ask(into, peer, host, *line, devices);
    } catch (const note::exception& error) { // another version's words
        into.broken("peer.version", peer, fmt::format("the other doctor's answer: {}", error.what()),
                    "install the same version on both");
    }
}

bool serve_peer(std::uint16_t port, const std::vector<gaudi::device_info>& devices) {
    fmt::print("waiting at TCP port {} for gaudi-direct doctor --peer\n", port);
    std::fflush(stdout);
    std::string why;
    auto line = json_stream::accept(port, why);
    if (!line) {
        fmt::print(stderr, "gaudi-direct doctor: {}; name another port with --port\n", why);
        return false;
    }
    fmt::print("a doctor of {} connected\n", line->peer());
    own_end end(devices);
    auto door = gaudi::listener::open(0);
    if (!line->receive() || !door) {
        fmt::print("{} left, or is no doctor\n", line->peer());
        return false;
    }
    auto facts = end.facts();
    facts["port"] = door->port();
    line->send(facts);
    if (!end.nic()) {
        fmt::print("nothing to answer with: {}\n", end.problem());
        return false;
    }
    gaudi::connection_options options;
    options.deadline = milliseconds(10000);
    auto link = door->accept(end.nic(), answer_limit, options);
    unsigned messages = 0;
    const auto error = link ? answer_orders(end, *link, *line, messages) : link.error().message();
    fmt::print("{} messages of {} MiB with {}{}{}\n", messages, message_bytes >> 20, line->peer(),
               error.empty() ? "" : "; ", error);
    return error.empty() && messages != 0;
}

} // namespace tools::doctor
