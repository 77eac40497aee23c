// SPDX-License-Identifier: BSD-3-Clause
// The last path, which needs nothing but an engine in the owner: the owner copies into slabs that both
// processes map, this process copies out of them, or the reverse. Two slabs are in use, so that both work at
// the same time.
#include "src/error/try.hpp"
#include "src/transfer/device_table.hpp"
#include "src/transfer/path.hpp"
#include "src/transfer/pipeline.hpp"

#include <fmt/format.h>

namespace gaudi {
namespace {

using kind = copy_end::kind;
using clock = std::chrono::steady_clock;

constexpr unsigned enough_slabs = 2; // one is filled while the other is emptied

// The leased side: the owner copies between the leased memory and slabs that both processes share.
class owner_step : public pipeline_step {
public:
    owner_step(std::shared_ptr<lease_core> lease, std::uint64_t offset, bool source,
               std::span<const std::uint64_t> slab_offsets)
        : lease_(std::move(lease)), offset_(offset), source_(source) {
        std::copy(slab_offsets.begin(), slab_offsets.end(), slab_offsets_.begin());
    }
    result<void> start(unsigned slab, std::span<std::byte> bytes, std::uint64_t offset) override {
        const copy_request request{lease_->slot(), source_ ? 1U : 0U, offset_ + offset, bytes.size(),
                                   slab_offsets_[slab]};
        // Never blocks: a full socket is the broker's thread's to flush.
        GAUDI_TRY(ids_[slab], lease_->link()->post(request));
        asked_[slab] = clock::now();
        return {};
    }
    std::optional<result<void>> check(unsigned slab) override {
        const auto& link = lease_->link();
        // The answer is also where the data is ready: the owner sends it after its engine has completed.
        const auto answer = link->answer_to(ids_[slab]);
        if (answer)
            return *answer ? result<void>() : tl::unexpected(answer->error());
        const auto answer_timeout = link->settings().answer_timeout;
        if (clock::now() - asked_[slab] < answer_timeout)
            return std::nullopt;
        link->disconnect(); // late writes by the owner must not reach slabs of the next copy
        return result<void>(
            tl::unexpected(error(errc::peer_silent, fmt::format("process {}, waited {} ms", link->owner().pid,
                                                                answer_timeout.count()))));
    }

private:
    std::shared_ptr<lease_core> lease_;
    std::uint64_t offset_;
    bool source_;
    std::array<std::uint64_t, pipeline::most_slabs> slab_offsets_{}, ids_{};
    std::array<clock::time_point, pipeline::most_slabs> asked_{};
};

// Slabs of one copy; the destructor releases them.
struct copy_slabs {
    std::shared_ptr<owner_link> link;
    std::vector<owner_slabs::slab> slabs;

    explicit copy_slabs(std::shared_ptr<owner_link> of) : link(std::move(of)) {}
    copy_slabs(const copy_slabs&) = delete;
    copy_slabs& operator=(const copy_slabs&) = delete;
    ~copy_slabs() {
        for (const auto& slab : slabs)
            link->slabs().release(slab.offset);
    }
};

class owner_proxy final : public path {
public:
    explicit owner_proxy(const path_tools& tools) : tools_(tools) {}

    [[nodiscard]] copy_path which() const override { return copy_path::owner_proxy; }
    [[nodiscard]] const char* unsuited(const copy_job& job) const override {
        if (!job.lease)
            return "no memory of another process";
        return job.has(kind::dmabuf) ? "a DMA-BUF, which no CPU here can reach" : nullptr;
    }
    // Requests one byte from the owner, which may have no engine.
    result<void> prepare(const copy_job& job) override {
        GAUDI_TRY(const auto acquired, acquire(job, 1));
        GAUDI_CHECK(local_step(job, true, *acquired));
        const std::uint64_t offset = acquired->slabs.front().offset;
        owner_step step(job.lease, job.end_of(kind::leased).offset, true, {&offset, 1});
        GAUDI_CHECK(step.start(0, acquired->slabs.front().bytes.first(1), 0));
        for (;;) {
            if (const auto seen = step.check(0))
                return *seen;
            acquired->link->wait(std::chrono::milliseconds(1));
        }
    }
    result<copy_ticket> start(const copy_job& job) override {
        const bool to_owner = job.to.is(kind::leased);
        GAUDI_TRY(const auto acquired, acquire(job, enough_slabs));
        GAUDI_TRY(auto here, local_step(job, to_owner, *acquired));
        std::array<std::uint64_t, pipeline::most_slabs> offsets{};
        pipeline::slab_set slabs;
        for (const auto& slab : acquired->slabs) {
            offsets[slabs.count] = slab.offset;
            slabs.memory[slabs.count++] = slab.bytes;
        }
        // The slabs return to the link when the copy has ended, also if its ticket is kept.
        slabs.release = [kept = acquired]() mutable { kept.reset(); };
        slabs.sleep = [link = acquired->link](std::chrono::milliseconds limit) {
            link->wait(std::min(limit, std::chrono::milliseconds(1)));
        };
        std::unique_ptr<pipeline_step> there = std::make_unique<owner_step>(
            job.lease, job.end_of(kind::leased).offset, !to_owner, std::span(offsets).first(slabs.count));
        return tools_.pending.add(std::make_shared<pipeline>(which(), job.length, job.kept, std::move(slabs),
                                                             std::move(to_owner ? here : there),
                                                             std::move(to_owner ? there : here)));
    }

private:
    result<std::unique_ptr<pipeline_step>> local_step(const copy_job& job, bool source,
                                                      const copy_slabs& acquired) {
        const auto& local = job.other_than(kind::leased);
        if (local.is(kind::host))
            return host_step(job.host_of(local), source);
        GAUDI_CHECK(tools_.devices.device_of(local, job.length));
        GAUDI_TRY(auto engine, tools_.devices.engine_of(local.device));
        std::vector<pinned_memory> pins;
        for (const auto& slab : acquired.slabs) {
            // For this copy only: the slabs belong to the link, which may end before the engine.
            GAUDI_TRY(pins.emplace_back(), engine->pin(slab.bytes));
        }
        return engine_step(std::move(engine), local.address, source, std::move(pins));
    }
    static result<std::shared_ptr<copy_slabs>> acquire(const copy_job& job, unsigned count) {
        auto acquired = std::make_shared<copy_slabs>(job.lease->link());
        while (acquired->slabs.size() < count) {
            GAUDI_TRY(const auto slab, acquired->link->slabs().acquire(*acquired->link));
            if (!slab)
                break;
            acquired->slabs.push_back(*slab);
        }
        if (acquired->slabs.empty())
            return tl::unexpected(
                error(errc::too_many_operations, fmt::format("{} slabs of process {} are in use",
                                                             owner_slabs::count, job.lease->handle().pid)));
        return acquired;
    }

    const path_tools tools_;
};

} // namespace

std::unique_ptr<path> make_owner_proxy(const path_tools& tools) {
    return std::make_unique<owner_proxy>(tools);
}

} // namespace gaudi
