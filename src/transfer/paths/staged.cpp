// SPDX-License-Identifier: BSD-3-Clause
#include "src/error/try.hpp"
#include "src/os/internals.hpp"
#include "src/transfer/device_table.hpp"
#include "src/transfer/path.hpp"
#include "src/transfer/pipeline.hpp"

namespace gaudi {
namespace {

using kind = copy_end::kind;

// Two engines copy in turn, through slabs that are pinned for both. The pins of this process's engines are
// kept with the slabs; those on another process's context end with the copy, because they would keep its
// device busy.
class staged final : public path {
public:
    explicit staged(const path_tools& tools) : tools_(tools) {}

    [[nodiscard]] copy_path which() const override { return copy_path::staged; }
    [[nodiscard]] const char* unsuited(const copy_job& job) const override {
        if (job.has(kind::host))
            return "host memory needs no staging where an engine can be used";
        return job.has(kind::dmabuf) ? "no engine of a foreign DMA-BUF's device is known" : nullptr;
    }
    result<void> prepare(const copy_job& job) override {
        GAUDI_CHECK(side_of(job, job.from));
        return side_of(job, job.to).map([](const side&) {});
    }
    result<copy_ticket> start(const copy_job& job) override {
        GAUDI_TRY(auto source, side_of(job, job.from));
        GAUDI_TRY(auto destination, side_of(job, job.to));
        const auto pool = tools_.slabs;
        GAUDI_TRY(std::shared_ptr<slab_pool::set> set, pool->take());
        pipeline::slab_set slabs;
        for (std::uint64_t rest = job.length; rest > 0 && slabs.count < slab_pool::slabs; ++slabs.count) {
            for (const auto& used_side : {source, destination})
                GAUDI_CHECK(set->pin(slabs.count, used_side.engine, used_side.keep));
            slabs.memory[slabs.count] = set->slab(slabs.count);
            rest -= std::min<std::uint64_t>(rest, slab_pool::slab_bytes);
        }
        // With a reference to the pool: the copy may outlive its copier.
        slabs.release = [pool, set] { pool->release(set); };
        return tools_.pending.add(
            std::make_shared<pipeline>(which(), job.length, job.kept, std::move(slabs),
                                       engine_step(std::move(source.engine), job.from.address, true),
                                       engine_step(std::move(destination.engine), job.to.address, false)));
    }
    void forget(unsigned index) override {
        tools_.slabs->drop_pins([&](copy_core& of) { return of.device().identity().index == index; });
    }
    void drop_lost() override {
        tools_.slabs->drop_pins([](copy_core& of) { return of.device().lost(); });
    }

private:
    struct side {
        std::shared_ptr<copy_core> engine;
        bool keep; // keep its pins after the copy
    };
    result<side> side_of(const copy_job& job, const copy_end& end) {
        if (end.is(kind::leased))
            return tools_.devices.engine_on_context(*job.lease).map([](auto engine) {
                return side{std::move(engine), false};
            });
        GAUDI_CHECK(tools_.devices.device_of(end, job.length));
        return tools_.devices.engine_of(end.device).map([&](auto engine) {
            return side{std::move(engine), tools_.keep};
        });
    }

    const path_tools tools_;
};

} // namespace

std::unique_ptr<path> make_staged(const path_tools& tools) {
    return std::make_unique<staged>(tools);
}

} // namespace gaudi
