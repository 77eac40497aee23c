// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <climits>
#include <csignal>
#include <cstdint>
#include <thread>
#include <utility>

// What both virtual libraries need of the system.
namespace lab {

// CLOCK_MONOTONIC.
[[nodiscard]] std::uint64_t now_ns();

// Sleeps on a word of shared memory. Returns on a wake, a change, a signal or after the time.
void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t seen, std::uint64_t nanoseconds);
void futex_wake(std::atomic<std::uint32_t>& word, int how_many = INT_MAX);

// Whether the kernel has MADV_POPULATE_WRITE (Linux 5.14), which refuses memory that could not be pinned.
[[nodiscard]] bool populate_write_is_known();

// A thread that receives no signals: they are for the program's threads. Throws std::system_error if no
// thread can be created.
template <typename Body>
[[nodiscard]] std::thread signal_free_thread(Body&& body) {
    class masked {
    public:
        masked() {
            sigset_t all;
            ::sigfillset(&all);
            ::pthread_sigmask(SIG_SETMASK, &all, &before_);
        }
        ~masked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
        masked(const masked&) = delete;
        masked& operator=(const masked&) = delete;

    private:
        sigset_t before_;
    } while_it_starts;
    return std::thread(std::forward<Body>(body));
}

} // namespace lab
