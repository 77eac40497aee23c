// SPDX-License-Identifier: BSD-3-Clause
// A process that executes orders of the active process, which come over a socket and not over UCX: it passes
// keys, receives, frees, dies.
#pragma once

#include "tests/ucx/programs/ucp_side.hpp"

#include <chrono>
#include <csignal>
#include <memory>

namespace ucp_side {

inline constexpr std::uint64_t features = UCP_FEATURE_TAG | UCP_FEATURE_RMA;
inline constexpr std::size_t large = 1 << 20, longest = 16 << 20;
inline constexpr std::uint64_t seed_of_target = 11, seed_of_other = 12, seed_of_fresh = 13, fatal_tag = 14;

// The orders of the active process to a passive one.
enum order : char { exchange, pass, die, release, reuse, compare, take, check_bytes, leave };

class passive {
public:
    explicit passive(int socket, bool handles_errors)
        : context_(features), worker_(context_, false), notes_(socket),
          peer_(worker_, worker_.connect(notes_, errors_handled(handles_errors)), socket, false) {
        renew(target_, seed_of_target);
        renew(other_, seed_of_other);                  // next to the target: shows writes past its end
        device_ = gaudi::expect(gaudi::open_device()); // already open in this process
    }

    void serve() {
        for (;;) {
            const auto word = peer_.receive_note();
            switch (word.at(0)) {
            case exchange:
                receive(static_cast<std::uint64_t>(word.at(1)));
                break;
            case pass:
                peer_.send_note(target_->pass());
                break;
            case die:
                die_under_a_message();
                break;
            case release:
                target_.reset();
                (void)memory(context_, "host", 4096); // UCX drops old registrations when it makes a new one
                peer_.send_note({release});
                break;
            case reuse:
                reuse_target();
                peer_.send_note({reuse});
                break;
            case compare:
                other_->expect(seed_of_other, "memory that no process was to write");
                if (fresh_)
                    fresh_->expect(seed_of_fresh, "memory that came after what was freed");
                peer_.send_note({compare});
                break;
            case take: // only the message uses the device
                peer_.send_note({take,
                                 static_cast<char>(receive_long(static_cast<std::uint64_t>(word.at(1)))),
                                 device_->lost()});
                break;
            case check_bytes:
                peer_.send_note({check_bytes, is_right(static_cast<std::uint64_t>(word.at(1)))});
                break;
            default:
                return;
            }
        }
    }

private:
    void renew(std::unique_ptr<memory>& which, std::uint64_t seed) {
        which = std::make_unique<memory>(context_, "gaudi", large);
        which->fill(seed);
    }
    // Frees the target and allocates new memory at its address, which the old key must not open.
    void reuse_target() {
        const auto* const was = target_->address();
        target_.reset();
        renew(fresh_, seed_of_fresh);
        if (fresh_->address() != was)
            throw failure("the new memory is not where the other one was");
    }
    // Receives a put, then a message.
    void receive(std::uint64_t seed) {
        memory mine(context_, "gaudi", large);
        mine.fill(~seed);
        peer_.send_note(mine.pass());
        (void)peer_.receive_note();
        mine.expect(seed, "a put");
        mine.fill(~seed);
        auto param = mine.param();
        peer_.done(ucp_tag_recv_nbx(worker_.handle(), mine.address(), large, seed, ~0ULL, &param),
                   "ucp_tag_recv_nbx");
        mine.expect(seed, "a message");
        peer_.send_note({exchange});
    }
    // Returns UCS_INPROGRESS if the message does not complete in time.
    ucs_status_t receive_long(std::uint64_t seed) {
        if (!long_)
            long_ = std::make_unique<memory>(context_, "gaudi", longest);
        auto param = long_->param();
        const auto request =
            ucp_tag_recv_nbx(worker_.handle(), long_->address(), longest, seed, ~0ULL, &param);
        const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
        while (UCS_PTR_IS_PTR(request) && ucp_request_check_status(request) == UCS_INPROGRESS) {
            ucp_worker_progress(worker_.handle());
            if (std::chrono::steady_clock::now() > deadline)
                return UCS_INPROGRESS;
        }
        const auto status =
            UCS_PTR_IS_PTR(request) ? ucp_request_check_status(request) : UCS_PTR_STATUS(request);
        if (UCS_PTR_IS_PTR(request))
            ucp_request_free(request);
        return status;
    }
    bool is_right(std::uint64_t seed) {
        try {
            long_->expect(seed, "a long message");
            return true;
        } catch (const failure&) {
            return false;
        }
    }
    // Dies after the rendezvous announcement, before it fetches the data.
    [[noreturn]] void die_under_a_message() {
        ucp_tag_recv_info_t info{};
        while (ucp_tag_probe_nb(worker_.handle(), fatal_tag, ~0ULL, 0, &info) == nullptr)
            ucp_worker_progress(worker_.handle());
        ::raise(SIGKILL);
        throw failure("lives on after SIGKILL");
    }

    context context_;
    worker worker_;
    notes notes_;
    peer peer_;
    std::unique_ptr<memory> target_, other_, fresh_, long_;
    std::shared_ptr<gaudi::device> device_;
};

} // namespace ucp_side
