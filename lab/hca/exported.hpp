// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/call/trace.hpp"
#include "lab/hca/objects.hpp"

#include <cerrno>
#include <csignal>
#include <new>
#include <system_error>
#include <thread>
#include <tuple>
#include <unistd.h>

// What every verb goes through: fault script, trace, errno, and no exception to the caller.
namespace lab::hca {

// How a verb says that it failed. Most answer with the errno value itself; some with -1, and errno is set.
enum class answers { with_errno, with_minus_one };

template <typename R>
R failure(int error, answers how) {
    errno = error;
    if constexpr (std::is_pointer_v<R>)
        return nullptr;
    else if constexpr (std::is_same_v<R, int>)
        return how == answers::with_errno ? error : -1;
    else
        return R{};
}

// Carries out a fault that precedes the call; an errno to answer with, or 0 to go on.
inline int strike(const fault& chosen) {
    switch (chosen.action) {
    case fault_action::fail:
        return chosen.error_number;
    case fault_action::delay:
        std::this_thread::sleep_for(chosen.pause);
        break;
    case fault_action::die:
        ::kill(::getpid(), SIGKILL);
        break;
    case fault_action::short_result:
    case fault_action::reset:
        break;
    }
    return 0;
}

template <typename R, typename Body, typename... Arguments>
R call(const char* name, answers how, Body&& body, Arguments... arguments) {
    const auto begin = tracing() ? now_ns() : 0;
    bool struck = false;
    const auto invoke = [&]() -> R {
        try {
            if (const auto chosen = faults().next(name)) {
                struck = true;
                if (const int error = strike(*chosen); error != 0)
                    return failure<R>(error, how);
            }
            return body();
        } catch (const std::bad_alloc&) {
            return failure<R>(ENOMEM, how);
        } catch (const std::system_error& error) {
            return failure<R>(error.code().value(), how);
        } catch (const std::exception&) {
            return failure<R>(EIO, how);
        }
    };
    const R outcome = invoke();
    if (tracing()) {
        const int error = errno;
        std::string text;
        // NOLINTNEXTLINE(clang-analyzer-cplusplus.NewDelete): an address is printed, not followed
        ((text += (text.empty() ? "" : ", ") + shown_argument(arguments)), ...);
        auto answer = shown_argument(outcome);
        if constexpr (std::is_pointer_v<R>) {
            if (outcome == nullptr)
                answer += shown_errno(error);
        } else if (outcome != R{})
            answer += shown_errno(error);
        trace(name, text, answer + (struck ? " (fault)" : ""), now_ns() - begin);
        errno = error;
    }
    return outcome;
}

template <typename T>
using answer = tl::expected<T, int>;

// Makes a new object of the C interface zeroed: programs read fields that we do not know of.
template <typename T>
std::unique_ptr<T> make_zeroed() {
    static_assert(std::is_default_constructible_v<T>);
    return std::unique_ptr<T>(new T());
}

} // namespace lab::hca

#define VERB_UNPACK(...) __VA_ARGS__
// Defines an exported verb; the names of the arguments are given twice for the trace.
#define VERB_AS(how, result, name, parameters, arguments, ...)                                               \
    extern "C" [[gnu::visibility("default")]] result name parameters {                                       \
        using namespace lab::hca;                                                                            \
        using answer_type = result;                                                                          \
        constexpr auto convention = answers::how;                                                            \
        const auto fails = [=](int error) { return failure<answer_type>(error, convention); };               \
        (void)fails;                                                                                         \
        return call<answer_type>(#name, convention, [&]() -> answer_type __VA_ARGS__,                        \
                                 VERB_UNPACK arguments);                                                     \
    }
#define VERB(result, name, parameters, arguments, ...)                                                       \
    VERB_AS(with_errno, result, name, parameters, arguments, __VA_ARGS__)
