// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/connection.hpp>

#include "src/connection/control_channel.hpp"
#include "src/connection/credits.hpp"
#include "src/connection/handshake.hpp"
#include "src/os/mapping.hpp"

namespace gaudi {

// What two processes share once they are connected: the TCP stream, the queue pair, the memory for credits
// and atomic results, and the limits that both sides agreed on in the handshake.
struct connection_link {
    enum class role { client, server };
    // Runs the handshake on the stream. errc::handshake_timeout, handshake_refused, version_mismatch.
    static result<std::unique_ptr<connection_link>> establish(const std::shared_ptr<gaudi::nic>& through,
                                                              stream joined, role side,
                                                              const connection_options& options,
                                                              time_point deadline);
    connection_link(std::shared_ptr<gaudi::nic> through, stream joined, const connection_options& bounded);

    [[nodiscard]] nic_core& nic() const;
    // In a child of fork: releases the verbs handles without destroying them, because the parent uses them.
    void abandon();

    // Words that the peer's NIC writes, and words that only this side's NIC reads or writes.
    struct shared_words {
        credit::ring from_peer;
        credit::ring to_peer;
        std::uint64_t atomic_results[1]; // one for each operation
    };

    const std::shared_ptr<gaudi::nic> opened_nic;
    const connection_options options;
    control_channel control;
    mapping memory;
    shared_words* words = nullptr;
    mr_handle words_region;   // local access only
    mr_handle credits_region; // covers only from_peer, which the peer may write
    queue_pair pair;
    hello remote_hello;
    std::uint32_t segment = 0; // longest part of a message
    std::uint64_t longest_write = 0;
    bool atomics = false;

private:
    result<void> prepare();
    [[nodiscard]] hello greeting() const;
    result<void> shake_hands(role side, time_point deadline);
};

} // namespace gaudi
