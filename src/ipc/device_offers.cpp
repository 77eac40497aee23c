// SPDX-License-Identifier: BSD-3-Clause
#include "src/ipc/device_offers.hpp"

#include "src/error/try.hpp"
#include "src/hl/hl_device.hpp"
#include "src/ipc/messages.hpp"
#include "src/os/channel.hpp"

#include <algorithm>
#include <cerrno>
#include <fmt/format.h>
#include <sys/epoll.h>

namespace gaudi {

result<void> device_offers::add(const std::shared_ptr<hl_device>& context) {
    if (context->owner() != context_owner::this_process || context->traits().exports == export_call::physical)
        return tl::unexpected(error(errc::copies_absent, fmt::format("{} is not this process's to share",
                                                                     context->identity().bus_id)));
    drop_closed();
    if (offers_.contains(context->node()))
        return {};
    auto listener = listen_on(device_name(context->node()));
    if (!listener) {
        const auto& why = listener.error();
        return tl::unexpected(error(why.system_error() == EADDRINUSE ? errc::address_in_use : why.code(),
                                    why.observed(), why.system_error()));
    }
    GAUDI_CHECK(events_.add(listener->get(), EPOLLIN));
    offers_[context->node()] = {context, fork_private_fd(std::move(*listener))};
    return {};
}

std::shared_ptr<hl_device> device_offers::find(std::uint64_t node) const {
    const auto entry = offers_.find(node);
    auto context = entry != offers_.end() ? entry->second.context.lock() : nullptr;
    return context && !context->lost() ? context : nullptr;
}

bool device_offers::listens_on(int descriptor) const {
    return std::any_of(offers_.begin(), offers_.end(),
                       [&](const auto& each) { return each.second.listener.get() == descriptor; });
}

void device_offers::drop_closed() {
    std::erase_if(offers_, [](const auto& each) { return each.second.context.expired(); });
}

} // namespace gaudi
