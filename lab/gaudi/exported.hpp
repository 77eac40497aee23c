// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/gaudi/call.hpp"

#include <tuple>

// Defines an exported function with its body; the macro takes the argument names a second time for the trace.
#define LAB_EXPORT(result, name, parameters, arguments, ...)                                                 \
    extern "C" [[gnu::visibility("default")]] result name parameters {                                       \
        using namespace lab::gaudi;                                                                          \
        using answer_type = result;                                                                          \
        return call<answer_type>(#name, [&]() -> answer_type __VA_ARGS__, LAB_UNPACK arguments);             \
    }

// The same for functions without a result: the trace shows 0.
#define LAB_EXPORT_VOID(name, parameters, arguments, ...)                                                    \
    extern "C" [[gnu::visibility("default")]] void name parameters {                                         \
        using namespace lab::gaudi;                                                                          \
        const auto body = [&] {                                                                              \
            __VA_ARGS__                                                                                      \
            return 0;                                                                                        \
        };                                                                                                   \
        call<int>(#name, body, LAB_UNPACK arguments);                                                        \
    }
