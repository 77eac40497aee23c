// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/connection.hpp>

#include <map>
#include <mutex>

namespace gaudi {

// Connections by peer, kept when they are not in use: making one costs a handshake and a queue pair.
// Thread-safe; a connection that was taken is its taker's alone.
class connection_pool {
public:
    // Returns the connection to the pool, if it is alive and nothing is under way on it; else it is closed.
    // Must not outlive the pool.
    class pooled_connection {
    public:
        pooled_connection(connection_pool& home, std::string peer, connection taken);
        pooled_connection(pooled_connection&&) noexcept = default;
        pooled_connection& operator=(pooled_connection&&) = delete;
        ~pooled_connection();

        connection& operator*() { return *taken_; }
        connection* operator->() { return &*taken_; }

    private:
        connection_pool* home_;
        std::string peer_;
        std::optional<connection> taken_;
    };

    explicit connection_pool(std::shared_ptr<nic> nic, const connection_options& options = {},
                             std::size_t idle_per_peer = 4);

    // One that waits here and still lives, or a new one. As connect().
    [[nodiscard]] result<pooled_connection> take(const std::string& peer);
    // How many wait.
    [[nodiscard]] std::size_t idle() const;
    // Closes those that wait.
    void clear();

private:
    void give_back(const std::string& peer, connection returned);

    const std::shared_ptr<nic> nic_;
    const connection_options options_;
    const std::size_t idle_per_peer_;
    mutable std::mutex mutex_;
    std::map<std::string, std::vector<connection>> idle_;
};

} // namespace gaudi
