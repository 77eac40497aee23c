// SPDX-License-Identifier: BSD-3-Clause
#include "src/error/try.hpp"
#include "src/os/internals.hpp"
#include "src/transfer/device_table.hpp"
#include "src/transfer/path.hpp"

namespace gaudi {
namespace {

using kind = copy_end::kind;

class engine final : public path {
public:
    explicit engine(const path_tools& tools) : devices_(tools.devices) {}

    [[nodiscard]] copy_path which() const override { return copy_path::engine; }
    [[nodiscard]] const char* unsuited(const copy_job& job) const override {
        if (job.between_host_and_device())
            return nullptr;
        if (!job.to.is(kind::device) || !job.from.is(kind::device))
            return "an engine copies between its device and host memory, or within its device";
        return job.to.device == job.from.device ? nullptr : "the two places are on two devices";
    }
    result<void> prepare(const copy_job& job) override {
        return devices_.engine_of(job.end_of(kind::device).device).map([](const auto&) {});
    }
    result<copy_ticket> start(const copy_job& job) override {
        // The ticket keeps the engine, and with it the device, until it is dropped.
        GAUDI_TRY(auto core, devices_.engine_of(job.end_of(kind::device).device));
        const copy_details details{job.hints};
        GAUDI_TRY(const auto slot, job.from.is(kind::host)
                                       ? core->write(job.to.address, job.host_of(job.from), details)
                                   : job.to.is(kind::host)
                                       ? core->read(job.host_of(job.to), job.from.address, details)
                                       : core->copy(job.to.address, job.from.address, job.length, details));
        return internals::wrap<copy_ticket>(std::move(core), slot, which(), job.length);
    }

private:
    device_table& devices_;
};

} // namespace

std::unique_ptr<path> make_engine(const path_tools& tools) {
    return std::make_unique<engine>(tools);
}

} // namespace gaudi
