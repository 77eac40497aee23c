// SPDX-License-Identifier: BSD-3-Clause
// The driver has no descriptor that becomes readable when a submission completes: a thread waits in the
// driver and writes to an eventfd. An engine that only is polled never starts the thread.
#include "src/copy/completion_event.hpp"

#include "src/error/try.hpp"
#include "src/os/signal_free_thread.hpp"
#include "src/os/system_error.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

namespace gaudi {

result<int> completion_event::open(event_when when, std::function<void()> watch) {
    // Stays set: one reader that wants every event decides for all readers of the descriptor.
    if (when == event_when::always) {
        always_ = true;
        wake();
    }
    if (!descriptor_) {
        unique_fd event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
        if (!event)
            return tl::unexpected(system_error("eventfd"));
        // The caller holds the engine's mutex, which the thread takes first: it sees the state after this
        // call. The member is set last, so that a thread that cannot be started leaves no descriptor to wait
        // on.
        GAUDI_TRY(thread_, signal_free_thread("the thread of a copy engine", std::move(watch)));
        descriptor_ = std::move(event);
    }
    return descriptor_.get();
}

void completion_event::arm() {
    // One event per call, as ibv_req_notify_cq: signal() takes it back.
    armed_ = true;
    wake();
}

void completion_event::signal() {
    // A completion that no reader wanted is forgotten: a reader arms first, then polls, and so finds it.
    if (!std::exchange(unsignalled_, false) || !descriptor_ || !wanted())
        return;
    armed_ = false;
    // The descriptor is non-blocking: readers that never read it cannot block the engine.
    const std::uint64_t one = 1;
    if (::write(descriptor_.get(), &one, sizeof(one)) < 0)
        return; // the counter is full, so the descriptor is readable already
}

void completion_event::end(std::mutex& engine) {
    {
        const std::lock_guard guard(engine);
        ending_ = true;
        // The lock is released before join(): the thread needs it to leave its loop.
        wake_->notify_all();
    }
    if (thread_.joinable())
        thread_.join();
}

void completion_event::abandon() {
    if (thread_.joinable()) // it does not exist here and can be neither joined nor detached: leaked
        static_cast<void>(new (std::nothrow) std::thread(std::move(thread_)));
    static_cast<void>(wake_.release()); // leaked: the destructor would wait for waiters of the parent
}

} // namespace gaudi
