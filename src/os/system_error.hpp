// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/error.hpp>

#include <cerrno>
#include <string>
#include <utility>

namespace gaudi {

// `otherwise`, unless the process or the system has no descriptors left: that has a remedy of its own.
inline errc code_of(int reason, errc otherwise) {
    return reason == EMFILE || reason == ENFILE ? errc::descriptors_exhausted : otherwise;
}

// The error of a system call that has just failed, from errno.
inline error system_error(std::string what) {
    const int reason = errno;
    return {code_of(reason, errc::system_call_failed), std::move(what), reason};
}

} // namespace gaudi
