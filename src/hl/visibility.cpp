// SPDX-License-Identifier: BSD-3-Clause
#include "src/hl/visibility.hpp"

#include <charconv>
#include <cstdlib>
#include <fmt/format.h>
#include <string_view>

namespace gaudi {
namespace {

using number_set = std::optional<std::set<unsigned>>;

result<number_set> numbers_of(const char* variable) {
    const char* text = std::getenv(variable);
    if (text == nullptr || *text == '\0' || std::string_view(text) == "all")
        return number_set{};
    std::set<unsigned> numbers;
    std::string_view rest = text;
    while (true) {
        const auto comma = rest.find(',');
        const auto item = rest.substr(0, comma);
        unsigned number = 0;
        const auto [end, failure] = std::from_chars(item.data(), item.data() + item.size(), number);
        if (item.empty() || failure != std::errc{} || end != item.data() + item.size())
            return tl::unexpected(error(errc::selection_malformed,
                                        fmt::format("{}={}: '{}' is no number", variable, text, item)));
        numbers.insert(number);
        if (comma == rest.npos)
            return number_set{numbers};
        rest.remove_prefix(comma + 1);
    }
}

} // namespace

bool visibility::shows(const device_info& info) const {
    return (!indices || indices->contains(info.index)) && (!modules || modules->contains(info.module_id));
}

result<visibility> visibility::of_environment() {
    visibility selection;
    auto indices = numbers_of("HABANA_VISIBLE_DEVICES");
    auto modules = numbers_of("HABANA_VISIBLE_MODULES");
    auto own = numbers_of("HLS_MODULE_ID");
    for (const auto* parsed : {&indices, &modules, &own})
        if (!*parsed)
            return tl::unexpected(parsed->error());
    selection.indices = *indices;
    selection.modules = *modules;
    if (*own) {
        if ((*own)->size() != 1)
            return tl::unexpected(
                error(errc::selection_malformed,
                      fmt::format("HLS_MODULE_ID={}: one number expected", std::getenv("HLS_MODULE_ID"))));
        selection.own_module = *(*own)->begin();
    }
    return selection;
}

} // namespace gaudi
