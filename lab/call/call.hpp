// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/call/trace.hpp"
#include "lab/os/system.hpp"

#include <cerrno>
#include <exception>
#include <new>
#include <string>
#include <system_error>

namespace lab {

// Every exported function of both virtual libraries runs through this: fault script, trace, errno, and no
// exception reaches the caller. `convention` knows how a function returns results:
//   fail(errno)           the return value of a failure, with errno set
//   hides_errno(answer)   whether the trace must print errno in addition to the result
// `strike` carries out a fault; it returns an errno to fail with, or 0 to continue.
template <typename R, typename Convention, typename Strike, typename Body, typename... Arguments>
R run_call(const char* name, const Convention& convention, Strike&& strike, Body&& body,
           Arguments... arguments) {
    const auto begin = tracing() ? now_ns() : 0;
    bool struck = false;
    const auto invoke = [&]() -> R {
        try {
            if (const auto chosen = faults().next(name)) {
                struck = true;
                if (const int error = strike(*chosen); error != 0)
                    return convention.template fail<R>(error); // NOLINT(clang-analyzer-unix.Malloc)
            }
            return body();
        } catch (const std::bad_alloc&) {
            return convention.template fail<R>(ENOMEM);
        } catch (const std::system_error& error) {
            return convention.template fail<R>(error.code().value());
        } catch (const std::exception&) {
            return convention.template fail<R>(EIO);
        }
    };
    const R outcome = invoke();
    if (tracing()) {
        const int error = errno;
        std::string text;
        // NOLINTNEXTLINE(clang-analyzer-cplusplus.NewDelete): an address is printed, not dereferenced
        ((text += (text.empty() ? "" : ", ") + shown_argument(arguments)), ...);
        trace(name, text,
              shown_argument(outcome) + (convention.hides_errno(outcome) ? shown_errno(error) : "") +
                  (struck ? " (fault)" : ""),
              now_ns() - begin);
        errno = error;
    }
    return outcome;
}

} // namespace lab

// The exported functions are defined by macros that take the argument names twice, the second time in
// parentheses for the trace; this takes the parentheses away.
#define LAB_UNPACK(...) __VA_ARGS__
