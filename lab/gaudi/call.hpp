// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/call/trace.hpp"
#include "lab/gaudi/device.hpp"
#include "lab/gaudi/submission.hpp"

#include <cerrno>
#include <new>
#include <string>
#include <string_view>
#include <system_error>
#include <tuple>
#include <type_traits>

// What every exported function goes through: fault script, trace, errno, and no exception to the caller.
namespace lab::gaudi {

// What a function of result type R answers when it fails.
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

// Whether the running call was told to deliver a short result.
[[nodiscard]] bool& short_result_wanted();

// Carries a fault out that precedes the call; an errno to answer with, or 0 to go on.
[[nodiscard]] int apply_fault(const fault& chosen, int fd);

template <typename R, typename Body, typename... Arguments>
R call(const char* name, Body&& body, Arguments... arguments) {
    const auto begin = tracing() ? now_ns() : 0;
    bool struck = false;
    const auto invoke = [&]() -> R {
        try {
            short_result_wanted() = false;
            if (const auto chosen = faults().next(name)) {
                struck = true;
                int fd = -1;
                if constexpr (sizeof...(Arguments) > 0)
                    if constexpr (std::is_same_v<std::tuple_element_t<0, std::tuple<Arguments...>>, int>)
                        fd = std::get<0>(std::tuple(arguments...));
                if (const int error = apply_fault(*chosen, fd); error != 0) {
                    if (std::string_view(name) == "hlthunk_close") // close(2) closes, whatever it answers
                        (void)body();
                    return failure<R>(error); // NOLINT(clang-analyzer-unix.Malloc)
                }
            }
            return body();
        } catch (const std::bad_alloc&) {
            return failure<R>(ENOMEM);
        } catch (const std::system_error& error) {
            return failure<R>(error.code().value());
        } catch (const std::exception&) {
            return failure<R>(EIO);
        }
    };
    const R outcome = invoke();
    if (tracing()) {
        const int error = errno;
        std::string text;
        ((text += (text.empty() ? "" : ", ") + shown_argument(arguments)), ...);
        auto answer_text = shown_argument(outcome);
        if constexpr (std::is_same_v<R, std::uint64_t>)
            if (outcome == 0)
                answer_text += shown_errno(error);
        trace(name, text, answer_text + (struck ? " (fault)" : ""), now_ns() - begin);
        errno = error;
    }
    return outcome;
}

// Turns an answer into the C convention.
template <typename R, typename T>
R outcome_of(const answer<T>& from) {
    if (!from)
        return failure<R>(from.error());
    if constexpr (std::is_void_v<T>)
        return R{};
    else
        return static_cast<R>(*from);
}

// Operations of the compute node: the device must be operational unless `any_state`.
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
