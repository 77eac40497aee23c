// SPDX-License-Identifier: BSD-3-Clause
#include "src/copy/copy_tracker.hpp"
#include "src/os/internals.hpp"
#include "src/transfer/path.hpp"

#include <cstring>

namespace gaudi {
namespace {

using kind = copy_end::kind;

class host_copy final : public path {
public:
    [[nodiscard]] copy_path which() const override { return copy_path::host_copy; }
    [[nodiscard]] const char* unsuited(const copy_job& job) const override {
        return job.to.is(kind::host) && job.from.is(kind::host) ? nullptr : "no CPU can reach device memory";
    }
    result<void> prepare(const copy_job&) override { return {}; }
    result<copy_ticket> start(const copy_job& job) override {
        // Not memcpy: callers may move bytes within one buffer.
        std::memmove(job.to.host, job.from.host, job.length);
        count_copy(which(), job.length);
        return internals::wrap<copy_ticket>(nullptr, 0U, which(), job.length);
    }
};

} // namespace

std::unique_ptr<path> make_host_copy() {
    return std::make_unique<host_copy>();
}

} // namespace gaudi
