// SPDX-License-Identifier: BSD-3-Clause
// The only place that decides which export call is used, with which address and offset. The table is that of
// docs/dmabuf-export.md; it makes no driver call, so that tests cover every row.
#include "src/hl/export_plan.hpp"

#include <algorithm>
#include <fmt/format.h>

namespace gaudi {
namespace {

constexpr std::uint64_t page = 4096; // the CPU's: the unit of the driver's addresses, sizes and offsets

constexpr export_rule rules[] = {
    {generation::gaudi, memory_origin::own, export_call::physical, false},
    {generation::gaudi, memory_origin::foreign_pool, export_call::physical, false},
    {generation::gaudi2, memory_origin::own, export_call::mapped, true},
    {generation::gaudi2, memory_origin::foreign_pool, export_call::mapped, true},
    {generation::gaudi3, memory_origin::own, export_call::mapped, true},
    {generation::gaudi3, memory_origin::foreign_pool, export_call::mapped, true},
};

const export_rule& rule_for(generation kind, memory_origin origin) {
    return *std::find_if(std::begin(rules), std::end(rules), [&](const export_rule& rule) {
        return rule.generation == kind && rule.origin == origin;
    });
}

} // namespace

std::span<const export_rule> export_rules() {
    return rules;
}

result<export_plan> plan_export(const export_request& request) {
    const auto base = request.base.value(), address = request.address.value();
    if (request.length == 0)
        return tl::unexpected(error(errc::size_zero, fmt::format("export of 0 bytes at {:#x}", address)));
    // Written as differences: a sum of the caller's numbers could wrap.
    if (address < base || address - base > request.base_length ||
        request.length > request.base_length - (address - base))
        return tl::unexpected(
            error(errc::range_leaves_allocation,
                  fmt::format("export of {} bytes at {:#x} from memory of {} bytes at {:#x}", request.length,
                              address, request.base_length, base)));
    if (base % page != 0)
        return tl::unexpected(error(errc::alignment_invalid,
                                    fmt::format("memory to export begins at {:#x}, not at a page", base)));
    // The driver exports whole pages around the range, up to the last page of the mapping.
    const auto begin = (address - base) / page * page;
    // SynapseAI's pool need not consist of whole pages: its last part cannot be exported then.
    const auto end = std::min((address - base + request.length + page - 1) / page * page,
                              request.base_length / page * page);
    if (address - base + request.length > end)
        return tl::unexpected(
            error(errc::alignment_invalid,
                  fmt::format("memory to export has {} bytes, not whole pages", request.base_length)));
    const auto& rule = rule_for(request.generation, request.origin);
    export_plan plan{};
    plan.call = rule.call;
    // An address inside a mapping returns EINVAL: the driver wants the exact base and an offset (gotcha 6).
    // Gen1's call takes no offset.
    plan.call_address = rule.by_base ? base : base + begin;
    plan.call_offset = rule.by_base ? begin : 0;
    plan.call_size = end - begin;
    plan.dmabuf_offset = address - base - begin;
    plan.iova = request.address;
    plan.length = request.length;
    plan.whole = !rule.by_base || (begin == 0 && end == request.base_length / page * page);
    return plan;
}

} // namespace gaudi
