// SPDX-License-Identifier: BSD-3-Clause
#include <gaudi/nic.hpp>

#include "src/error/try.hpp"
#include "src/os/internals.hpp"
#include "src/rdma/nic_list.hpp"
#include "src/rdma/registration_cache.hpp"
#include "src/rdma/staging_source.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>

namespace gaudi {

nic::nic(std::shared_ptr<nic_core> core, const registration_limits& limits)
    : core_(std::move(core)), cache_(std::make_shared<registration_cache>(core_, limits)) {}

nic::~nic() = default;

const nic_info& nic::info() const {
    return core_->info();
}

const std::string& nic::why_chosen() const {
    return core_->why_chosen();
}

std::string nic::gid_text() const {
    char text[INET6_ADDRSTRLEN] = "";
    ::inet_ntop(AF_INET6, core_->gid().raw, text, sizeof(text));
    return fmt::format("{} (index {})", text, core_->gid_index());
}

result<local_region> nic::region(device& owner, const device_buffer& buffer, path_policy policy) {
    std::string reason = "staged by policy";
    if (policy != path_policy::staged_only) {
        auto direct = cache_->find_or_register(buffer);
        if (direct)
            return direct;
        // Invalid arguments and a lost device are reported; staging would not help.
        const auto kind = direct.error().kind();
        // Every other reason for a refusal (no DMA-BUF support, no peer-to-peer path, too many registrations)
        // is one that staging gets around.
        if (kind == error_kind::invalid || kind == error_kind::device_lost)
            return direct;
        if (policy == path_policy::require_zero_copy)
            return tl::unexpected(error(errc::zero_copy_impossible, direct.error().message()));
        reason = direct.error().message();
    }
    if (!buffer)
        return tl::unexpected(error(errc::not_allocated, "region of an empty buffer"));
    // The region keeps the engine: a connection copies by it without asking the device again.
    GAUDI_TRY(auto engine, owner.copies());
    local_region region;
    region.address_ = buffer.address().value();
    region.length_ = buffer.size();
    region.generation_ = buffer.generation();
    region.path_ = memory_path::staged;
    region.source_ =
        std::make_shared<const staging_source>(core_of(owner.heap()), std::move(engine), std::move(reason));
    return region;
}

result<local_region> nic::region(device& owner, device_address address, std::uint64_t length) {
    if (owner.attached())
        return cache_->find_or_register_pool(owner, address, length);
    return cache_->find_or_register(*core_of(owner.heap()), address, length);
}

result<local_region> nic::region(std::span<std::byte> memory) {
    return cache_->find_or_register(memory);
}

result<local_region> nic::region(int dmabuf, std::uint64_t offset, std::uint64_t length, std::uint64_t iova) {
    return cache_->find_or_register(dmabuf_export{dmabuf, offset, device_address(iova), length});
}

registration_statistics nic::statistics() const {
    return cache_->statistics();
}

void nic::trim() {
    cache_->trim();
}

result<std::string> loaded_verbs() {
    GAUDI_TRY(const auto api, verbs_api::load());
    return api->path();
}

result<std::vector<nic_info>> list_nics(const std::optional<device_info>& near_to) {
    GAUDI_TRY(auto seen, enumerate_nics(near_to));
    return std::move(seen.ports);
}

result<std::shared_ptr<nic>> open_nic(const nic_choice& choice, const registration_limits& limits) {
    GAUDI_TRY(auto core, nic_core::open(choice));
    return internals::wrap_shared<nic>(core, limits);
}

} // namespace gaudi
