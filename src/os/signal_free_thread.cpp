// SPDX-License-Identifier: BSD-3-Clause
#include "src/os/signal_free_thread.hpp"

#include <csignal>
#include <string>
#include <system_error>
#include <utility>

namespace gaudi {

result<std::thread> signal_free_thread(std::string_view purpose, std::function<void()> body) {
    sigset_t all, before; // a new thread has the signal mask of the thread that starts it
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    result<std::thread> started;
    try {
        started = std::thread(std::move(body));
    } catch (const std::system_error& failed) {
        started =
            tl::unexpected(error(errc::system_call_failed, std::string(purpose), failed.code().value()));
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return started;
}

} // namespace gaudi
