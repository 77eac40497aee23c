// SPDX-License-Identifier: BSD-3-Clause
// Choosing a port and its GID, and registering memory with it. Everything here outlives what is registered:
// members are destroyed in reverse order.
#include "src/rdma/nic_core.hpp"

#include "src/error/try.hpp"
#include "src/os/fork_count.hpp"
#include "src/rdma/nic_list.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <fmt/format.h>

namespace gaudi {
namespace {

bool is_ipv4(const ibv_gid& gid) {
    constexpr std::uint8_t prefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    return std::memcmp(gid.raw, prefix, sizeof(prefix)) == 0;
}

bool is_link_local(const ibv_gid& gid) {
    return gid.raw[0] == 0xfe && (gid.raw[1] & 0xc0) == 0x80;
}

bool is_empty(const ibv_gid& gid) {
    return std::all_of(std::begin(gid.raw), std::end(gid.raw), [](auto byte) { return byte == 0; });
}

// Higher is better: RoCE v2 over IPv4, over IPv6, link-local, RoCE v1.
int rank(const ibv_gid& gid, bool version_2) {
    if (is_empty(gid))
        return 0;
    return 1 + (version_2 ? 4 : 0) + (is_ipv4(gid) ? 3 : is_link_local(gid) ? 1 : 2);
}

std::string listed(const std::vector<nic_info>& all) {
    std::string text;
    for (const auto& info : all)
        text += fmt::format("{}{} port {}", text.empty() ? "" : ", ", info.name, info.port);
    return text.empty() ? "none" : text;
}

struct chosen_port {
    nic_info info;
    std::string why;
};

result<chosen_port> choose(const std::vector<nic_info>& all, const nic_choice& choice) {
    if (all.empty())
        return tl::unexpected(error(errc::no_nic, "libibverbs lists no device"));
    std::vector<nic_info> fitting;
    for (const auto& candidate : all)
        if ((choice.name.empty() ? !candidate.of_gaudi : candidate.name == choice.name) &&
            (choice.port == 0 || candidate.port == choice.port))
            fitting.push_back(candidate);
    if (fitting.empty() && choice.name.empty() && choice.port == 0)
        return tl::unexpected(error(errc::no_nic, fmt::format("only Gaudis' own ports: {}", listed(all))));
    if (fitting.empty())
        return tl::unexpected(
            error(errc::nic_unknown,
                  fmt::format("{}{}; there are: {}", choice.name.empty() ? "any" : choice.name,
                              choice.port != 0 ? fmt::format(" port {}", choice.port) : "", listed(all))));
    const auto first = fitting.front();
    if (first.of_gaudi) // chosen by name
        return tl::unexpected(error(errc::nic_of_gaudi, fmt::format("{}, {}", first.name, first.bus_id)));
    if (choice.needs_dmabuf)
        std::erase_if(fitting, [](const auto& candidate) { return !candidate.dmabuf; });
    if (fitting.empty())
        return tl::unexpected(error(errc::dmabuf_unsupported, fmt::format("{} port {}: {}", first.name,
                                                                          first.port, first.why_no_dmabuf)));
    const auto active =
        std::find_if(fitting.begin(), fitting.end(), [](const auto& candidate) { return candidate.active; });
    if (active == fitting.end())
        return tl::unexpected(error(errc::port_down, fmt::format("{} port {} is {}", fitting[0].name,
                                                                 fitting[0].port, fitting[0].state)));
    std::string why = "the only one with an active port";
    if (!choice.name.empty())
        why = "requested by name";
    else if (all.size() > 1 && choice.near_to)
        why = fmt::format("{}, {:.0f} Gbit/s", name_of(active->distance), active->gbps);
    else if (all.size() > 1)
        why = fmt::format("the fastest with an active port, {:.0f} Gbit/s", active->gbps);
    return chosen_port{*active, why};
}

} // namespace

result<std::shared_ptr<nic_core>> nic_core::open(const nic_choice& choice) {
    GAUDI_TRY(const auto seen, enumerate_nics(choice.near_to));
    GAUDI_TRY(auto chosen, choose(seen.ports, choice));
    std::shared_ptr<nic_core> core(new nic_core);
    core->api_ = seen.api;
    core->info_ = chosen.info;
    core->why_chosen_ = chosen.why;
    core->forks_ = fork_count();
    GAUDI_TRY(core->context_, open_by_name(core->api_, core->info_.name));
    core->pd_ = {core->api_->ibv_alloc_pd(core->context_.get()), {core->api_}};
    if (!core->pd_)
        return tl::unexpected(
            error(errc::registration_refused, fmt::format("ibv_alloc_pd on {}", core->info_.name), errno));
    if (const int rc = core->api_->ibv_query_device(core->context_.get(), &core->limits_); rc != 0)
        return tl::unexpected(
            error(errc::no_nic, fmt::format("ibv_query_device of {}", core->info_.name), rc));
    if (const int rc = query_port(*core->api_, core->context_.get(), core->info_.port, core->port_); rc != 0)
        return tl::unexpected(error(errc::no_nic, fmt::format("ibv_query_port of {}", core->info_.name), rc));
    GAUDI_CHECK(core->choose_gid(choice.gid_index));
    return core;
}

result<void> nic_core::choose_gid(const std::optional<unsigned>& wanted) {
    const auto length = static_cast<unsigned>(port_.gid_tbl_len);
    const auto port = static_cast<std::uint8_t>(info_.port);
    if (wanted && *wanted >= length)
        return tl::unexpected(
            error(errc::gid_invalid, fmt::format("GID index {} of {} port {}, which has 0 to {}", *wanted,
                                                 info_.name, info_.port, length - 1)));
    // A table may have several GIDs for each address of the network interface: RoCE v1 and v2, IPv4 and IPv6.
    int best = 0;
    for (unsigned i = wanted.value_or(0); i < (wanted ? *wanted + 1 : length); ++i) {
        ibv_gid gid{};
        if (api_->ibv_query_gid(context_.get(), port, static_cast<int>(i), &gid) != 0)
            continue;
        ibv_gid_entry entry{};
        const bool version_2 =
            api_->_ibv_query_gid_ex != nullptr &&
            api_->_ibv_query_gid_ex(context_.get(), port, i, &entry, 0, sizeof(entry)) == 0 &&
            entry.gid_type == IBV_GID_TYPE_ROCE_V2;
        if (const int value = rank(gid, version_2); value > best) {
            best = value;
            gid_ = gid;
            gid_index_ = i;
        }
    }
    if (best != 0)
        return {};
    return tl::unexpected(
        error(errc::gid_invalid,
              wanted ? fmt::format("GID index {} of {} port {} is empty", *wanted, info_.name, info_.port)
                     : fmt::format("{} port {} has no GID: its network interface has no address", info_.name,
                                   info_.port)));
}

nic_core::~nic_core() {
    if (valid_in_this_process())
        return;
    (void)loopback_pd_.release(); // belongs to the parent
    (void)pd_.release();
    (void)context_.release();
}

result<ibv_pd*> nic_core::loopback_pd() const {
    const std::lock_guard guard(loopback_mutex_);
    if (!loopback_pd_)
        loopback_pd_ = pd_handle(api_->ibv_alloc_pd(context_.get()), {api_});
    if (!loopback_pd_)
        return tl::unexpected(
            error(errc::registration_refused, fmt::format("ibv_alloc_pd on {}", info_.name), errno));
    return loopback_pd_.get();
}

int nic_core::access_flags(remote_access rights) const {
    return IBV_ACCESS_LOCAL_WRITE | (allows(rights, remote_access::read) ? IBV_ACCESS_REMOTE_READ : 0) |
           (allows(rights, remote_access::write) ? IBV_ACCESS_REMOTE_WRITE : 0) |
           (allows(rights, remote_access::atomic) && atomics() ? IBV_ACCESS_REMOTE_ATOMIC : 0);
}

bool nic_core::valid_in_this_process() const {
    return forks_ == fork_count();
}

error nic_core::forked_error() const {
    return {errc::forked, fmt::format("{} was opened by the parent process", info_.name)};
}

result<mr_handle> nic_core::register_range(void* begin, std::size_t length, int flags, ibv_pd* domain) const {
    if (!valid_in_this_process())
        return tl::unexpected(forked_error());
    mr_handle mr(api_->ibv_reg_mr(domain != nullptr ? domain : pd_.get(), begin, length, flags), {api_});
    if (!mr)
        return tl::unexpected(
            error(errc::registration_refused,
                  fmt::format("ibv_reg_mr of {} bytes at {} on {}", length, begin, info_.name), errno));
    return mr;
}

result<mr_handle> nic_core::register_host(std::span<std::byte> memory, remote_access rights,
                                          ibv_pd* domain) const {
    return register_range(memory.data(), memory.size(), access_flags(rights), domain);
}

result<mr_handle> nic_core::register_source(std::span<const std::byte> memory, ibv_pd* loopback) const {
    // Without the right to write, the kernel also pins pages that the process may only read.
    return register_range(const_cast<std::byte*>(memory.data()), memory.size(),
                          loopback != nullptr ? IBV_ACCESS_REMOTE_READ : 0, loopback);
}

result<mr_handle> nic_core::register_dmabuf(const dmabuf_export& window, remote_access rights,
                                            ibv_pd* domain) const {
    if (!valid_in_this_process())
        return tl::unexpected(forked_error());
    if (!info_.dmabuf)
        return tl::unexpected(
            error(errc::dmabuf_unsupported, fmt::format("{}: {}", info_.name, info_.why_no_dmabuf)));
    // The region holds a reference of its own: the caller may close the descriptor (gotcha 10). EPERM and EIO
    // mean that NIC and Gaudi have no peer-to-peer path (gotcha 32).
    mr_handle mr(api_->ibv_reg_dmabuf_mr(domain != nullptr ? domain : pd_.get(), window.offset, window.length,
                                         window.iova.value(), window.fd, access_flags(rights)),
                 {api_});
    if (!mr)
        return tl::unexpected(
            error(errc::registration_refused,
                  fmt::format("ibv_reg_dmabuf_mr of {} bytes at offset {}, iova {:#x}, on {}", window.length,
                              window.offset, window.iova.value(), info_.name),
                  errno));
    return mr;
}

} // namespace gaudi
