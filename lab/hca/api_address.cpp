// SPDX-License-Identifier: BSD-3-Clause
// Address handles.
#include "lab/hca/address.hpp"
#include "lab/hca/devices.hpp"
#include "lab/hca/exported.hpp"

#include <cstring>

namespace lab::hca {

route route_of(const ibv_ah_attr& address) {
    route made{};
    made.by_gid = address.is_global;
    made.lid = address.dlid;
    made.port = address.port_num;
    if (address.is_global != 0)
        std::memcpy(made.gid, address.grh.dgid.raw, 16);
    return made;
}

int check_address(const context& where, const ibv_ah_attr& address) {
    const auto& limits = where.hca->description;
    if (address.port_num < 1 || address.port_num > limits.ports)
        return EINVAL;
    if (address.is_global != 0 && address.grh.sgid_index >= gid_table_length)
        return EINVAL;
    if (limits.link == link_layer::ethernet && address.is_global == 0)
        return EINVAL; // RoCE has no LIDs
    return 0;
}

} // namespace lab::hca

VERB(ibv_ah*, ibv_create_ah, (ibv_pd * pd, ibv_ah_attr* address), (pd, address), {
    if (const int error = check_address(context::of(pd->context), *address); error != 0)
        return fails(error);
    auto& home = *context::of(pd->context).home;
    if (home.ahs_made.fetch_add(1) >= max_ahs) {
        home.ahs_made.fetch_sub(1);
        return fails(ENOMEM);
    }
    auto handle = make_zeroed<address_handle>();
    handle->seen.context = pd->context;
    handle->seen.pd = pd;
    handle->where = route_of(*address);
    protection_domain::of(pd).users.fetch_add(1);
    return &handle.release()->seen;
})

VERB(int, ibv_destroy_ah, (ibv_ah * ah), (ah), {
    protection_domain::of(ah->pd).users.fetch_sub(1);
    context::of(ah->context).home->ahs_made.fetch_sub(1);
    delete &address_handle::of(ah);
    return 0;
})

VERB(int, ibv_init_ah_from_wc,
     (ibv_context * handle, uint8_t port, ibv_wc* wc, ibv_grh* grh, ibv_ah_attr* into),
     (handle, port, wc, grh, into), {
         *into = {};
         into->dlid = wc->slid;
         into->sl = wc->sl;
         into->src_path_bits = wc->dlid_path_bits;
         into->port_num = port;
         if ((wc->wc_flags & IBV_WC_GRH) == 0)
             return 0;
         into->is_global = 1;
         into->grh.dgid = grh->sgid;
         const auto& where = context::of(handle);
         if (port < 1 || port > where.hca->description.ports)
             return fails(EINVAL);
         for (uint8_t index = 0; index < gid_table_length; ++index)
             if (std::memcmp(where.hca->gids[port - 1][index], grh->dgid.raw, 16) == 0) {
                 into->grh.sgid_index = index;
                 break;
             }
         into->grh.hop_limit = 0xff;
         return 0;
     })

VERB(ibv_ah*, ibv_create_ah_from_wc, (ibv_pd * pd, ibv_wc* wc, ibv_grh* grh, uint8_t port),
     (pd, wc, grh, port), {
         ibv_ah_attr address{};
         if (::ibv_init_ah_from_wc(pd->context, port, wc, grh, &address) != 0)
             return nullptr;
         return ::ibv_create_ah(pd, &address);
     })
