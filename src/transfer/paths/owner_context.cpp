// SPDX-License-Identifier: BSD-3-Clause
#include "src/transfer/paths/owner_context.hpp"
#include "src/os/internals.hpp"

#include "src/device/registry.hpp"
#include "src/error/try.hpp"
#include "src/transfer/device_table.hpp"
#include "src/transfer/path.hpp"
#include "src/transfer/pending_copy.hpp"

namespace gaudi {

result<std::shared_ptr<copy_core>> engine_on_context(device_table& devices,
                                                     const std::shared_ptr<lease_core>& lease) {
    const auto node = lease->handle().device;
    for (const auto& device : registry::self().all_open()) // the same context, whichever process opened it
        if (core_of(*device)->node() == node)
            if (auto own = devices.engine_of(core_of(*device)->identity().index))
                return own;
    if (lease->local())
        return tl::unexpected(lease->gone_error());
    return lease->link()->context_engine(node, lease->slot()).map([](const auto& each) {
        return core_of(each);
    });
}

namespace {

using kind = copy_end::kind;

class owner_context final : public path {
public:
    explicit owner_context(const path_tools& tools) : devices_(tools.devices), pending_(tools.pending) {}

    [[nodiscard]] copy_path which() const override { return copy_path::owner_context; }
    [[nodiscard]] const char* unsuited(const copy_job& job) const override {
        if (!job.lease)
            return "no memory of another process";
        return job.has(kind::dmabuf) ? "a DMA-BUF, which the owner's engine cannot reach" : nullptr;
    }
    result<void> prepare(const copy_job& job) override {
        return engine_for(job).map([](const auto&) {});
    }
    result<copy_ticket> start(const copy_job& job) override {
        GAUDI_TRY(auto core, engine_for(job));
        GAUDI_TRY(const auto slot, begin(*core, job));
        auto ticket = internals::wrap<copy_ticket>(std::move(core), slot, which(), job.length);
        return pending_.add(std::make_shared<engine_copy>(std::move(ticket), job.lease, nullptr));
    }

private:
    result<std::shared_ptr<copy_core>> engine_for(const copy_job& job) {
        const auto& local = job.other_than(kind::leased);
        if (!local.is(kind::device))
            return engine_on_context(devices_, job.lease);
        GAUDI_TRY(const auto own, devices_.device_of(local, job.length));
        if (core_of(*own)->node() != job.lease->handle().device)
            return tl::unexpected(error(errc::no_path, "the memory is another device's"));
        return devices_.engine_of(local.device);
    }
    result<std::uint32_t> begin(copy_core& core, const copy_job& job) {
        if (job.from.is(kind::host))
            return core.write_unchecked(job.to.address, job.host_of(job.from), job.hints, which());
        if (job.to.is(kind::host))
            return core.read_unchecked(job.host_of(job.to), job.from.address, job.hints, which());
        return core.copy_unchecked(job.to.address, job.from.address, job.length, copy_direction::within,
                                   job.hints, which());
    }

    device_table& devices_;
    pending_copies& pending_;
};

} // namespace

std::unique_ptr<path> make_owner_context(const path_tools& tools) {
    return std::make_unique<owner_context>(tools);
}

} // namespace gaudi
