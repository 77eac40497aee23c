// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/call/call.hpp"
#include "lab/gaudi/device.hpp"
#include "lab/gaudi/submission.hpp"

#include <cerrno>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>

// How the functions of hl-thunk return results and errors.
namespace lab::gaudi {

// What a function of result type R returns when it fails.
template <typename R>
R failure(int error) {
    errno = error;
    if constexpr (std::is_same_v<R, int>)
        return -error;
    else if constexpr (std::is_same_v<R, hlthunk_device_name>)
        return HLTHUNK_DEVICE_INVALID;
    else if constexpr (std::is_same_v<R, hl_device_status>)
        return static_cast<hl_device_status>(-error);
    else
        return R{};
}

// Whether the fault script asks the running call for a short result.
[[nodiscard]] bool& short_result_wanted();

// Carries out a fault before the call; returns an errno to fail with, or 0 to continue.
[[nodiscard]] int apply_fault(const fault& chosen, int fd);

struct hlthunk_convention {
    template <typename R>
    R fail(int error) const {
        return failure<R>(error);
    }
    template <typename R>
    bool hides_errno(const R& outcome) const {
        if constexpr (std::is_same_v<R, std::uint64_t>)
            return outcome == 0;
        else
            return false;
    }
};

// close(2) closes the descriptor whatever it returns, and a function without a result cannot report failure.
[[nodiscard]] inline bool works_all_the_same(std::string_view name) {
    return name == "hlthunk_close" || name == "hlthunk_free" || name == "hlthunk_profiler_destroy";
}

template <typename R, typename Body, typename... Arguments>
R call(const char* name, Body&& body, Arguments... arguments) {
    short_result_wanted() = false;
    const auto strike = [&](const fault& chosen) {
        int fd = -1;
        if constexpr (sizeof...(Arguments) > 0)
            if constexpr (std::is_same_v<std::tuple_element_t<0, std::tuple<Arguments...>>, int>)
                fd = std::get<0>(std::tuple(arguments...));
        const int error = apply_fault(chosen, fd);
        if constexpr (std::is_same_v<R, int>)
            if (error != 0 && works_all_the_same(name))
                (void)body();
        return error;
    };
    return run_call<R>(name, hlthunk_convention{}, strike, body, arguments...);
}

// Converts an answer to the C convention.
template <typename R, typename T>
R outcome_of(const answer<T>& from) {
    if (!from)
        return failure<R>(from.error());
    if constexpr (std::is_void_v<T>)
        return R{};
    else
        return static_cast<R>(*from);
}

// Operations on the compute node: the device must be operational unless `any_state`.
template <typename R, typename Body>
R on_device(int fd, Body&& body, bool any_state = false) {
    auto* device = process::self().find(fd);
    if (device == nullptr)
        return failure<R>(errno);
    if (!any_state && device->state().status != HL_DEVICE_STATUS_OPERATIONAL)
        return failure<R>(EBUSY);
    return body(*device);
}

// Queries work on both nodes.
template <typename R, typename Body>
R on_either(int fd, Body&& body) {
    bool is_control = false;
    auto* device = process::self().find(fd, &is_control);
    if (device == nullptr)
        return failure<R>(errno);
    return body(*device);
}

} // namespace lab::gaudi
