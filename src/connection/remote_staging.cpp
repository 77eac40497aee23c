// SPDX-License-Identifier: BSD-3-Clause
#include "src/connection/remote_staging.hpp"

#include "src/copy/copy_core.hpp"
#include "src/error/try.hpp"

#include <algorithm>

namespace gaudi {

remote_staging::remote_staging(const nic_core& nic, slab_memory memory, frame_sender send,
                               permission permitted)
    : nic_(nic), memory_(std::move(memory)), send_(std::move(send)), permitted_(std::move(permitted)),
      slabs_(slabs) {}

namespace {

// Waits until the copies for a peer in freed memory have completed, before the heap hands that memory out
// again.
class waits_for_copies : public chunk_observer {
public:
    explicit waits_for_copies(remote_staging& staging) : staging_(&staging) {}
    void end() {
        const std::lock_guard guard(mutex_);
        staging_ = nullptr;
    }
    void chunk_goes(std::uint64_t) override {}
    void buffer_freed(device_address base, std::uint64_t length) override {
        const std::lock_guard guard(mutex_);
        if (staging_ != nullptr)
            staging_->wait_for_copies(base.value(), length);
    }

private:
    std::mutex mutex_;
    remote_staging* staging_;
};

} // namespace

result<std::unique_ptr<remote_staging>> remote_staging::make(const nic_core& nic,
                                                             const staging_source& source,
                                                             std::uint32_t slab_bytes, frame_sender send,
                                                             permission permitted) {
    GAUDI_TRY(auto memory, slab_memory::make(nic, source.engine(), slabs, slab_bytes));
    std::unique_ptr<remote_staging> made(
        new remote_staging(nic, std::move(memory), std::move(send), std::move(permitted)));
    made->frees_ = std::make_shared<waits_for_copies>(*made);
    source.heap()->observe(made->frees_);
    return made;
}

remote_staging::~remote_staging() {
    if (frees_)
        static_cast<waits_for_copies&>(*frees_).end();
    settle(); // copies in flight use the slabs
}

void remote_staging::wait_for_copies(std::uint64_t address, std::uint64_t length) {
    const std::lock_guard guard(mutex_);
    for (auto& each : slabs_) {
        const auto* current = each.copying() ? find(each.id) : nullptr;
        if (current == nullptr)
            continue;
        const auto begin = current->request.address + each.offset;
        if (begin < address + length && address < begin + each.bytes)
            (void)each.copy.wait();
    }
}

void remote_staging::settle() {
    const std::lock_guard guard(mutex_);
    for (auto& each : slabs_)
        if (each.copying())
            (void)each.copy.wait();
}

remote_staging::access* remote_staging::find(std::uint64_t id) {
    const auto found = std::find_if(accesses_.begin(), accesses_.end(),
                                    [&](const access& each) { return each.request.id == id; });
    return found != accesses_.end() ? &*found : nullptr;
}

bool remote_staging::open_access(const access_request& request) {
    const std::lock_guard guard(mutex_);
    if (find(request.id) != nullptr || accesses_.size() == most_accesses)
        return false;
    accesses_.push_back({request});
    return true;
}

result<std::uint32_t> remote_staging::key_to(std::uint32_t index, bool writing) {
    auto& region = writing ? slabs_[index].for_writing : slabs_[index].for_reading;
    if (!region) {
        GAUDI_TRY(region, nic_.register_host(memory_.of(index, memory_.slab_bytes()),
                                             writing ? remote_access::write : remote_access::read));
    }
    return region->rkey;
}

result<void> remote_staging::grant(std::uint32_t index) {
    auto& each = slabs_[index];
    GAUDI_TRY(const auto key, key_to(index, find(each.id)->request.writing));
    each.state = state::granted;
    slab_grant frame;
    frame.id = each.id;
    frame.offset = each.offset;
    frame.bytes = each.bytes;
    frame.slab = index;
    frame.address = memory_.address_of(index);
    frame.key = key;
    return send_(frame_kind::slab_grant, encode_frame(frame));
}

result<bool> remote_staging::return_slab(const slab_return& returned) {
    const std::lock_guard guard(mutex_);
    if (returned.slab >= slabs || slabs_[returned.slab].state != state::granted ||
        slabs_[returned.slab].id != returned.id)
        return false;
    auto& each = slabs_[returned.slab];
    const auto* current = find(each.id);
    if (current == nullptr)
        return false;
    if (!current->request.writing) {
        each.state = state::delivering; // nothing to copy: the next progress() ends it
        each.copy = {};
        return true;
    }
    GAUDI_CHECK(permitted_(current->request));
    GAUDI_TRY(each.copy, write_step(memory_.engine(), device_address(current->request.address + each.offset),
                                    bytes_of(returned.slab)));
    each.state = state::delivering;
    return true;
}

bool remote_staging::copying() const {
    return std::any_of(slabs_.begin(), slabs_.end(), [](const slab& each) { return each.copying(); });
}

// Starts parts of the oldest access first, then those of the next.
result<void> remote_staging::start_parts() {
    for (auto& current : accesses_)
        for (std::uint32_t index = 0; index < slabs && current.started < current.request.length; ++index) {
            auto& each = slabs_[index];
            if (each.state != state::free)
                continue;
            each.id = current.request.id;
            each.offset = current.started;
            each.bytes = static_cast<std::uint32_t>(
                std::min<std::uint64_t>(memory_.slab_bytes(), current.request.length - current.started));
            current.started += each.bytes;
            GAUDI_CHECK(permitted_(current.request));
            if (current.request.writing) {
                GAUDI_CHECK(grant(index));
                continue;
            }
            GAUDI_TRY(each.copy, read_step(memory_.engine(), bytes_of(index),
                                           device_address(current.request.address + each.offset)));
            each.state = state::filling;
        }
    return {};
}

result<void> remote_staging::part_done(std::uint32_t index) {
    auto& each = slabs_[index];
    each.state = state::free;
    auto* current = find(each.id);
    current->done += each.bytes;
    if (current->done < current->request.length)
        return {};
    const access_end frame{each.id};
    std::erase_if(accesses_, [&](const access& finished) { return finished.request.id == frame.id; });
    return send_(frame_kind::access_end, encode_frame(frame));
}

result<std::size_t> remote_staging::progress() {
    const std::lock_guard guard(mutex_);
    std::size_t happened = 0;
    for (std::uint32_t index = 0; index < slabs; ++index) {
        auto& each = slabs_[index];
        if (!each.copying() || !each.copy.done())
            continue;
        ++happened;
        GAUDI_CHECK(each.copy.wait());
        GAUDI_CHECK(each.state == state::filling ? grant(index) : part_done(index));
    }
    GAUDI_CHECK(start_parts());
    return happened;
}

} // namespace gaudi
