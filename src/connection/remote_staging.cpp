// SPDX-License-Identifier: BSD-3-Clause
// The owner's half of one-sided access to staged memory. A slab is free, filled by the engine, granted to the
// peer, or delivered to the device; the peer has a key to a slab, and only to slabs of this connection.
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
    // A thread that frees memory may hold this object longer than the staging lives.
    void end() {
        const std::lock_guard guard(mutex_);
        staging_ = nullptr;
    }
    void chunk_goes(std::uint64_t) override {}
    void buffer_freed(device_address base, std::uint64_t length) override {
        const std::lock_guard guard(mutex_);
        // Called with the heap's lock held, by the thread that frees: the bytes are allocated again
        // afterwards.
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
    std::unique_ptr<remote_staging> created(
        new remote_staging(nic, std::move(memory), std::move(send), std::move(permitted)));
    created->frees_ = std::make_shared<waits_for_copies>(*created);
    source.heap()->observe(created->frees_);
    return created;
}

remote_staging::~remote_staging() {
    if (frees_)
        static_cast<waits_for_copies&>(*frees_).end();
    settle(); // copies in flight use the slabs
}

void remote_staging::wait_for_copies(std::uint64_t address, std::uint64_t length) {
    const std::lock_guard guard(mutex_);
    for (auto& slab : slabs_) {
        // The mutex keeps the connection's thread from starting a copy of these bytes meanwhile; the next one
        // fails, because the permission asks whether the buffer is still allocated.
        const auto* current = slab.copying() ? find(slab.id) : nullptr;
        if (current == nullptr)
            continue;
        const auto begin = current->request.address + slab.offset;
        if (begin < address + length && address < begin + slab.bytes)
            (void)slab.copy.wait();
    }
}

void remote_staging::settle() {
    const std::lock_guard guard(mutex_);
    for (auto& slab : slabs_)
        if (slab.copying())
            (void)slab.copy.wait();
}

remote_staging::access* remote_staging::find(std::uint64_t id) {
    const auto position = std::find_if(accesses_.begin(), accesses_.end(),
                                       [&](const access& entry) { return entry.request.id == id; });
    return position != accesses_.end() ? &*position : nullptr;
}

bool remote_staging::open_access(const access_request& request) {
    const std::lock_guard guard(mutex_);
    // A peer that requests without end must not make this side allocate without end.
    if (find(request.id) != nullptr || accesses_.size() == most_accesses)
        return false;
    accesses_.push_back({request});
    return true;
}

result<std::uint32_t> remote_staging::key_to(std::uint32_t index, bool writing) {
    auto& region = writing ? slabs_[index].for_writing : slabs_[index].for_reading;
    if (!region) {
        // One key for each direction, so that a peer which may only read cannot write to a slab.
        GAUDI_TRY(region, nic_.register_host(memory_.of(index, memory_.slab_bytes()),
                                             writing ? remote_access::write : remote_access::read));
    }
    return region->rkey;
}

result<void> remote_staging::grant(std::uint32_t index) {
    auto& slab = slabs_[index];
    GAUDI_TRY(const auto key, key_to(index, find(slab.id)->request.writing));
    slab.state = state::granted;
    slab_grant frame;
    frame.id = slab.id;
    frame.offset = slab.offset;
    frame.bytes = slab.bytes;
    frame.slab = index;
    frame.address = memory_.address_of(index);
    frame.key = key;
    unsent_.push_back({frame_kind::slab_grant, encode_frame(frame)});
    return {};
}

result<bool> remote_staging::return_slab(const slab_return& returned) {
    const std::lock_guard guard(mutex_);
    // The peer chooses all fields: a slab that is not granted to it may be in use for another access.
    if (returned.slab >= slabs || slabs_[returned.slab].state != state::granted ||
        slabs_[returned.slab].id != returned.id)
        return false;
    auto& slab = slabs_[returned.slab];
    const auto* current = find(slab.id);
    if (current == nullptr)
        return false;
    if (!current->request.writing) {
        slab.state = state::delivering; // nothing to copy: the next progress() ends it
        slab.copy = {};
        return true;
    }
    // The owner may have withdrawn the offer, or freed the buffer, since the slab was granted.
    GAUDI_CHECK(permitted_(current->request));
    GAUDI_TRY(slab.copy, write_step(memory_.engine(), device_address(current->request.address + slab.offset),
                                    bytes_of(returned.slab)));
    slab.state = state::delivering;
    return true;
}

bool remote_staging::copying() const {
    return std::any_of(slabs_.begin(), slabs_.end(), [](const slab_entry& slab) { return slab.copying(); });
}

// Starts parts of the oldest access first, then those of the next.
result<void> remote_staging::start_parts() {
    for (auto& current : accesses_)
        for (std::uint32_t index = 0; index < slabs && current.started < current.request.length; ++index) {
            auto& slab = slabs_[index];
            if (slab.state != state::free)
                continue;
            slab.id = current.request.id;
            slab.offset = current.started;
            slab.bytes = static_cast<std::uint32_t>(
                std::min<std::uint64_t>(memory_.slab_bytes(), current.request.length - current.started));
            current.started += slab.bytes;
            // Asked for each part, not once: the buffer may be freed while the access is in progress.
            GAUDI_CHECK(permitted_(current.request));
            if (current.request.writing) {
                GAUDI_CHECK(grant(index));
                continue;
            }
            GAUDI_TRY(slab.copy, read_step(memory_.engine(), bytes_of(index),
                                           device_address(current.request.address + slab.offset)));
            slab.state = state::filling;
        }
    return {};
}

void remote_staging::part_done(std::uint32_t index) {
    auto& slab = slabs_[index];
    slab.state = state::free;
    auto* current = find(slab.id);
    current->done += slab.bytes;
    if (current->done < current->request.length)
        return;
    const access_end frame{slab.id};
    std::erase_if(accesses_, [&](const access& finished) { return finished.request.id == frame.id; });
    unsent_.push_back({frame_kind::access_end, encode_frame(frame)});
}

result<std::size_t> remote_staging::progress() {
    const auto happened = advance();
    // Without the mutex: a peer that does not read must not stop a thread that frees device memory.
    for (; !unsent_.empty(); unsent_.pop_front())
        GAUDI_CHECK(send_(unsent_.front().kind, unsent_.front().body));
    return happened;
}

result<std::size_t> remote_staging::advance() {
    const std::lock_guard guard(mutex_);
    std::size_t happened = 0;
    for (std::uint32_t index = 0; index < slabs; ++index) {
        auto& slab = slabs_[index];
        if (!slab.copying() || !slab.copy.done())
            continue;
        ++happened;
        GAUDI_CHECK(slab.copy.wait());
        if (slab.state == state::delivering)
            part_done(index);
        else
            GAUDI_CHECK(grant(index));
    }
    GAUDI_CHECK(start_parts());
    return happened;
}

} // namespace gaudi
