// SPDX-License-Identifier: BSD-3-Clause
// What no file tells: whether bytes move. A connection through the NIC to itself carries a message
// from the device's memory into the device's memory.
#include "tools/doctor/checks.hpp"
#include "tools/doctor/pattern.hpp"

#include <gaudi/gaudi.hpp>

#include <algorithm>
#include <chrono>
#include <fmt/format.h>
#include <future>

namespace tools::doctor {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr auto transfer_limit = milliseconds(10000);

// Two ends of one connection, both of this thread.
struct both_ends {
    gaudi::connection left, right;

    static gaudi::result<both_ends> connect(const std::shared_ptr<gaudi::nic>& through) {
        auto door = gaudi::listener::open(0, "127.0.0.1");
        if (!door)
            return tl::unexpected(door.error());
        gaudi::connection_options options;
        options.deadline = milliseconds(5000);
        auto accepted = std::async(std::launch::async,
                                   [&] { return door->accept(through, milliseconds(6000), options); });
        auto left = gaudi::connect(through, fmt::format("127.0.0.1:{}", door->port()), options);
        auto right = accepted.get();
        if (!left || !right)
            return tl::unexpected(left ? right.error() : left.error());
        return both_ends{std::move(*left), std::move(*right)};
    }
    gaudi::result<void> carry(const gaudi::local_region& from, const gaudi::local_region& to) {
        auto in = right.receive(to);
        auto out = in ? left.send(from) : tl::unexpected(in.error());
        if (!out)
            return tl::unexpected(out.error());
        const auto deadline = steady_clock::now() + transfer_limit;
        while (!(in->done() && out->done()) && steady_clock::now() < deadline) {
            left.poll();
            right.poll();
        }
        for (auto* transfer : {&*out, &*in})
            if (auto ended = transfer->wait(milliseconds(0)); !ended)
                return tl::unexpected(ended.error());
        return {};
    }
};

// Writes and reads the device's memory: by its own engine, or where it has none, by the NIC.
struct memory_access {
    std::optional<gaudi::copy_engine> engine;
    std::shared_ptr<gaudi::nic> nic;
    both_ends* link = nullptr;

    gaudi::result<void> write(const gaudi::local_region& to, std::vector<std::byte>& from) {
        if (engine)
            return wait(engine->write(gaudi::device_address(to.address()), from));
        auto host = nic->region(from);
        return host ? link->carry(*host, to) : tl::unexpected(host.error());
    }
    gaudi::result<void> read(std::vector<std::byte>& to, const gaudi::local_region& from) {
        if (engine)
            return wait(engine->read(to, gaudi::device_address(from.address())));
        auto host = nic->region(to);
        return host ? link->carry(from, *host) : tl::unexpected(host.error());
    }
    static gaudi::result<void> wait(gaudi::result<gaudi::copy_ticket> ticket) {
        if (!ticket)
            return tl::unexpected(ticket.error());
        auto ended = ticket->wait();
        return ended ? gaudi::result<void>() : tl::unexpected(ended.error());
    }
};

class nic_probe {
public:
    nic_probe(report& into, gaudi::device& device, const gaudi::device_buffer& from,
              const gaudi::device_buffer& to, const gaudi::nic_info& nic)
        : into_(into), device_(device), from_(from), to_(to), nic_(nic),
          subject_(fmt::format("gaudi {} over {}:{}", device.info().index, nic.name, nic.port)) {}

    bool run() {
        const auto opened = gaudi::open_nic({.name = nic_.name, .port = nic_.port});
        if (!opened)
            return fail("probe.open", opened.error());
        const auto from = (*opened)->region(device_, from_.address(), from_.size());
        const auto to = from ? (*opened)->region(device_, to_.address(), to_.size()) : from;
        if (!to)
            return fail("probe.registration", to.error(), pcie_remedy);
        into_.good("probe.registration", subject_, "the NIC registers the device's DMA-BUF");
        auto link = both_ends::connect(*opened);
        if (!link)
            return fail("probe.connection", link.error());
        memory_access access{std::nullopt, *opened, &*link};
        if (auto engine = device_.copies())
            access.engine = *engine;
        auto rate = transfer(*link, access, *from, *to, 1);
        if (!rate)
            return fail("probe.transfer", rate.error(), pcie_remedy);
        if (!wrong_.empty()) {
            into_.broken("probe.transfer", subject_, wrong_, pcie_remedy);
            return false;
        }
        into_.good(
            "probe.transfer", subject_,
            fmt::format("{} MiB from HBM to HBM, every byte right, {:.1f} GB/s{}", message_bytes >> 20, *rate,
                        access.engine ? "" : "; written and read by the NIC, the device has no engine"));
        if (access.engine)
            staged(*opened, access, *link);
        return true;
    }

private:
    bool fail(const char* check, const gaudi::error& why, const char* remedy = nullptr) {
        const bool no_path = why.system_error() == EPERM || why.system_error() == EIO;
        into_.broken(check, subject_, why.observed(),
                     remedy != nullptr && no_path ? std::string(remedy) : std::string(why.remedy()));
        return false;
    }

