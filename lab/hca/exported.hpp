// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/call/call.hpp"
#include "lab/hca/objects.hpp"

#include <cerrno>
#include <memory>
#include <type_traits>

// How verbs return results and errors.
namespace lab::hca {

// How a verb reports failure. Most return the errno value itself; some return -1 and set errno; one that
// answers yes or no returns no.
enum class answers { with_errno, with_minus_one, with_no };

template <typename R>
R failure(int error, answers how) {
    errno = error;
    if constexpr (std::is_pointer_v<R>)
        return nullptr;
    else if constexpr (std::is_same_v<R, int>)
        return how == answers::with_errno ? error : how == answers::with_minus_one ? -1 : 0;
    else
        return R{};
}

struct verbs_convention {
    answers how;

    template <typename R>
    R fail(int error) const {
        return failure<R>(error, how);
    }
    template <typename R>
    bool hides_errno(const R& outcome) const {
        return how != answers::with_no && std::is_pointer_v<R> == (outcome == R{});
    }
};

template <typename R, typename Body, typename... Arguments>
R call(const char* name, answers how, Body&& body, Arguments... arguments) {
    return run_call<R>(name, verbs_convention{how}, carry_out, body, arguments...);
}

template <typename T>
using answer = tl::expected<T, int>;

// Makes a zeroed object of the C interface: programs read fields that this library does not know.
template <typename T>
std::unique_ptr<T> make_zeroed() {
    static_assert(std::is_default_constructible_v<T>);
    return std::unique_ptr<T>(new T());
}

} // namespace lab::hca

#define VERB_BODY(how, result, name, arguments, ...)                                                         \
    {                                                                                                        \
        using namespace lab::hca;                                                                            \
        using answer_type = result;                                                                          \
        constexpr auto convention = answers::how;                                                            \
        const auto fails = [=](int error) { return failure<answer_type>(error, convention); };               \
        (void)fails;                                                                                         \
        return call<answer_type>(#name, convention, [&]() -> answer_type __VA_ARGS__, LAB_UNPACK arguments); \
    }
// Defines an exported verb; the macro takes the argument names a second time for the trace.
#define VERB_AS(how, result, name, parameters, arguments, ...)                                               \
    extern "C" [[gnu::visibility("default")]] result name parameters VERB_BODY(how, result, name, arguments, \
                                                                               __VA_ARGS__)
#define VERB(result, name, parameters, arguments, ...)                                                       \
    VERB_AS(with_errno, result, name, parameters, arguments, __VA_ARGS__)
// Defines a verb younger than rdma-core 44. It has a different C++ name, so that it compiles whether the
// headers declare it or not.
#define NEWER_VERB_AS(how, result, name, parameters, arguments, ...)                                         \
    [[gnu::visibility("default")]] result newer_##name parameters __asm__(#name);                            \
    result newer_##name parameters VERB_BODY(how, result, name, arguments, __VA_ARGS__)
#define NEWER_VERB(result, name, parameters, arguments, ...)                                                 \
    NEWER_VERB_AS(with_errno, result, name, parameters, arguments, __VA_ARGS__)
