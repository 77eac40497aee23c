// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/device.hpp>

#include "ucx/base/engine_keeper.hpp"
#include "ucx/base/ticket_transport.hpp"

#include <map>

namespace gaudi_ucx {

// Copies within this process on the engines of its devices. One interface serves them all.
class engine_transport : public ticket_transport<gaudi::copy_ticket> {
public:
    engine_transport(uct_gaudi_module& module, const char* what);
    ~engine_transport() override;

    [[nodiscard]] std::vector<std::byte> process_address() override;
    // Only itself is reached: device addresses mean something in this process alone.
    [[nodiscard]] const char* why_unreachable(const void* machine, const void* process) override;
    unsigned progress() override;
    ucs_status_t event_fd(int* fd) override;
    ucs_status_t arm() override;

protected:
    [[nodiscard]] bool finished(gaudi::copy_ticket& ticket) override { return ticket.finished(); }
    [[nodiscard]] const char* what_follows() const override {
        return "UCX does not look at the end of copies that it stages messages with; those under way may be "
               "reported as complete with old bytes in them. End or restart what they belong to";
    }

    // `options` count if nobody has the device's engine yet.
    [[nodiscard]] gaudi::result<gaudi::copy_engine> engine_of(unsigned device,
                                                              const gaudi::copy_options& options);
    void forget_engine(unsigned device) { keeper_->forget(device); }
    // Begins a copy of which one side is memory of the engine's device, or both are.
    [[nodiscard]] static gaudi::result<gaudi::copy_ticket>
    begin_on(gaudi::copy_engine& engine, std::uint64_t to, bool to_device, std::uint64_t from,
             bool from_device, std::size_t length, const gaudi::copy_hints& hints);

private:
    template <typename F>
    void for_each_engine(F&& visit) {
        for (auto& [index, known] : engines_)
            if (auto core = known.lock())
                visit(gaudi::copy_engine(std::move(core)));
    }
    void watch(gaudi::copy_engine& engine);

    std::uint64_t id_ = 0;
    const std::shared_ptr<engine_keeper> keeper_;
    std::map<unsigned, std::weak_ptr<gaudi::copy_core>> engines_; // that were used here, by device
    int epoll_ = -1;                                              // over the engines' event descriptors
};

} // namespace gaudi_ucx
