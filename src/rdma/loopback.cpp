// SPDX-License-Identifier: BSD-3-Clause
#include <gaudi/loopback.hpp>
#include <gaudi/nic.hpp>

#include "src/memory/registration_cache.hpp"
#include "src/os/mapping.hpp"
#include "src/rdma/queue_pair.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fmt/format.h>

namespace gaudi {

// Two queue pairs of one NIC that are each other's peer; only the first one sends.
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
    result<void> connect();
    // Nothing that was posted lands any more: somebody else copies instead.
    void give_up() {
        broken_ = true;
        near_.destroy();
    }
    // The device's side of a piece, registered.
    result<local_region> region_of(device& owner, device_address address, std::size_t bytes);
    // Posts the chain and waits for its last request, the only one that asks for a completion.
    result<void> carry_out(ibv_send_wr& first);
    [[nodiscard]] ibv_sge host_side(std::size_t bytes) const {
        return {reinterpret_cast<std::uintptr_t>(room_.bytes().data()), static_cast<std::uint32_t>(bytes),
                room_key_};
    }

    // Order of members is order of tear-down, last first.
    std::shared_ptr<nic> card_;
    mapping room_;
    mr_handle region_;
    queue_pair near_, far_;
    std::uint32_t room_key_ = 0;
    bool broken_ = false;
};

result<std::unique_ptr<loopback_core>> loopback_core::make(const std::shared_ptr<nic>& card) {
    const auto& core = card->core();
    if (!card->info().dmabuf)
        return tl::unexpected(error(errc::dmabuf_unsupported, card->info().why_no_dmabuf));
    auto made = std::make_unique<loopback_core>();
    made->card_ = card;
    auto room = mapping::anonymous(loopback::piece + 4096); // behind the piece: where the pushing read ends
    if (!room)
        return tl::unexpected(room.error());
    made->room_ = std::move(*room);
    auto region = core->register_host(made->room_.bytes());
    if (!region)
        return tl::unexpected(region.error());
    made->region_ = std::move(*region);
    made->room_key_ = made->region_->lkey;
    for (auto* each : {&made->near_, &made->far_}) {
        auto pair = queue_pair::make(core, 4, 1);
        if (!pair)
            return tl::unexpected(pair.error());
        *each = std::move(*pair);
    }
    if (auto connected = made->connect(); !connected)
        return tl::unexpected(connected.error());
    return made;
}

loopback_core::~loopback_core() {
    if (!card_ || card_->core()->ours())
        return;
    near_.abandon(); // a child of fork has no part in them
    far_.abandon();
    (void)region_.release();
}

result<void> loopback_core::connect() {
    constexpr unsigned timeout = 14, retries = 7; // 67 ms a try: nobody but the NIC itself has to answer
    const auto near = near_.greeting(), far = far_.greeting();
    if (auto joined = near_.join(near, far, timeout, retries); !joined)
        return joined;
    return far_.join(far, near, timeout, retries);
}

result<local_region> loopback_core::region_of(device& owner, device_address address, std::size_t bytes) {
    if (broken_)
        return tl::unexpected(
            error(errc::connection_broken, "the NIC's connection to itself failed earlier"));
    return card_->region(owner, address, bytes);
}

result<void> loopback_core::carry_out(ibv_send_wr& first) {
    ibv_send_wr* bad = nullptr;
    if (const int rc = ::ibv_post_send(near_.get(), &first, &bad); rc != 0) {
        give_up();
        return tl::unexpected(error(errc::connection_broken, "ibv_post_send to the NIC itself", rc));
    }
    ibv_wc done{};
    int count = 0;
    // The queue pair's own timeout and retries end sooner, unless the NIC itself is gone and says nothing any
    // more.
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    for (unsigned looks = 1; count == 0; ++looks) {
        count = ::ibv_poll_cq(near_.completions(), 1, &done);
        if (looks % 65536 == 0 && std::chrono::steady_clock::now() > deadline)
            break;
    }
    if (count == 1 && done.status == IBV_WC_SUCCESS)
        return {};
    give_up();
    return tl::unexpected(
        error(errc::connection_broken,
              fmt::format("transfer of the NIC to itself: status {}", static_cast<int>(done.status))));
}

result<void> loopback_core::write(device& owner, device_address to, std::span<const std::byte> from) {
    for (std::size_t done = 0; done < from.size();) {
        const auto bytes = std::min(from.size() - done, loopback::piece);
        const auto region = region_of(owner, to + done, bytes);
        if (!region)
            return tl::unexpected(region.error());
        const auto remote = region->remote();
        if (!remote)
            return tl::unexpected(remote.error());
        std::memcpy(room_.bytes().data(), from.data() + done, bytes);
        auto entry = host_side(bytes);
        ibv_sge last{reinterpret_cast<std::uintptr_t>(room_.bytes().data() + loopback::piece), 1, room_key_};
        ibv_send_wr write{}, push{};
        write.opcode = IBV_WR_RDMA_WRITE;
        write.sg_list = &entry;
        write.num_sge = 1;
        write.wr.rdma = {remote->address, remote->key};
        write.next = &push;
        // Reads do not overtake writes, neither on the queue pair nor on the bus.
        push.opcode = IBV_WR_RDMA_READ;
        push.sg_list = &last;
        push.num_sge = 1;
        push.send_flags = IBV_SEND_SIGNALED;
        push.wr.rdma = {remote->address + bytes - 1, remote->key};
        if (auto carried = carry_out(write); !carried)
            return carried;
        done += bytes;
    }
    return {};
}

result<void> loopback_core::read(device& owner, std::span<std::byte> to, device_address from) {
    for (std::size_t done = 0; done < to.size();) {
        const auto bytes = std::min(to.size() - done, loopback::piece);
        const auto region = region_of(owner, from + done, bytes);
        if (!region)
            return tl::unexpected(region.error());
        const auto remote = region->remote();
        if (!remote)
            return tl::unexpected(remote.error());
        auto entry = host_side(bytes);
        ibv_send_wr request{};
        request.opcode = IBV_WR_RDMA_READ;
        request.sg_list = &entry;
        request.num_sge = 1;
        request.send_flags = IBV_SEND_SIGNALED;
        request.wr.rdma = {remote->address, remote->key};
        if (auto carried = carry_out(request); !carried)
            return carried;
        std::memcpy(to.data() + done, room_.bytes().data(), bytes);
        done += bytes;
    }
    return {};
}

result<loopback> loopback::make(const std::shared_ptr<nic>& card) {
    auto core = loopback_core::make(card);
    if (!core)
        return tl::unexpected(core.error());
    return loopback(std::move(*core));
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
