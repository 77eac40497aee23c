// SPDX-License-Identifier: BSD-3-Clause
#include <gaudi/device.hpp>
#include <gaudi/loopback.hpp>
#include <gaudi/nic.hpp>

#include "src/error/try.hpp"
#include "src/os/mapping.hpp"
#include "src/rdma/nic_copier.hpp"

#include <algorithm>
#include <cstring>

namespace gaudi {

// A room in host memory over the NIC's transfers to itself.
class loopback_core {
public:
    static result<std::unique_ptr<loopback_core>> make(const std::shared_ptr<nic>& card);
    loopback_core() = default;
    ~loopback_core();
    loopback_core(const loopback_core&) = delete;
    loopback_core& operator=(const loopback_core&) = delete;

    result<void> write(device& owner, device_address to, std::span<const std::byte> from);
    result<void> read(device& owner, std::span<std::byte> to, device_address from);

private:
    // Between the room and the device's memory; the bytes are there when it returns.
    result<void> carry_out(device& owner, bool write, device_address address, std::size_t bytes);

    // Order of members is order of tear-down, last first.
    std::shared_ptr<nic> card_;
    mapping room_;
    mr_handle region_;
    std::shared_ptr<nic_copier> copier_;
};

result<std::unique_ptr<loopback_core>> loopback_core::make(const std::shared_ptr<nic>& card) {
    GAUDI_TRY(auto copier, nic_copier::make(card));
    GAUDI_TRY(auto room, mapping::anonymous(loopback::piece));
    GAUDI_TRY(const auto domain, card->core()->loopback_pd());
    GAUDI_TRY(auto region,
              card->core()->register_host(room.bytes(), remote_access::read | remote_access::write, domain));
    auto made = std::make_unique<loopback_core>();
    made->card_ = card;
    made->room_ = std::move(room);
    made->region_ = std::move(region);
    made->copier_ = std::move(copier);
    return made;
}

loopback_core::~loopback_core() {
    if (card_ && !card_->core()->ours()) // a child of fork has no part in it
        (void)region_.release();
}

result<void> loopback_core::carry_out(device& owner, bool write, device_address address, std::size_t bytes) {
    GAUDI_TRY(const auto region, card_->region(owner, address, bytes));
    // The device is the near place, by its local key: nothing of it is open to a remote one.
    return copier_->carry_out(!write, {region.address(), region.local_key(), true},
                              {reinterpret_cast<std::uintptr_t>(room_.bytes().data()), region_->rkey}, bytes);
}

result<void> loopback_core::write(device& owner, device_address to, std::span<const std::byte> from) {
    for (std::size_t done = 0; done < from.size();) {
        const auto bytes = std::min(from.size() - done, loopback::piece);
        std::memcpy(room_.bytes().data(), from.data() + done, bytes);
        GAUDI_CHECK(carry_out(owner, true, to + done, bytes));
        done += bytes;
    }
    return {};
}

result<void> loopback_core::read(device& owner, std::span<std::byte> to, device_address from) {
    for (std::size_t done = 0; done < to.size();) {
        const auto bytes = std::min(to.size() - done, loopback::piece);
        GAUDI_CHECK(carry_out(owner, false, from + done, bytes));
        std::memcpy(to.data() + done, room_.bytes().data(), bytes);
        done += bytes;
    }
    return {};
}

result<loopback> loopback::make(const std::shared_ptr<nic>& card) {
    GAUDI_TRY(auto core, loopback_core::make(card));
    return loopback(std::move(core));
}

result<loopback> loopback::near(const device& owner) {
    nic_choice choice;
    choice.near_to = owner.info();
    choice.needs_dmabuf = true;
    const auto card = open_nic(choice);
    return card ? make(*card) : tl::unexpected(card.error());
}

loopback::loopback(std::unique_ptr<loopback_core> core) : core_(std::move(core)) {}
loopback::loopback(loopback&&) noexcept = default;
loopback& loopback::operator=(loopback&&) noexcept = default;
loopback::~loopback() = default;

result<void> loopback::write(device& owner, device_address to, std::span<const std::byte> from) {
    return core_->write(owner, to, from);
}

result<void> loopback::read(device& owner, std::span<std::byte> to, device_address from) {
    return core_->read(owner, to, from);
}

} // namespace gaudi
