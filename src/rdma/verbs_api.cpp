// SPDX-License-Identifier: BSD-3-Clause
#include "src/rdma/verbs_api.hpp"

#include "src/os/symbol_loader.hpp"

#include <cstdlib>
#include <fmt/format.h>

namespace gaudi {
namespace {

std::string candidate() {
    const char* chosen = std::getenv("GAUDI_DIRECT_VERBS");
    return chosen != nullptr && *chosen != '\0' ? chosen : "libibverbs.so.1";
}

} // namespace

result<std::shared_ptr<const verbs_api>> verbs_api::load() {
    // Loaded by name and not linked, so that the library works on machines without libibverbs. dlsym on this
    // handle does not see a preloaded library (gotcha V4): the lab's has to be named.
    auto api = std::make_shared<verbs_api>();
    std::vector<std::string> tried;
    const std::string candidates[] = {candidate()};
    auto library = dynamic_library::open_first(candidates, tried);
    if (!library)
        return tl::unexpected(error(errc::verbs_missing, library.error().observed()));
    api->library_ = *library;
    api->path_ = api->library_->path();
    symbol_loader symbols(*api->library_);
#define GAUDI_TAKE(name, need, signature) symbols.take(api->name, #name, #need);
    GAUDI_VERBS_SYMBOLS(GAUDI_TAKE)
#undef GAUDI_TAKE
    if (!symbols.lacking.empty())
        return tl::unexpected(error(
            errc::verbs_missing, fmt::format("{} has no {}", api->path_, fmt::join(symbols.lacking, ", "))));
    return std::shared_ptr<const verbs_api>(api);
}

} // namespace gaudi
