// SPDX-License-Identifier: BSD-3-Clause
// Looks up the two places, then tries the paths in order. A path that cannot be used is passed over with its
// reason; a request that is wrong fails at once, because no other path would make it right.
#include "src/os/internals.hpp"
#include "src/transfer/copier_core.hpp"

#include "src/error/try.hpp"
#include "src/memory/editable_address_map.hpp"
#include "src/os/fork_count.hpp"
#include "src/os/per_process.hpp"
#include "src/transfer/paths/nic_loopback.hpp"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <system_error>

namespace gaudi {
namespace {

using kind = copy_end::kind;

// Longest copy that a NIC makes while the caller waits in copy(): longer ones would block it too long.
constexpr std::uint64_t most_now = 64 * 1024;

constexpr auto poll_interval = std::chrono::microseconds(50);

// The copier of imported buffers.
struct process_copier {
    std::mutex mutex;
    std::shared_ptr<copier_core> instance;
};

// Whether trying another path is useless: the request is invalid, or one of its ends is gone. A broken
// connection does not count: it is a NIC's loopback connection.
bool is_final(const error& why) {
    return why.kind() == error_kind::invalid || why.kind() == error_kind::device_lost ||
           (why.kind() == error_kind::peer_gone && why.code() != errc::connection_broken);
}

bool allows(const copy_policy& policy, copy_path which) {
    return policy.only.value_or(which) == which && !(policy.zero_copy && !is_zero_copy(which));
}

} // namespace

std::shared_ptr<copier_core> copier_core::of_process() {
    auto& own = per_process<process_copier>();
    const std::lock_guard guard(own.mutex);
    if (!own.instance) {
        copier_options options;
        options.keep = false;
        // It keeps nothing: an import must not keep a device open that its program believes closed.
        own.instance = std::make_shared<copier_core>(options);
    }
    return own.instance;
}

void copier_core::drop_of_process() {
    auto& own = per_process<process_copier>();
    std::shared_ptr<copier_core> last; // destroyed after unlocking
    const std::lock_guard guard(own.mutex);
    last.swap(own.instance);
}

copier_core::copier_core(const copier_options& options)
    : options_(options), forks_(fork_count()), devices_(options) {
    const path_tools tools{devices_, pending_, std::make_shared<slab_pool>(), options.keep};
    auto nic = std::make_unique<nic_loopback>(tools);
    small_ = nic.get();
    paths_ = {make_host_copy(), make_engine(tools), make_owner_context(tools), make_peer_dmabuf(tools),
              std::move(nic),   make_staged(tools), make_owner_proxy(tools)};
}

copier_core::~copier_core() = default;

result<void> copier_core::look_up_imported(const place& which, copy_end& end, copy_job& job) {
    const auto& buffer = *which.imported_;
    const auto offset = which.address_.value();
    if (!buffer.lease_ || !lies_within(offset, which.length_, buffer.length_))
        return tl::unexpected(
            error(errc::range_leaves_allocation,
                  fmt::format("{} bytes at {} of {}", which.length_, offset, buffer.length_)));
    end.offset = buffer.offset_ + offset;
    end.address = buffer.lease_->base() + end.offset;
    if (buffer.lease_->local())
        return buffer.lease_->check(); // this process's own memory: no copy is counted
    if (job.lease)
        return tl::unexpected(
            error(errc::no_path, "both places are memory of other processes: copy through one's own"));
    end.what = kind::leased;
    job.lease = buffer.lease_;
    return {};
}

result<void> copier_core::look_up(const place& which, copy_end& end, copy_job& job) {
    switch (which.kind_) {
    case place::kind::host:
        end.host = which.host_;
        return {};
    case place::kind::dmabuf:
        end.what = kind::dmabuf;
        end.fd = which.fd_;
        end.offset = which.address_.value();
        return {};
    case place::kind::imported:
        GAUDI_CHECK(look_up_imported(which, end, job));
        if (end.is(kind::leased))
            return {};
        break;
    case place::kind::device:
        end.address = which.address_;
        break;
    }
    end.what = kind::device;
    if (which.device_ >= 0) {
        end.device = static_cast<unsigned>(which.device_);
        return {};
    }
    const auto index = known_memory().device_of(end.address);
    if (!index)
        return tl::unexpected(no_allocation(end.address, which.length_, ", memory of no open device"));
    end.device = *index;
    return {};
}

result<void> copier_core::look_up(const place& to, const place& from, copy_job& job) {
    job.length = from.length_;
    if (to.length_ != from.length_)
        return tl::unexpected(error(errc::length_mismatch, fmt::format("copy of {} bytes to a place of {}",
                                                                       from.length_, to.length_)));
    if (job.length == 0)
        return tl::unexpected(error(errc::size_zero, "copy of 0 bytes"));
    GAUDI_CHECK(look_up(to, job.to, job));
    GAUDI_CHECK(look_up(from, job.from, job));
    if (to.read_only_)
        return tl::unexpected(error(errc::host_range_invalid, "the destination is const memory"));
    return {};
}

result<copy_ticket> copier_core::copy(const place& to, const place& from, const copy_policy& policy) {
    if (forks_ != fork_count())
        return tl::unexpected(error(errc::forked, "a copier"));
    copy_job job;
    GAUDI_CHECK(look_up(to, from, job));
    // For a few bytes the NIC is faster than an engine, whose submission and completion are driver calls.
    bool nic_first = job.length <= options_.nic_max && job.between_host_and_device() && small_->works();
    if (nic_first && job.length <= most_now && !policy.only) {
        if (auto done = small_->copy_now(job))
            return done;
        nic_first = false; // an engine copies, or reports the error
    }
    job.hints = policy.hints;
    if (job.lease) {
        // From here on the owner waits for this copy before it frees the memory.
        GAUDI_TRY(job.kept, job.lease->begin_copy());
    }
    return try_paths(job, policy, nic_first);
}

result<copy_ticket> copier_core::try_paths(const copy_job& job, const copy_policy& policy, bool nic_first) {
    std::vector<std::pair<copy_path, error>> failures;
    for (std::size_t i = nic_first ? 0 : 1; i <= copy_paths; ++i) {
        // 0 stands for the NIC before its turn: a copy within nic_max but too long to wait for in this call.
        auto& candidate = i == 0 ? static_cast<path&>(*small_) : *paths_[i - 1];
        if (!allows(policy, candidate.which()) || candidate.unsuited(job) != nullptr)
            continue;
        auto started = candidate.start(job);
        if (started || is_final(started.error()) || policy.only)
            return started;
        failures.emplace_back(candidate.which(), started.error());
    }
    return tl::unexpected(nothing_viable(job, policy, failures));
}

error copier_core::nothing_viable(const copy_job& job, const copy_policy& policy,
                                  std::span<const std::pair<copy_path, error>> failures) const {
    std::string text;
    const auto say = [&](copy_path which, std::string_view why) {
        text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", name_of(which), why);
    };
    for (const auto& [which, why] : failures) {
        if (why.code() == errc::too_many_operations) // a path exists and will have room later
            return why;
        say(which,
            why.system_error() == 0
                ? why.observed()
                : fmt::format("{}: {}", why.observed(), std::generic_category().message(why.system_error())));
    }
    if (failures.size() == 1 && !policy.zero_copy)
        return failures.front().second;
    if (failures.empty())
        for (const auto& candidate : paths_)
            if (allows(policy, candidate->which()))
                if (const char* const why = candidate->unsuited(job); why != nullptr)
                    say(candidate->which(), why);
    return {policy.zero_copy ? errc::zero_copy_impossible : errc::no_path, std::move(text)};
}

std::vector<path_verdict> copier_core::paths(const place& to, const place& from) {
    std::vector<path_verdict> verdicts;
    copy_job job;
    auto ready = look_up(to, from, job);
    if (ready && job.lease)
        ready = job.lease->begin_copy().map([&](auto kept) { job.kept = std::move(kept); });
    for (const auto& candidate : paths_) {
        path_verdict verdict{candidate->which(), std::nullopt};
        if (!ready) {
            verdict.why_not = ready.error();
        } else if (const char* const why = candidate->unsuited(job); why != nullptr) {
            verdict.why_not = error(errc::no_path, why);
        } else if (const auto prepared = candidate->prepare(job); !prepared) {
            verdict.why_not = prepared.error();
        }
        verdicts.push_back(std::move(verdict));
    }
    return verdicts;
}

void copier_core::poll() {
    devices_.for_each_engine([](copy_core& engine) { engine.poll(); });
    pending_.poll();
}

void copier_core::watch(copy_core& engine) {
    const auto fd = engine.event_fd(event_when::armed);
    // Edge-triggered: other users share the descriptor, so that it is never read here.
    // Out of descriptors: a timer polls instead, which is slower but wakes the caller in any case.
    if (!fd || !events_.add(*fd, EPOLLIN | EPOLLET)) {
        unwatched_ = true;
        events_.set_timer(poll_interval);
        return;
    }
    engine.arm(); // another thread may be asleep already
}

result<int> copier_core::event_fd() {
    const std::lock_guard guard(events_mutex_);
    if (events_)
        return events_.descriptor();
    GAUDI_TRY(events_, event_set::make("the event descriptor of a copier"));
    devices_.when_new([this](copy_core& engine) { watch(engine); });
    devices_.for_each_engine([this](copy_core& engine) { watch(engine); });
    // Only where a thread may be asleep: setting a timer is a system call, which a copy must not cost.
    pending_.when_added([this] {
        if (armed_.exchange(false))
            events_.set_timer(poll_interval);
    });
    return events_.descriptor();
}

// Copies on some paths advance only when this process polls them: while such copies are in flight, a timer
// makes the descriptor readable.
void copier_core::arm() {
    const std::lock_guard guard(events_mutex_);
    if (!events_)
        return;
    events_.discard(); // the engines are polled below
    const bool polled = pending_.any() || unwatched_;
    events_.set_timer(polled ? poll_interval : std::chrono::microseconds(0));
    // Before the pending copies are counted, so that one that is added meanwhile sets the timer.
    armed_.store(true);
    devices_.for_each_engine([](copy_core& engine) {
        engine.arm();
        engine.poll();
    });
    if (!polled && pending_.any())
        events_.set_timer(poll_interval);
}

void copier_core::forget(unsigned device_index) {
    for (const auto& path : paths_)
        path->forget(device_index);
    devices_.forget(device_index);
}

void copier_core::drop_lost() {
    for (const auto& path : paths_)
        path->drop_lost();
    devices_.drop_lost();
}

// ---- the public class ----

copier::copier(const copier_options& options) : core_(std::make_shared<copier_core>(options)) {}
copier::~copier() = default;
copier::copier(copier&&) noexcept = default;
copier& copier::operator=(copier&&) noexcept = default;

result<copy_ticket> copier::copy(const place& to, const place& from, const copy_policy& policy) {
    return core_->copy(to, from, policy);
}

std::vector<path_verdict> copier::paths(const place& to, const place& from) {
    return core_->paths(to, from);
}

void copier::poll() {
    core_->poll();
}

result<int> copier::event_fd() {
    return core_->event_fd();
}

void copier::arm() {
    core_->arm();
}

result<copy_engine> copier::engine_of(unsigned device_index) {
    return core_->devices().engine_of(device_index).map([](auto core) {
        return internals::wrap<copy_engine>(std::move(core));
    });
}

void copier::forget(unsigned device_index) {
    core_->forget(device_index);
}

void copier::drop_lost() {
    core_->drop_lost();
}

} // namespace gaudi
