// SPDX-License-Identifier: BSD-3-Clause
#include "src/device/context_joiner.hpp"
#include "src/error/try.hpp"
#include "src/hl/discovery.hpp"
#include "src/ipc/joined_contexts.hpp"
#include "src/ipc/owner_link.hpp"

#include <algorithm>
#include <fmt/format.h>

namespace gaudi {

result<std::shared_ptr<hl_device>> join_context(const std::shared_ptr<const hlthunk_api>& api,
                                                const opened_context& answer,
                                                std::array<unique_fd, most_passed>& passed,
                                                std::shared_ptr<void> host) {
    // Before the context is attached: without the shared counter two processes could exceed the driver's
    // limit together (gotcha I4).
    GAUDI_TRY(auto shared, shared_context::of(std::move(passed[1])));
    GAUDI_TRY(const auto devices, discover(*api));
    const auto bus_id = bus_id_of(*api, passed[0].get());
    const auto info = std::find_if(devices.begin(), devices.end(),
                                   [&](const device_info& each) { return each.bus_id == bus_id; });
    if (info == devices.end())
        return tl::unexpected(error(errc::no_path, "the owner's device cannot be seen from here"));
    GAUDI_TRY(auto joined, attach(api, passed[0].get(), *info, context_owner::other_process));
    (void)passed[0].release(); // the joined context owns it now
    joined->sharing().join(shared, answer.member, std::move(host));
    return joined;
}

namespace {

result<std::shared_ptr<hl_device>> join_shared_context(const std::shared_ptr<const hlthunk_api>& api,
                                                       const device_info& info) {
    GAUDI_TRY(const auto settings, get_ipc());
    const auto node = node_of_device(*api, info);
    if (node == 0)
        return tl::unexpected(error(errc::peer_gone, fmt::format("{} cannot be seen", info.bus_id)));
    GAUDI_TRY(const auto link, owner_link::connect_to_device(node, settings));
    GAUDI_TRY(auto answer, link->ask(open_device_request{node}));
    return join_context(api, answer.body, answer.passed, link);
}

[[maybe_unused]] const bool provided = [] {
    set_context_joiner(join_shared_context);
    return true;
}();

} // namespace

} // namespace gaudi
