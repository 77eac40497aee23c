// SPDX-License-Identifier: BSD-3-Clause
// The ways between memory of this process and leased memory, and which is taken.
#include "src/copy/copy_core.hpp"
#include "src/device/registry.hpp"
#include "src/error/try.hpp"
#include "src/ipc/importer.hpp"

#include <fmt/format.h>

namespace gaudi {
namespace {

constexpr std::size_t stage_bytes = 1 << 20;

// It has landed before anybody asks.
class done_transfer : public ipc_transfer {
public:
    explicit done_transfer(std::shared_ptr<lease_core> lease)
        : ipc_transfer(std::move(lease), ipc_way::local) {}
    ~done_transfer() override { (void)done(); }

private:
    std::optional<result<void>> look() override { return result<void>(); }
    void sleep(std::chrono::milliseconds) override {}
};

tl::unexpected<error> impossible(std::string why) {
    return tl::unexpected(error(errc::way_impossible, std::move(why)));
}

result<std::shared_ptr<device>> device_of(device_address address, std::uint64_t length) {
    const auto index = known_memory().device_of(address);
    auto found = index ? find_open_device(*index) : nullptr;
    if (!found)
        return tl::unexpected(
            error(errc::not_allocated, fmt::format("{} bytes at {:#x}", length, address.value())));
    if (!found->attached()) // SynapseAI's pool has no allocations that we know of
        GAUDI_CHECK(known_memory().find(address, length));
    return found;
}

using started = result<std::unique_ptr<ipc_transfer>>;

started engine_started(const std::shared_ptr<lease_core>& lease, ipc_way way, result<copy_ticket> ticket,
                       std::shared_ptr<lease_reach> reach = {}) {
    if (!ticket)
        return tl::unexpected(ticket.error());
    return std::make_unique<engine_transfer>(lease, way, std::move(*ticket), std::move(reach));
}

result<copy_ticket> unchecked(const copy_engine& engine, device_address to, device_address from,
                              std::uint64_t length, copy_direction direction) {
    GAUDI_TRY(const auto slot, engine.core()->copy_unchecked(to, from, length, direction, {}));
    return copy_ticket(engine.core(), slot);
}

// Where this process is on the same context, whoever opened it.
std::optional<copy_engine> own_engine(std::uint64_t node) {
    for (const auto& device : registry::self().all_open())
        if (device->core()->node() == node)
            if (auto engine = device->copies())
                return *engine;
    return std::nullopt;
}

// Whether another way is worth a try: not where the request itself is wrong, or one of its sides is gone.
bool is_final(const error& why) {
    return why.kind() == error_kind::invalid || why.kind() == error_kind::peer_gone ||
           why.kind() == error_kind::device_lost;
}

} // namespace

importer::started importer::by_local(const std::shared_ptr<lease_core>& lease, bool write, const end& local,
                                     std::uint64_t offset, std::uint64_t length) {
    if (!lease->local())
        return impossible("the memory is another process's");
    const auto remote = lease->base() + offset;
    GAUDI_TRY(const auto owner, device_of(remote, length));
    if (local.is_device) {
        GAUDI_TRY(const auto other, device_of(local.device, length));
        if (owner->core() != other->core()) {
            GAUDI_TRY(const auto report, write ? copy_across(*owner, remote, *other, local.device, length)
                                               : copy_across(*other, local.device, *owner, remote, length));
            return std::make_unique<done_transfer>(lease);
        }
    }
    GAUDI_TRY(auto engine, owner->copies());
    return engine_started(lease, ipc_way::local,
                          local.is_device ? (write ? engine.copy(remote, local.device, length)
                                                   : engine.copy(local.device, remote, length))
                          : write         ? engine.write(remote, local.host)
                                          : engine.read(local.host, remote));
}

result<copy_engine> importer::context_engine(const std::shared_ptr<lease_core>& lease) {
    const auto node = lease->handle().device;
    if (auto own = own_engine(node))
        return *own;
    if (lease->local())
        return tl::unexpected(lease->gone_error());
    return lease->link()->guest_engine(node, lease->slot());
}

importer::started importer::by_context(const std::shared_ptr<lease_core>& lease, bool write, const end& local,
                                       std::uint64_t offset, std::uint64_t length) {
    const auto& handle = lease->handle();
    const auto remote = lease->base() + offset;
    if (local.is_device) {
        GAUDI_TRY(const auto own, device_of(local.device, length));
        if (own->core()->node() != handle.device)
            return impossible("the memory is another device's");
        GAUDI_TRY(const auto engine, own->copies()); // the same context, whoever opened it
        return engine_started(lease, ipc_way::context,
                              unchecked(engine, write ? remote : local.device, write ? local.device : remote,
                                        length, copy_direction::within));
    }
    GAUDI_TRY(auto engine, context_engine(lease));
    GAUDI_TRY(const auto slot, write ? engine.core()->write_unchecked(remote, local.host, {})
                                     : engine.core()->read_unchecked(local.host, remote, {}));
    return std::make_unique<engine_transfer>(lease, ipc_way::context, copy_ticket(engine.core(), slot),
                                             nullptr);
}

importer::started importer::by_import(const std::shared_ptr<lease_core>& lease, bool write, const end& local,
                                      std::uint64_t offset, std::uint64_t length) {
    if (!local.is_device)
        return impossible("only a device can import memory of another");
    GAUDI_TRY(const auto own, device_of(local.device, length));
    auto reach = lease->reach(); // kept by the copy, whatever becomes of the owner
    GAUDI_TRY(const auto imported, lease->imported_by(*reach, own->core()));
    GAUDI_TRY(const auto engine, own->copies());
    const auto remote = imported + offset;
    // To the engine the other's memory is like host memory.
    return engine_started(lease, ipc_way::import,
                          write ? unchecked(engine, remote, local.device, length, copy_direction::up)
                                : unchecked(engine, local.device, remote, length, copy_direction::down),
                          std::move(reach));
}

result<std::shared_ptr<nic_copier>> importer::copier(const std::shared_ptr<device>& near_to) {
    const std::lock_guard guard(nic_mutex_);
    if (copier_ && !copier_->broken())
        return copier_;
    if (no_nic_)
        return tl::unexpected(*no_nic_);
    nic_choice choice;
    choice.needs_dmabuf = true;
    if (near_to)
        choice.near_to = near_to->info();
    const auto card = open_nic(choice);
    auto made = card ? nic_copier::make(*card) : tl::unexpected(card.error());
    if (!made) {
        no_nic_ = made.error();
        return made;
    }
    copier_ = *made;
    return made;
}

importer::started importer::by_nic(const std::shared_ptr<lease_core>& lease, bool write, const end& local,
                                   std::uint64_t offset, std::uint64_t length) {
    std::shared_ptr<device> own;
    if (local.is_device) {
        GAUDI_TRY(own, device_of(local.device, length));
    }
    GAUDI_TRY(const auto copier, this->copier(own));
    const auto& card = copier->card();
    GAUDI_TRY(auto near, own ? card->region(*own, local.device, length) : card->region(local.host));
    auto reach = lease->reach(); // kept by the copy, whatever becomes of the owner
    GAUDI_TRY(const auto far, lease->key_on(*reach, card));
    GAUDI_TRY(const auto number, copier->start(write, {near.address(), near.local_key(), own != nullptr},
                                               {lease->handle().base + offset, far, true}, length));
    return std::make_unique<nic_transfer>(lease, copier, std::move(near), std::move(reach), number);
}

importer::started importer::by_staging(const std::shared_ptr<lease_core>& lease, bool write, const end& local,
                                       std::uint64_t offset, std::uint64_t length) {
    if (!local.is_device)
        return impossible("host memory needs no staging where the owner's engines can be used");
    const auto& handle = lease->handle();
    GAUDI_TRY(const auto own, device_of(local.device, length));
    GAUDI_TRY(auto near, own->copies());
    GAUDI_TRY(auto far, lease->link()->guest_engine(handle.device, lease->slot()));
    mapping memory;
    {
        const std::lock_guard guard(slabs_mutex_);
        if (!spare_slabs_.empty()) {
            memory = std::move(spare_slabs_.back());
            spare_slabs_.pop_back();
        }
    }
    if (memory.bytes().empty()) {
        GAUDI_TRY(memory, mapping::anonymous(pipeline::slabs * stage_bytes));
    }
    pipeline::room slabs;
    slabs.count = pipeline::slabs;
    for (unsigned i = 0; i < slabs.count; ++i)
        slabs.slab[i] = memory.bytes().subspan(i * stage_bytes, stage_bytes);
    slabs.give_back = [this, kept = std::make_shared<mapping>(std::move(memory))] {
        const std::lock_guard guard(slabs_mutex_);
        if (spare_slabs_.size() < 4)
            spare_slabs_.push_back(std::move(*kept));
    };
    auto there = engine_step(far, lease->base() + offset, !write);
    auto here = engine_step(near, local.device, write);
    return std::make_unique<pipeline>(lease, ipc_way::staged, std::move(slabs),
                                      std::move(write ? here : there), std::move(write ? there : here),
                                      length);
}

importer::started importer::by_proxy(const std::shared_ptr<lease_core>& lease, bool write, const end& local,
                                     std::uint64_t offset, std::uint64_t length) {
    std::unique_ptr<step> here;
    if (local.is_device) {
        GAUDI_TRY(const auto own, device_of(local.device, length));
        GAUDI_TRY(auto engine, own->copies());
        here = engine_step(engine, local.device, write);
    } else {
        here = host_step(local.host, write);
    }
    const auto& link = lease->link();
    pipeline::room slabs;
    std::vector<std::uint64_t> offsets;
    slabs.give_back = [&offsets, link] {
        for (const auto each : offsets)
            link->return_slab(each);
    };
    constexpr unsigned enough = 2; // one is filled while the other is emptied
    for (; slabs.count < enough; ++slabs.count) {
        const auto taken = link->take_slab();
        if (!taken) {
            slabs.give_back();
            return tl::unexpected(taken.error());
        }
        if (!*taken)
            break;
        slabs.slab[slabs.count] = (*taken)->bytes;
        offsets.push_back((*taken)->offset);
    }
    if (slabs.count == 0)
        return tl::unexpected(
            error(errc::too_many_operations,
                  fmt::format("{} slabs of process {} are in use", owner_link::slabs, lease->handle().pid)));
    slabs.sleep = [link](std::chrono::milliseconds limit) {
        link->wait(std::min(limit, std::chrono::milliseconds(1)));
    };
    auto there = proxy_step(lease, offset, !write, offsets);
    slabs.give_back = [offsets, link] {
        for (const auto each : offsets)
            link->return_slab(each);
    };
    return std::make_unique<pipeline>(lease, ipc_way::proxy, std::move(slabs),
                                      std::move(write ? here : there), std::move(write ? there : here),
                                      length);
}

importer::started importer::try_way(ipc_way way, const std::shared_ptr<lease_core>& lease, bool write,
                                    const end& local, std::uint64_t offset, std::uint64_t length) {
    if (lease->local() && way != ipc_way::local)
        return impossible("the memory is this process's own");
    switch (way) {
    case ipc_way::local:
        return by_local(lease, write, local, offset, length);
    case ipc_way::context:
        return by_context(lease, write, local, offset, length);
    case ipc_way::import:
        return by_import(lease, write, local, offset, length);
    case ipc_way::nic:
        return by_nic(lease, write, local, offset, length);
    case ipc_way::staged:
        return by_staging(lease, write, local, offset, length);
    case ipc_way::proxy:
        return by_proxy(lease, write, local, offset, length);
    }
    return impossible("an unknown way");
}

result<ipc_ticket> importer::start(const std::shared_ptr<lease_core>& lease, const import_options& options,
                                   bool write, const end& local, std::uint64_t offset, std::uint64_t length) {
    GAUDI_CHECK(lease->enter());
    std::string tried;
    std::optional<error> later;
    for (std::size_t i = 0; i < ipc_ways; ++i) {
        const auto way = static_cast<ipc_way>(i);
        if ((options.only && *options.only != way) ||
            (options.zero_copy && (way == ipc_way::staged || way == ipc_way::proxy)))
            continue;
        auto begun = try_way(way, lease, write, local, offset, length);
        if (begun) {
            const std::lock_guard guard(mutex_);
            counts_.bytes[i] += length;
            return ipc_ticket(std::move(*begun));
        }
        if (is_final(begun.error()) || options.only) {
            lease->leave();
            return tl::unexpected(begun.error());
        }
        if (begun.error().code() == errc::too_many_operations) // there is a way, a little later
            later = begun.error();
        tried += fmt::format("{}{}: {}", tried.empty() ? "" : "; ", name_of(way), begun.error().observed());
    }
    lease->leave();
    if (later)
        return tl::unexpected(*later);
    return tl::unexpected(
        error(options.zero_copy ? errc::zero_copy_impossible : errc::way_impossible, std::move(tried)));
}

} // namespace gaudi
