// SPDX-License-Identifier: BSD-3-Clause
// labels of every test here: critical dmabuf
// plan_export() for every generation and origin of memory.
#include "src/hl/export_plan.hpp"

#include <gtest/gtest.h>
#include <ostream>

namespace {

using namespace gaudi;

constexpr std::uint64_t allocation = 0x1001500010000000, allocated = 768ULL << 20;

struct expectation {
    generation kind;
    memory_origin origin;
    export_call call;
};

void PrintTo(const expectation& shown, std::ostream* out) {
    *out << name_of(shown.kind) << (shown.origin == memory_origin::own ? ", own" : ", SynapseAI's pool");
}

class export_decision : public ::testing::TestWithParam<expectation> {};

TEST_P(export_decision, picks_the_call_of_its_generation) {
    const auto& [kind, origin, call] = GetParam();
    const auto plan = plan_export(
        {kind, origin, device_address(allocation), allocated, device_address(allocation), allocated});
    ASSERT_TRUE(plan) << plan.error().message();
    EXPECT_EQ(plan->call, call);
    EXPECT_EQ(plan->call_address, allocation);
    EXPECT_EQ(plan->call_size, allocated);
    EXPECT_EQ(plan->call_offset, 0U);
    EXPECT_EQ(plan->dmabuf_offset, 0U);
    EXPECT_EQ(plan->iova, device_address(allocation));
    EXPECT_TRUE(plan->whole);
}

TEST_P(export_decision, a_window_inside) {
    const auto& [kind, origin, call] = GetParam();
    const auto address = allocation + 3 * 4096 + 100;
    const auto plan =
        plan_export({kind, origin, device_address(allocation), allocated, device_address(address), 5000});
    ASSERT_TRUE(plan) << plan.error().message();
    if (call == export_call::mapped) {
        EXPECT_EQ(plan->call_address, allocation) << "the exact base of the mapping";
        EXPECT_EQ(plan->call_offset, 3U * 4096);
    } else {
        EXPECT_EQ(plan->call_address, allocation + 3 * 4096) << "the address itself: an offset is impossible";
        EXPECT_EQ(plan->call_offset, 0U);
    }
    EXPECT_EQ(plan->call_size, 2U * 4096);
    EXPECT_EQ(plan->dmabuf_offset, 100U);
    EXPECT_EQ(plan->iova.value() % 4096, plan->dmabuf_offset % 4096) << "a NIC insists on this";
    EXPECT_EQ(plan->length, 5000U);
    EXPECT_EQ(plan->whole, call == export_call::physical);
}

TEST_P(export_decision, refuses_what_leaves_the_memory) {
    const auto kind = GetParam().kind;
    const auto origin = GetParam().origin;
    const auto plan_of = [&](std::uint64_t address, std::uint64_t size) {
        return plan_export(
            {kind, origin, device_address(allocation), allocated, device_address(address), size});
    };
    EXPECT_EQ(plan_of(allocation, allocated + 1).error().code(), errc::range_leaves_allocation);
    EXPECT_EQ(plan_of(allocation - 1, 1).error().code(), errc::range_leaves_allocation);
    EXPECT_EQ(plan_of(allocation + allocated, 1).error().code(), errc::range_leaves_allocation);
    EXPECT_EQ(plan_of(allocation + 1, ~0ULL).error().code(), errc::range_leaves_allocation);
    EXPECT_EQ(plan_of(allocation, 0).error().code(), errc::size_zero);
    EXPECT_TRUE(plan_of(allocation + allocated - 1, 1));
}

std::string name(const ::testing::TestParamInfo<expectation>& info) {
    return std::string(name_of(info.param.kind)) +
           (info.param.origin == memory_origin::own ? "_own" : "_foreign_pool");
}

INSTANTIATE_TEST_SUITE_P(
    all, export_decision,
    ::testing::Values(expectation{generation::gaudi, memory_origin::own, export_call::physical},
                      expectation{generation::gaudi, memory_origin::foreign_pool, export_call::physical},
                      expectation{generation::gaudi2, memory_origin::own, export_call::mapped},
                      expectation{generation::gaudi2, memory_origin::foreign_pool, export_call::mapped},
                      expectation{generation::gaudi3, memory_origin::own, export_call::mapped},
                      expectation{generation::gaudi3, memory_origin::foreign_pool, export_call::mapped}),
    name);

TEST(export_rules, one_for_each_generation_and_origin_and_no_more) {
    EXPECT_EQ(export_rules().size(), 6U);
    for (const auto& rule : export_rules())
        EXPECT_EQ(rule.call, traits_of(rule.generation).exports);
}

} // namespace
