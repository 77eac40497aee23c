// SPDX-License-Identifier: BSD-3-Clause
#include "src/hl/hlthunk_api.hpp"

#include <cstdlib>
#include <fmt/format.h>
#include <string_view>

namespace gaudi {
namespace {

std::vector<std::string> candidates() {
    if (const char* chosen = std::getenv("GAUDI_DIRECT_HLTHUNK"); chosen != nullptr && *chosen != '\0')
        return {chosen};
    return {"libhl-thunk.so", "/usr/lib/habanalabs/libhl-thunk.so", "/opt/habanalabs/lib/libhl-thunk.so"};
}

} // namespace

result<std::shared_ptr<const hlthunk_api>> hlthunk_api::load() {
    auto api = std::make_shared<hlthunk_api>();
    auto library = dynamic_library::open_first(candidates(), api->tried_);
    if (!library)
        return tl::unexpected(library.error());
    api->library_ = *library;
    api->path_ = api->library_->path();
    std::vector<std::string> lacking;
    const auto take = [&](auto& target, const char* name, std::string_view need) {
        target = reinterpret_cast<std::remove_reference_t<decltype(target)>>(api->library_->symbol(name));
        if (target == nullptr)
            (need == "required" ? lacking : api->missing_).emplace_back(name);
    };
#define GAUDI_TAKE(name, need, signature) take(api->name, "hlthunk_" #name, #need);
    GAUDI_HLTHUNK_SYMBOLS(GAUDI_TAKE)
#undef GAUDI_TAKE
    take(api->ioctl, "ioctl", "optional");
    if (!lacking.empty())
        return tl::unexpected(
            error(errc::symbol_missing, fmt::format("{} has no {}", api->path_, fmt::join(lacking, ", "))));
    return std::shared_ptr<const hlthunk_api>(api);
}

std::string hlthunk_api::version() const {
    if (get_version == nullptr || free == nullptr)
        return "unknown";
    char* text = get_version();
    std::string copy = text != nullptr ? text : "unknown";
    free(text);
    return copy;
}

} // namespace gaudi
