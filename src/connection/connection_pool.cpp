// SPDX-License-Identifier: BSD-3-Clause
#include <gaudi/connection_pool.hpp>

#include "src/connection/connection_core.hpp"

#include "src/error/try.hpp"
#include "src/os/internals.hpp"

namespace gaudi {

connection_pool::pooled_connection::pooled_connection(connection_pool& home, std::string peer,
                                                      connection taken)
    : home_(&home), peer_(std::move(peer)), taken_(std::move(taken)) {}

connection_pool::pooled_connection::~pooled_connection() {
    if (taken_ && core_of(*taken_) != nullptr)
        home_->release(peer_, std::move(*taken_));
}

connection_pool::connection_pool(std::shared_ptr<nic> nic, const connection_options& options,
                                 std::size_t idle_per_peer)
    : nic_(std::move(nic)), options_(options), idle_per_peer_(idle_per_peer) {}

result<connection_pool::pooled_connection> connection_pool::take(const std::string& peer) {
    for (;;) {
        // Taken out under the lock and checked without it: a check reads the TCP stream.
        std::optional<connection> waiting;
        {
            const std::lock_guard guard(mutex_);
            if (auto& idle_connections = idle_[peer]; !idle_connections.empty()) {
                waiting.emplace(std::move(idle_connections.back()));
                idle_connections.pop_back();
            }
        }
        if (!waiting)
            break;
        if (core_of(*waiting)->catch_up()) // false where the peer closed the connection while it was idle
            return pooled_connection(*this, peer, std::move(*waiting));
    }
    GAUDI_TRY(auto opened, connect(nic_, peer, options_));
    return pooled_connection(*this, peer, std::move(opened));
}

void connection_pool::release(const std::string& peer, connection returned) {
    returned.poll();
    // A note or an outstanding operation would reach the next user of the connection.
    // A peer that accesses staged memory would find its slabs gone.
    if (!returned.alive() || !core_of(returned)->idle() || core_of(returned)->offers().busy())
        return;
    // The next user must not expose the memory of this one.
    core_of(returned)->offers().clear();
    const std::lock_guard guard(mutex_);
    if (auto& idle_connections = idle_[peer]; idle_connections.size() < idle_per_peer_)
        idle_connections.push_back(std::move(returned));
}

std::size_t connection_pool::idle() const {
    const std::lock_guard guard(mutex_);
    std::size_t all = 0;
    for (const auto& [peer, waiting] : idle_)
        all += waiting.size();
    return all;
}

void connection_pool::clear() {
    // Closed after unlocking: a close may wait for the peer, up to a second.
    decltype(idle_) gone;
    const std::lock_guard guard(mutex_);
    gone.swap(idle_);
}

} // namespace gaudi
