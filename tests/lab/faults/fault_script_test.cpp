// SPDX-License-Identifier: BSD-3-Clause
#include "lab/faults/script.hpp"

#include <cerrno>
#include <gtest/gtest.h>

namespace {

using lab::fault_action;
using lab::parse_faults;

std::string fault_problem_of(std::string_view text) {
    const auto parsed = parse_faults(text, "my.faults");
    return parsed ? "parsed" : parsed.error().text;
}

TEST(fault_script, grammar) {
    const auto rules = parse_faults("# comment\nhlthunk_open 1 errno EBUSY; hlthunk_close 2+ delay 5ms\n\n* "
                                    "every die # all\nibv_reg_mr 3 errno 12",
                                    "f");
    ASSERT_TRUE(rules) << rules.error().text;
    ASSERT_EQ(rules->size(), 4U);
    EXPECT_EQ((*rules)[0].fault.error_number, EBUSY);
    EXPECT_EQ((*rules)[1].first, 2U);
    EXPECT_EQ((*rules)[1].last, ~0ULL);
    EXPECT_EQ((*rules)[1].fault.pause, std::chrono::milliseconds(5));
    EXPECT_EQ((*rules)[2].fault.action, fault_action::die);
    EXPECT_EQ((*rules)[3].fault.error_number, 12);
}

TEST(fault_script, every_problem_names_line_and_expectation) {
    EXPECT_EQ(fault_problem_of("\nhlthunk_open\n"),
              "my.faults:2: 'hlthunk_open': expected CALL OCCURRENCE ACTION, "
              "for example hlthunk_open 1 errno EBUSY");
    EXPECT_EQ(fault_problem_of("malloc 1 errno ENOMEM"),
              "my.faults:1: 'malloc' is no call of hl-thunk, libibverbs, SynapseAI or SCAL");
    EXPECT_EQ(fault_problem_of("hlthunk_opne 1 errno EIO"),
              "my.faults:1: 'hlthunk_opne' is no call of hl-thunk, libibverbs, SynapseAI or SCAL");
    EXPECT_EQ(fault_problem_of("hlthunk_open 0 errno EIO"),
              "my.faults:1: occurrence '0': expected N, N+ or every, N from 1");
    EXPECT_EQ(fault_problem_of("hlthunk_open 1 errno EWHAT"),
              "my.faults:1: 'EWHAT' is no errno; expected a name such as ENOMEM or a number");
    EXPECT_EQ(fault_problem_of("hlthunk_open 1 delay soon"),
              "my.faults:1: 'soon' is no time; expected for example 500us, 20ms or 1s");
    EXPECT_EQ(fault_problem_of("hlthunk_open 1 explode"),
              "my.faults:1: action 'explode': expected errno NAME, delay TIME, short, reset or die");
    EXPECT_NE(fault_problem_of("hlthunk_open 1 short")
                  .find("has no short result; those that have: hlthunk_wait_for_cs"),
              std::string::npos);
}

TEST(fault_script, occurrences_are_counted_per_rule) {
    lab::fault_injector injector;
    injector.arm(*parse_faults("hlthunk_open 2 errno EIO; * 4 errno EPERM", "f"));
    EXPECT_FALSE(injector.next("hlthunk_open"));
    EXPECT_FALSE(injector.next("hlthunk_close"));
    ASSERT_TRUE(injector.next("hlthunk_open"));
    const auto fourth = injector.next("hlthunk_close");
    ASSERT_TRUE(fourth);
    EXPECT_EQ(fourth->error_number, EPERM);
    EXPECT_FALSE(injector.next("hlthunk_open"));
    EXPECT_EQ(injector.fired(), 2U);
}

} // namespace
