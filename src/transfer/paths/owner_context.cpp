// SPDX-License-Identifier: BSD-3-Clause
#include "src/error/try.hpp"
#include "src/os/internals.hpp"
#include "src/transfer/device_table.hpp"
#include "src/transfer/path.hpp"

namespace gaudi {
namespace {

using kind = copy_end::kind;

// The first choice for another process's memory: this process submits to the owner's device itself, and the
// owner takes no part. It needs the owner's trust, because a context has no rights below "all" (gotcha I1).
class owner_context final : public path {
public:
    explicit owner_context(const path_tools& tools) : devices_(tools.devices) {}

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
        return internals::wrap<copy_ticket>(std::move(core), slot, which(), job.length);
    }

private:
    result<std::shared_ptr<copy_core>> engine_for(const copy_job& job) {
        const auto& local = job.other_than(kind::leased);
        if (!local.is(kind::device))
            return devices_.engine_on_context(*job.lease);
        // Both ends on one device: an engine of this process's own context reaches both.
        GAUDI_TRY(const auto own, devices_.device_of(local, job.length));
        if (core_of(*own)->node() != job.lease->handle().device)
            return tl::unexpected(error(errc::no_path, "the memory is another device's"));
        return devices_.engine_of(local.device);
    }
    result<std::uint32_t> begin(copy_core& core, const copy_job& job) {
        // Not checked: the address map of this process does not have the owner's allocations.
        const copy_details details{job.hints, which(), job.kept, false};
        if (job.from.is(kind::host))
            return core.write(job.to.address, job.host_of(job.from), details);
        if (job.to.is(kind::host))
            return core.read(job.host_of(job.to), job.from.address, details);
        return core.copy(job.to.address, job.from.address, job.length, details);
    }

    device_table& devices_;
};

} // namespace

std::unique_ptr<path> make_owner_context(const path_tools& tools) {
    return std::make_unique<owner_context>(tools);
}

} // namespace gaudi
