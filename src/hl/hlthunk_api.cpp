// SPDX-License-Identifier: BSD-3-Clause
#include "src/hl/hlthunk_api.hpp"

#include "src/error/try.hpp"
#include "src/os/symbol_loader.hpp"

#include <cstdlib>
#include <fmt/format.h>

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
    GAUDI_TRY(api->library_, dynamic_library::open_first(candidates(), api->tried_));
    api->path_ = api->library_->path();
    symbol_loader symbols(*api->library_);
#define GAUDI_TAKE(name, need, signature) symbols.take(api->name, "hlthunk_" #name, #need);
    GAUDI_HLTHUNK_SYMBOLS(GAUDI_TAKE)
#undef GAUDI_TAKE
    // Looked up through hl-thunk, where it resolves to libc's, or to the virtual library's own (gotcha 14).
    symbols.take(api->ioctl, "ioctl", "optional");
    api->missing_ = std::move(symbols.missing);
    if (!symbols.lacking.empty())
        return tl::unexpected(error(
            errc::symbol_missing, fmt::format("{} has no {}", api->path_, fmt::join(symbols.lacking, ", "))));
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
