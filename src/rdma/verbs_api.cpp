// SPDX-License-Identifier: BSD-3-Clause
#include "src/rdma/verbs_api.hpp"

#include <cstdlib>
#include <fmt/format.h>
#include <string_view>

namespace gaudi {
namespace {

std::string candidate() {
    const char* chosen = std::getenv("GAUDI_DIRECT_VERBS");
    return chosen != nullptr && *chosen != '\0' ? chosen : "libibverbs.so.1";
}

} // namespace

result<std::shared_ptr<const verbs_api>> verbs_api::load() {
    auto api = std::make_shared<verbs_api>();
    std::vector<std::string> tried;
    const std::string candidates[] = {candidate()};
    auto library = dynamic_library::open_first(candidates, tried);
    if (!library)
        return tl::unexpected(error(errc::verbs_missing, library.error().observed()));
    api->library_ = *library;
    api->path_ = api->library_->path();
    std::vector<std::string> lacking;
    const auto take = [&](auto& target, const char* name, std::string_view need) {
        target = reinterpret_cast<std::remove_reference_t<decltype(target)>>(api->library_->symbol(name));
        if (target == nullptr)
            (need == "required" ? lacking : api->missing_).emplace_back(name);
    };
#define GAUDI_TAKE(name, need, signature) take(api->name, #name, #need);
    GAUDI_VERBS_SYMBOLS(GAUDI_TAKE)
#undef GAUDI_TAKE
    if (!lacking.empty())
        return tl::unexpected(
            error(errc::verbs_missing, fmt::format("{} has no {}", api->path_, fmt::join(lacking, ", "))));
    return std::shared_ptr<const verbs_api>(api);
}

} // namespace gaudi