    // Moves a pattern from one buffer to the other and compares; returns the best rate of three in GB/s.
    gaudi::result<double> transfer(both_ends& link, memory_access& access, const gaudi::local_region& from,
                                   const gaudi::local_region& to, unsigned seed) {
        double best = 0;
        for (unsigned round = 0; round < 3; ++round) {
            auto sent = pattern(seed * 8 + round);
            std::vector<std::byte> other(message_bytes), seen(message_bytes);
            std::ranges::transform(sent, other.begin(), [](std::byte byte) { return ~byte; });
            if (auto written = access.write(from, sent).and_then([&] { return access.write(to, other); });
                !written)
                return tl::unexpected(written.error());
            const auto begin = steady_clock::now();
            if (auto carried = link.carry(from, to); !carried)
                return tl::unexpected(carried.error());
            const std::chrono::duration<double> taken = steady_clock::now() - begin;
            best = std::max(best, static_cast<double>(message_bytes) / taken.count() / 1e9);
            if (auto read = access.read(seen, to); !read)
                return tl::unexpected(read.error());
            compare(sent, seen);
        }
        return best;
    }

    void compare(const std::vector<std::byte>& sent, const std::vector<std::byte>& seen) {
        std::size_t wrong = 0, first = 0;
        for (std::size_t i = message_bytes; i-- > 0;)
            if (sent[i] != seen[i]) {
                ++wrong;
                first = i;
            }
        if (wrong != 0)
            wrong_ = fmt::format("{} of {} bytes are wrong, the first at {} ({:#04x} instead of {:#04x})",
                                 wrong, message_bytes, first, std::to_integer<int>(seen[first]),
                                 std::to_integer<int>(sent[first]));
    }

    // The same, staged through host memory, for comparison.
    void staged(const std::shared_ptr<gaudi::nic>& opened, memory_access& access, both_ends& link) {
        const auto from = opened->region(device_, from_, gaudi::path_policy::staged_only);
        const auto to = from ? opened->region(device_, to_, gaudi::path_policy::staged_only) : from;
        const auto rate = to ? transfer(link, access, *from, *to, 2) : tl::unexpected(to.error());
        if (!rate)
            (void)fail("probe.staged", rate.error());
        else if (!wrong_.empty())
            into_.broken("probe.staged", subject_, wrong_, "report this, with the output of doctor --json");
        else
            into_.good("probe.staged", subject_,
                       fmt::format("staged through host memory {:.1f} GB/s", *rate));
    }

    report& into_;
    gaudi::device& device_;
    const gaudi::device_buffer &from_, &to_;
    const gaudi::nic_info& nic_;
    const std::string subject_;
    std::string wrong_;
};

} // namespace

bool probe(report& into, const gaudi::device_info& info, const std::vector<gaudi::nic_info>& nics) {
    const auto subject = fmt::format("gaudi {}", info.index);
    if (const auto holders = gaudi::holders_of(info); !holders.empty()) {
        into.unknown("probe.device", subject,
                     fmt::format("process {} ({}) has it open", holders[0].process, holders[0].command),
                     "run doctor again when the device is free");
        return false;
    }
    const auto opened = gaudi::open_device(gaudi::by_index{info.index});
    if (!opened) {
        const auto& why = opened.error();
        if (why.kind() == gaudi::error_kind::busy)
            into.unknown("probe.device", subject, why.observed(), std::string(why.remedy()));
        else
            into.broken("probe.device", subject, why.observed(), std::string(why.remedy()));
        return false;
    }
    auto from = (*opened)->heap().allocate(message_bytes);
    auto to = from ? (*opened)->heap().allocate(message_bytes) : tl::unexpected(from.error());
    if (!to) {
        into.broken("probe.memory", subject, to.error().observed(), std::string(to.error().remedy()));
        return false;
    }
    if (const auto exported = from->dmabuf(); !exported) {
        into.broken("probe.export", subject, exported.error().observed(),
                    std::string(exported.error().remedy()));
        return false;
    }
    into.good("probe.export", subject, "the driver exports its memory as a DMA-BUF");
    bool moved = false;
    for (const auto& nic : nics)
        if (nic.moves_device_memory())
            moved = nic_probe(into, **opened, *from, *to, nic).run() || moved;
    return moved;
}

} // namespace tools::doctor
