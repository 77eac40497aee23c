// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <csignal>
#include <thread>
#include <utility>

namespace gaudi {

// Starts a thread with all signals blocked: the program's handlers must not run in the library's threads.
template <typename Body>
[[nodiscard]] std::thread signal_free_thread(Body&& body) {
    struct masked {
        masked() {
            sigset_t all;
            ::sigfillset(&all);
            ::pthread_sigmask(SIG_SETMASK, &all, &before);
        }
        ~masked() { ::pthread_sigmask(SIG_SETMASK, &before, nullptr); }
        masked(const masked&) = delete;
        masked& operator=(const masked&) = delete;
        sigset_t before;
    } const during;
    return std::thread(std::forward<Body>(body));
}

} // namespace gaudi
