// SPDX-License-Identifier: BSD-3-Clause
// Macros that return errors to the caller, for functions that return a result<>.
#pragma once

#include <tl/expected.hpp>
#include <utility>

#define GAUDI_JOIN_WORDS(left, right) left##right
#define GAUDI_JOIN(left, right) GAUDI_JOIN_WORDS(left, right)
#define GAUDI_TRY_AS(outcome, declaration, ...)                                                              \
    auto outcome = (__VA_ARGS__);                                                                            \
    if (!outcome)                                                                                            \
        return tl::unexpected(std::move(outcome).error());                                                   \
    declaration = *std::move(outcome)

// Declares a variable with the value of a result, or returns the error of that result:
//   GAUDI_TRY(const auto view, heap.view_of(address));
#define GAUDI_TRY(declaration, ...) GAUDI_TRY_AS(GAUDI_JOIN(outcome_, __COUNTER__), declaration, __VA_ARGS__)

// As GAUDI_TRY, for a result without a value, or whose value is not needed.
#define GAUDI_CHECK(...)                                                                                     \
    do {                                                                                                     \
        if (auto outcome = (__VA_ARGS__); !outcome)                                                          \
            return tl::unexpected(std::move(outcome).error());                                               \
    } while (false)
