// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "abi/scal.h"
#include "abi/synapse.h"
#include "lab/call/call.hpp"

#include <type_traits>

// How the functions of SynapseAI and SCAL return errors: both return a status.
namespace lab::synapse {

template <int failed_status>
struct status_convention {
    template <typename R>
    R fail(int error) const {
        errno = error;
        if constexpr (failed_status == synFail)
            return error == ENODEV ? synDeviceReset : error == EBUSY ? synBusy : synFail;
        else if constexpr (std::is_same_v<R, int>)
            return failed_status;
        else
            return R{};
    }
    template <typename R>
    bool hides_errno(const R&) const {
        return false;
    }
};

} // namespace lab::synapse

// Defines an exported function with its body; the macro takes the argument names a second time for the trace.
#define SYNAPSE_EXPORT_AS(failed_status, result, name, parameters, arguments, ...)                           \
    extern "C" [[gnu::visibility("default")]] result name parameters {                                       \
        using namespace lab::synapse;                                                                        \
        const auto body = [&]() -> result __VA_ARGS__;                                                       \
        return lab::run_call<result>(                                                                        \
            #name, status_convention<failed_status>{},                                                       \
            [](const lab::fault& chosen) { return lab::carry_out(chosen); }, body, LAB_UNPACK arguments);    \
    }
#define SCAL_EXPORT(result, name, parameters, arguments, ...)                                                \
    SYNAPSE_EXPORT_AS(SCAL_FAILURE, result, name, parameters, arguments, __VA_ARGS__)
#define SCAL_EXPORT_VOID(name, parameters, arguments, ...)                                                   \
    extern "C" [[gnu::visibility("default")]] void name parameters {                                         \
        using namespace lab::synapse;                                                                        \
        const auto body = [&] {                                                                              \
            __VA_ARGS__                                                                                      \
            return 0;                                                                                        \
        };                                                                                                   \
        (void)lab::run_call<int>(                                                                            \
            #name, status_convention<0>{}, [](const lab::fault& chosen) { return lab::carry_out(chosen); },  \
            body, LAB_UNPACK arguments);                                                                     \
    }
#define SYN_EXPORT(name, parameters, arguments, ...)                                                         \
    SYNAPSE_EXPORT_AS(synFail, synStatus, name, parameters, arguments, __VA_ARGS__)
