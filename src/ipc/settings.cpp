// SPDX-License-Identifier: BSD-3-Clause
#include "src/ipc/settings.hpp"

#include <atomic>
#include <charconv>
#include <cstdlib>
#include <fmt/format.h>

namespace gaudi {
namespace {

// Without a lock, which a child of fork could find held. Earlier settings stay, because another thread may
// still read them.
struct chosen_settings {
    ipc_settings value;
    const chosen_settings* earlier = nullptr;
};
std::atomic<const chosen_settings*> chosen{nullptr};

} // namespace

result<ipc_settings> parse_ipc(std::string_view give, std::string_view allow) {
    ipc_settings made;
    if (give == "dmabuf")
        made.give = ipc_give::dmabuf;
    else if (give == "nothing")
        made.give = ipc_give::nothing;
    else if (give != "context" && !give.empty())
        return tl::unexpected(
            error(errc::setting_malformed, fmt::format("{}: use context, dmabuf or nothing", give)));
    for (auto left = allow; !left.empty();) {
        std::uint32_t user = 0;
        const auto [end, wrong] = std::from_chars(left.data(), left.data() + left.size(), user);
        left.remove_prefix(static_cast<std::size_t>(end - left.data()));
        if (wrong != std::errc{} || (!left.empty() && left.front() != ','))
            return tl::unexpected(error(errc::setting_malformed,
                                        fmt::format("{}: use numbers of users, separated by commas", allow)));
        made.allow.push_back(user);
        if (!left.empty())
            left.remove_prefix(1);
    }
    return made;
}

result<ipc_settings> ipc_of_environment() {
    const auto value = [](const char* name) {
        const char* text = std::getenv(name);
        return std::string_view(text != nullptr ? text : "");
    };
    const auto give = value("GAUDI_DIRECT_IPC_GIVE"), allow = value("GAUDI_DIRECT_IPC_ALLOW");
    for (const auto& [name, wrong] : {std::pair("GAUDI_DIRECT_IPC_GIVE", parse_ipc(give, "")),
                                      std::pair("GAUDI_DIRECT_IPC_ALLOW", parse_ipc("", allow))})
        if (!wrong)
            return tl::unexpected(
                error(errc::setting_malformed, fmt::format("{}={}", name, wrong.error().observed())));
    return parse_ipc(give, allow);
}

void set_ipc(const ipc_settings& settings) {
    auto* const added = new chosen_settings{settings, chosen.load(std::memory_order_acquire)};
    while (!chosen.compare_exchange_weak(added->earlier, added, std::memory_order_acq_rel)) {
    }
}

result<ipc_settings> get_ipc() {
    if (const auto* const latest = chosen.load(std::memory_order_acquire); latest != nullptr)
        return latest->value;
    return ipc_of_environment();
}

} // namespace gaudi
