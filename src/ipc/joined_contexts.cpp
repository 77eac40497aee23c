// SPDX-License-Identifier: BSD-3-Clause
#include "src/ipc/joined_contexts.hpp"

#include "src/copy/copy_core.hpp"
#include "src/device/registry.hpp"
#include "src/error/try.hpp"
#include "src/ipc/owner_link.hpp"
#include "src/os/internals.hpp"

namespace gaudi {

std::optional<result<copy_engine>> joined_contexts::find(std::uint64_t node) {
    const std::lock_guard guard(mutex_);
    if (const auto joined = engines_.find(node); joined != engines_.end())
        return joined->second;
    if (const auto refusal = refused_.find(node); refusal != refused_.end())
        return tl::unexpected(refusal->second);
    return std::nullopt;
}

result<copy_engine> joined_contexts::refuse(std::uint64_t node, error reason) {
    const std::lock_guard guard(mutex_);
    return tl::unexpected(refused_.emplace(node, std::move(reason)).first->second);
}

result<copy_engine> joined_contexts::engine(owner_link& link, std::uint64_t node, std::uint32_t lease) {
    if (auto joined = find(node))
        return std::move(*joined);
    // The driver's context is one, but each answer makes this process a member with a number of its own.
    const std::lock_guard one_at_a_time(joining_);
    if (auto joined = find(node)) // by another thread meanwhile
        return std::move(*joined);
    auto answer = link.ask(open_context_request{lease});
    if (!answer) {
        const auto kind = answer.error().kind();
        // The owner will not answer otherwise later.
        if (kind == error_kind::not_permitted || kind == error_kind::unsupported)
            return refuse(node, answer.error());
        return tl::unexpected(answer.error());
    }
    GAUDI_TRY(const auto api, registry::self().api());
    GAUDI_TRY(auto context, join_context(api, answer->body, answer->passed));
    // Without an address map: the memory is the owner's, and the lease has been checked.
    auto core = copy_core::make(context, nullptr, {});
    if (!core)
        return refuse(node, core.error());
    auto made = internals::wrap<copy_engine>(*core);
    const std::lock_guard guard(mutex_);
    // After close() nothing keeps the engine but the copy that asked for it.
    if (!closed_)
        engines_.emplace(node, made);
    return made;
}

void joined_contexts::close() {
    std::map<std::uint64_t, copy_engine> gone; // destroyed after unlocking: an engine may wait for its copies
    const std::lock_guard guard(mutex_);
    // A thread may be waiting for the owner's answer: what it joins must not keep the device open.
    closed_ = true;
    gone.swap(engines_);
}

} // namespace gaudi
