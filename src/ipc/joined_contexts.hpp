// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/copy_engine.hpp>

#include "src/ipc/messages.hpp"
#include "src/os/channel.hpp"

#include <map>
#include <memory>
#include <mutex>

namespace gaudi {

class hl_device;
class hlthunk_api;
class owner_link;

// Joins the context that an owner's answer passed: the device's descriptor and the shared context. `host` is
// kept as long as the context. In join_context.cpp.
[[nodiscard]] result<std::shared_ptr<hl_device>> join_context(const std::shared_ptr<const hlthunk_api>& api,
                                                              const opened_context& answer,
                                                              std::array<unique_fd, most_passed>& passed,
                                                              std::shared_ptr<void> host = {});

// The contexts of one owner that this process has joined, and an engine on each. Thread-safe.
class joined_contexts {
public:
    // An engine on the owner's device `node`; a lease of memory on that device gives the right to ask for it.
    result<copy_engine> engine(owner_link& link, std::uint64_t node, std::uint32_t lease);
    // Drops the engines, which would keep the owner's device open. No later one is kept.
    void close();

private:
    [[nodiscard]] std::optional<result<copy_engine>> find(std::uint64_t node);
    result<copy_engine> refuse(std::uint64_t node, error reason);

    std::mutex joining_;                           // held while the owner is asked; never by close()
    std::mutex mutex_;                             // guards the rest
    std::map<std::uint64_t, copy_engine> engines_; // by node
    std::map<std::uint64_t, error> refused_;       // contexts that the owner refuses to share
    bool closed_ = false;
};

} // namespace gaudi
