// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "src/copy/copy_core.hpp"
#include "src/hl/synapse.hpp"

#include <array>
#include <map>

namespace gaudi {

// Copies on a device whose queues SynapseAI owns, by SynapseAI's own call: one stream per direction, one
// event per copy.
class synapse_core : public copy_core, public std::enable_shared_from_this<synapse_core> {
public:
    static result<std::shared_ptr<copy_core>> make(const std::shared_ptr<hl_device>& device,
                                                   const address_map* map);
    synapse_core(std::shared_ptr<hl_device> device, const address_map* map, synapse_copies api,
                 std::uint32_t id, bounce_slab slab);
    ~synapse_core() override;

    // errc::copies_absent: SynapseAI cannot address memory of another device.
    result<std::uint32_t> copy_imported(device_address to, device_address from, std::uint64_t length,
                                        copy_direction direction, const copy_details& details) override;
    result<pinned_memory> pin(std::span<std::byte> memory) override;
    [[nodiscard]] std::vector<queue_use> queues() override { return {}; } // SynapseAI does not show them
    void unpin(std::span<std::byte> memory);

private:
    // A part of host memory that lies in one mapping.
    struct host_piece {
        std::uintptr_t begin = 0;
        std::size_t length = 0;
    };
    using host_pieces = std::vector<host_piece>;
    struct synapse_operation : operation {
        synapse_copies::handle event = nullptr;
        host_pieces pieces; // of the caller's memory; empty where the slab is copied
    };
    struct pinned_range {
        std::size_t length = 0;
        host_pieces pieces;
    };
    // Memory that is mapped for SynapseAI, and how many copies and pins use it.
    struct host_mapping_use {
        std::size_t length = 0;
        unsigned users = 0;
    };

    [[nodiscard]] result<void> check(device_address address, std::uint64_t length) const override;
    void sleep(std::uint32_t slot, std::chrono::microseconds limit) override;
    void watch() override;
    result<void> map_host(std::span<std::byte> memory);
    [[nodiscard]] error failed(std::string_view call, int status) const;

    // All with the mutex held.
    // Maps what is not mapped yet. SynapseAI counts no uses: mapping twice is one mapping, which the first
    // unmapping ends.
    result<host_pieces> acquire(std::span<std::byte> memory);
    void release_pieces(const host_pieces& pieces);
    int copy_pieces(synapse_copies::handle stream, std::uint64_t source, std::uint64_t destination,
                    std::uint64_t length, copy_direction direction, const host_pieces& pieces) const;
    operation& at(std::uint32_t slot) override { return operations_[slot]; }
    std::uint32_t new_operation() override;
    void release(std::uint32_t slot) override;
    result<std::uint64_t> reach_host(std::uint32_t slot, std::span<std::byte> memory,
                                     bool to_device) override;
    result<std::uint32_t> start(std::uint32_t slot, std::uint64_t source, std::uint64_t destination,
                                std::uint64_t length, copy_direction direction,
                                const copy_hints& hints) override;
    void end_operation(synapse_operation& done);
    std::size_t advance() override;

    const synapse_copies api_;
    const std::uint32_t id_;
    std::array<synapse_copies::handle, 3> streams_{}; // by direction
    bool slab_mapped_ = false;
    slots<synapse_operation> operations_;
    std::vector<synapse_copies::handle> spare_events_;
    std::size_t pending_ = 0;
    std::multimap<std::uintptr_t, pinned_range> pinned_; // by begin
    std::map<std::uintptr_t, host_mapping_use> mapped_;  // by begin; they do not overlap
};

} // namespace gaudi
