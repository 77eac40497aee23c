// SPDX-License-Identifier: BSD-3-Clause
#include "src/rdma/lender.hpp"

#include "src/copy/copy_core.hpp"
#include "src/error/try.hpp"
#include "src/os/byte_order.hpp"

#include <algorithm>
#include <cstring>

namespace gaudi {

std::vector<std::byte> ask_frame::encode() const {
    std::vector<std::byte> bytes(29);
    packer(bytes).put(id).put(address).put(length).put(key).put(static_cast<std::uint8_t>(writing ? 1 : 0));
    return bytes;
}

std::optional<ask_frame> ask_frame::decode(std::span<const std::byte> body) {
    if (body.size() != 29)
        return {};
    unpacker in(body);
    ask_frame asked;
    asked.id = in.get<std::uint64_t>();
    asked.address = in.get<std::uint64_t>();
    asked.length = in.get<std::uint64_t>();
    asked.key = in.get<std::uint32_t>();
    asked.writing = in.get<std::uint8_t>() != 0;
    return asked;
}

std::vector<std::byte> lend_frame::encode() const {
    std::vector<std::byte> all(36);
    packer(all).put(id).put(offset).put(address).put(bytes).put(key).put(slab);
    return all;
}

std::optional<lend_frame> lend_frame::decode(std::span<const std::byte> body) {
    if (body.size() != 36)
        return {};
    unpacker in(body);
    lend_frame lent;
    lent.id = in.get<std::uint64_t>();
    lent.offset = in.get<std::uint64_t>();
    lent.address = in.get<std::uint64_t>();
    lent.bytes = in.get<std::uint32_t>();
    lent.key = in.get<std::uint32_t>();
    lent.slab = in.get<std::uint32_t>();
    return lent;
}

std::vector<std::byte> back_frame::encode() const {
    std::vector<std::byte> bytes(12);
    packer(bytes).put(id).put(slab);
    return bytes;
}

std::optional<back_frame> back_frame::decode(std::span<const std::byte> body) {
    if (body.size() != 12)
        return {};
    unpacker in(body);
    back_frame returned;
    returned.id = in.get<std::uint64_t>();
    returned.slab = in.get<std::uint32_t>();
    return returned;
}

std::vector<std::byte> over_frame::encode() const {
    std::vector<std::byte> bytes(8 + refusal.size());
    packer(bytes).put(id);
    std::memcpy(bytes.data() + 8, refusal.data(), refusal.size());
    return bytes;
}

std::optional<over_frame> over_frame::decode(std::span<const std::byte> body) {
    if (body.size() < 8)
        return {};
    unpacker in(body);
    over_frame ended;
    ended.id = in.get<std::uint64_t>();
    ended.refusal.assign(reinterpret_cast<const char*>(in.rest().data()), in.rest().size());
    return ended;
}

lender::lender(const nic_core& card, slab_memory memory, sender send, permission permitted)
    : card_(card), memory_(std::move(memory)), send_(std::move(send)), permitted_(std::move(permitted)),
      slabs_(slabs) {}

namespace {

// Before freed memory is handed out again, the copies that a peer caused in it have ended.
class waits_for_copies : public chunk_observer {
public:
    explicit waits_for_copies(lender& of) : of_(&of) {}
    void end() {
        const std::lock_guard guard(mutex_);
        of_ = nullptr;
    }
    void chunk_goes(std::uint64_t) override {}
    void buffer_freed(device_address base, std::uint64_t length) override {
        const std::lock_guard guard(mutex_);
        if (of_ != nullptr)
            of_->wait_for_copies(base.value(), length);
    }

private:
    std::mutex mutex_;
    lender* of_;
};

} // namespace

result<std::unique_ptr<lender>> lender::make(const nic_core& card, const staging_source& source,
                                             std::uint32_t slab_bytes, sender send, permission permitted) {
    GAUDI_TRY(auto memory, slab_memory::make(card, source.engine(), slabs, slab_bytes));
    std::unique_ptr<lender> made(new lender(card, std::move(memory), std::move(send), std::move(permitted)));
    made->frees_ = std::make_shared<waits_for_copies>(*made);
    source.heap()->observe(made->frees_);
    return made;
}

lender::~lender() {
    if (frees_)
        static_cast<waits_for_copies&>(*frees_).end();
    settle(); // copies still use the memory
}

void lender::wait_for_copies(std::uint64_t address, std::uint64_t length) {
    const std::lock_guard guard(mutex_);
    for (auto& each : slabs_) {
        const auto* owner = each.copying() ? find(each.id) : nullptr;
        if (owner == nullptr)
            continue;
        const auto begin = owner->asked.address + each.offset;
        if (begin < address + length && address < begin + each.bytes)
            (void)each.copy.wait();
    }
}

void lender::settle() {
    const std::lock_guard guard(mutex_);
    for (auto& each : slabs_)
        if (each.copying())
            (void)each.copy.wait();
}

lender::job* lender::find(std::uint64_t id) {
    const auto found =
        std::find_if(jobs_.begin(), jobs_.end(), [&](const job& each) { return each.asked.id == id; });
    return found != jobs_.end() ? &*found : nullptr;
}

bool lender::begin(const ask_frame& asked) {
    const std::lock_guard guard(mutex_);
    if (find(asked.id) != nullptr || jobs_.size() == most_jobs)
        return false;
    jobs_.push_back({asked});
    return true;
}

result<std::uint32_t> lender::key_to(std::uint32_t index, bool writing) {
    auto& region = writing ? slabs_[index].for_writing : slabs_[index].for_reading;
    if (!region) {
        GAUDI_TRY(region, card_.register_host(memory_.of(index, memory_.slab_bytes()),
                                              writing ? remote_access::write : remote_access::read));
    }
    return region->rkey;
}

result<void> lender::lend(std::uint32_t index) {
    auto& each = slabs_[index];
    GAUDI_TRY(const auto key, key_to(index, find(each.id)->asked.writing));
    each.state = state::lent;
    lend_frame words;
    words.id = each.id;
    words.offset = each.offset;
    words.bytes = each.bytes;
    words.slab = index;
    words.address = memory_.address_of(index);
    words.key = key;
    return send_(frame_kind::lend, words.encode());
}

result<bool> lender::give_back(const back_frame& returned) {
    const std::lock_guard guard(mutex_);
    if (returned.slab >= slabs || slabs_[returned.slab].state != state::lent ||
        slabs_[returned.slab].id != returned.id)
        return false;
    auto& each = slabs_[returned.slab];
    const auto* owner = find(each.id);
    if (owner == nullptr)
        return false;
    if (!owner->asked.writing) {
        each.state = state::landing; // nothing to copy: over at the next look
        each.copy = {};
        return true;
    }
    GAUDI_CHECK(permitted_(owner->asked));
    GAUDI_TRY(each.copy, write_step(memory_.engine(), device_address(owner->asked.address + each.offset),
                                    bytes_of(returned.slab)));
    each.state = state::landing;
    return true;
}

bool lender::copying() const {
    return std::any_of(slabs_.begin(), slabs_.end(), [](const slab& each) { return each.copying(); });
}

// Parts of the oldest job first; the next one's when that has all it needs.
result<void> lender::start_parts() {
    for (auto& owner : jobs_)
        for (std::uint32_t index = 0; index < slabs && owner.begun < owner.asked.length; ++index) {
            auto& each = slabs_[index];
            if (each.state != state::free)
                continue;
            each.id = owner.asked.id;
            each.offset = owner.begun;
            each.bytes = static_cast<std::uint32_t>(
                std::min<std::uint64_t>(memory_.slab_bytes(), owner.asked.length - owner.begun));
            owner.begun += each.bytes;
            GAUDI_CHECK(permitted_(owner.asked));
            if (owner.asked.writing) {
                GAUDI_CHECK(lend(index));
                continue;
            }
            GAUDI_TRY(each.copy, read_step(memory_.engine(), bytes_of(index),
                                           device_address(owner.asked.address + each.offset)));
            each.state = state::filling;
        }
    return {};
}

result<void> lender::part_done(std::uint32_t index) {
    auto& each = slabs_[index];
    each.state = state::free;
    auto* owner = find(each.id);
    owner->done += each.bytes;
    if (owner->done < owner->asked.length)
        return {};
    const over_frame words{each.id, {}};
    std::erase_if(jobs_, [&](const job& finished) { return finished.asked.id == words.id; });
    return send_(frame_kind::over, words.encode());
}

result<std::size_t> lender::progress() {
    const std::lock_guard guard(mutex_);
    std::size_t happened = 0;
    for (std::uint32_t index = 0; index < slabs; ++index) {
        auto& each = slabs_[index];
        if (!each.copying() || !each.copy.done())
            continue;
        ++happened;
        GAUDI_CHECK(each.copy.wait());
        GAUDI_CHECK(each.state == state::filling ? lend(index) : part_done(index));
    }
    GAUDI_CHECK(start_parts());
    return happened;
}

} // namespace gaudi
