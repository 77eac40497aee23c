// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/connection.hpp>

#include <map>
#include <mutex>

namespace gaudi {

/// Keeps idle connections by peer for later use, because establishing one costs a handshake and a queue pair.
/// Thread-safe. A connection that was taken belongs to its caller alone.
class connection_pool {
public:
    /// A connection taken from the pool. The destructor returns it to the pool if it is alive and no
    /// operation is outstanding, and closes it otherwise. Must not outlive the pool.
    class pooled_connection {
    public:
        pooled_connection(pooled_connection&&) noexcept = default;
        pooled_connection& operator=(pooled_connection&&) = delete;
        ~pooled_connection();

        connection& operator*() { return *taken_; }
        connection* operator->() { return &*taken_; }

    private:
        friend class connection_pool;
        pooled_connection(connection_pool& home, std::string peer, connection taken);

        connection_pool* home_;
        std::string peer_;
        std::optional<connection> taken_;
    };

    /// The options apply to connections that take() makes; more idle ones of a peer are closed.
    explicit connection_pool(std::shared_ptr<nic> nic, const connection_options& options = {},
                             std::size_t idle_per_peer = 4);

    /// An idle connection to the peer that is still alive, or a new one. Errors as connect().
    [[nodiscard]] result<pooled_connection> take(const std::string& peer);
    /// The number of idle connections.
    [[nodiscard]] std::size_t idle() const;
    /// Closes the idle connections.
    void clear();

private:
    void release(const std::string& peer, connection returned);

    const std::shared_ptr<nic> nic_;
    const connection_options options_;
    const std::size_t idle_per_peer_;
    mutable std::mutex mutex_;
    std::map<std::string, std::vector<connection>> idle_;
};

} // namespace gaudi
