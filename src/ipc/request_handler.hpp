// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "src/ipc/clients.hpp"
#include "src/ipc/device_offers.hpp"
#include "src/ipc/share_table.hpp"
#include "src/os/channel.hpp"

namespace gaudi {

// Carries out the requests of importers. For one thread at a time: the caller holds the broker's lock.
class request_handler {
public:
    request_handler(share_table& shares, const device_offers& offers, client_list& clients,
                    const ipc_settings& settings)
        : shares_(shares), offers_(offers), clients_(clients), settings_(settings) {}

    // Answers the messages that the client has sent. False where the connection must end.
    bool serve(client& from);
    // Answers the copy requests whose copies have completed.
    void finish_copies(client& of);
    void close_lease(client& from, lease_set::slot_number slot);
    [[nodiscard]] std::uint64_t leases_opened() const { return leases_opened_; }
    // Returns the devices that requests have used. The caller releases them without the lock: dropping the
    // last reference closes a device.
    [[nodiscard]] std::vector<std::shared_ptr<device>> take_used_devices() {
        return std::exchange(used_, {});
    }

private:
    // An answer and the descriptors that go with it, which the client or the broker keeps open.
    template <typename Answer>
    struct outgoing {
        Answer body;
        std::vector<int> descriptors = {};
    };

    bool answer(client& from, const request_head& head, std::span<const std::byte> body,
                received_message& with);
    result<outgoing<opened_lease>> carry_out(client& from, const open_lease_request&, received_message&);
    result<outgoing<opened_context>> carry_out(client& from, const open_context_request&, received_message&);
    result<outgoing<nothing_more>> carry_out(client& from, const attach_slab_request&, received_message&);
    result<outgoing<opened_dmabuf>> carry_out(client& from, const open_dmabuf_request&, received_message&);
    result<outgoing<opened_context>> carry_out(client& from, const open_device_request&, received_message&);
    void carry_out(client& from, const close_lease_request& request) { close_lease(from, request.lease); }
    void carry_out(client& from, const release_dmabuf_request& request) {
        from.leases.dmabuf_released(request.lease);
    }
    result<void> start_copy(client& from, const copy_request& request, std::uint64_t id);

    [[nodiscard]] share_table::leased find_leased(client& by, lease_set::slot_number slot);
    result<std::shared_ptr<device>> use_device(unsigned index);
    static result<copy_engine*> pin_slab(client& from, device& owner, unsigned index);
    result<outgoing<opened_context>> admit(client& from, const std::shared_ptr<hl_device>& context);
    void lease_closed(const lease_record& closed);

    share_table& shares_;
    const device_offers& offers_;
    client_list& clients_;
    const ipc_settings& settings_;
    std::uint64_t leases_opened_ = 0;
    std::vector<std::shared_ptr<device>> used_;
};

} // namespace gaudi
