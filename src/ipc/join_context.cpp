// SPDX-License-Identifier: BSD-3-Clause
#include "src/device/context_joiner.hpp"
#include "src/error/try.hpp"
#include "src/hl/discovery.hpp"
#include "src/ipc/owner_link.hpp"

#include <fmt/format.h>

namespace gaudi {
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
