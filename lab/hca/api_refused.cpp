// SPDX-License-Identifier: BSD-3-Clause
// Verbs that this device does not support. All of them are defined here: a missing one would resolve to the
// stock libibverbs, which would take our context for its own and crash. Names up to rdma-core 65.
#include "lab/hca/devices.hpp"
#include "lab/hca/exported.hpp"

namespace lab::hca {

void fill_memory_operations(verbs_context& context);
void fill_completion_operations(verbs_context& context);
void fill_qp_operations(verbs_context& context);
void fill_post_operations(verbs_context& context);
void fill_srq_operations(verbs_context& context);

namespace {

template <typename R>
R refused() {
    return failure<R>(EOPNOTSUPP, answers::with_errno);
}

// The wrappers of libibverbs call these without a null check.
void fill_refusals(verbs_context& context) {
    auto& ops = context.context.ops;
    ops.alloc_mw = [](ibv_pd*, ibv_mw_type) { return refused<ibv_mw*>(); };
    ops.bind_mw = [](ibv_qp*, ibv_mw*, ibv_mw_bind*) { return refused<int>(); };
    ops.dealloc_mw = [](ibv_mw*) { return refused<int>(); };
    context.open_xrcd = [](ibv_context*, ibv_xrcd_init_attr*) { return refused<ibv_xrcd*>(); };
    context.close_xrcd = [](ibv_xrcd*) { return refused<int>(); };
    context.open_qp = [](ibv_context*, ibv_qp_open_attr*) { return refused<ibv_qp*>(); };
    context.get_srq_num = [](ibv_srq*, std::uint32_t*) { return refused<int>(); };
    context.advise_mr = [](ibv_pd*, ibv_advise_mr_advice, std::uint32_t, ibv_sge*, std::uint32_t) {
        return refused<int>(); // no on-demand paging
    };
}

} // namespace

void fill_operations(verbs_context& context) {
    fill_refusals(context);
    fill_memory_operations(context);
    fill_completion_operations(context);
    fill_qp_operations(context);
    fill_post_operations(context);
    fill_srq_operations(context);
}

} // namespace lab::hca

VERB(int, ibv_attach_mcast, (ibv_qp * qp, const ibv_gid* gid, uint16_t lid), (qp, gid, lid),
     { return fails(EOPNOTSUPP); })
VERB(int, ibv_detach_mcast, (ibv_qp * qp, const ibv_gid* gid, uint16_t lid), (qp, gid, lid),
     { return fails(EOPNOTSUPP); })
VERB(int, ibv_query_ece, (ibv_qp * qp, ibv_ece* ece), (qp, ece), { return fails(EOPNOTSUPP); })
VERB(int, ibv_set_ece, (ibv_qp * qp, ibv_ece* ece), (qp, ece), { return fails(EOPNOTSUPP); })
VERB(int, ibv_rereg_mr, (ibv_mr * mr, int flags, ibv_pd* pd, void* address, size_t length, int access),
     (mr, flags, pd, address, length, access), {
         errno = EOPNOTSUPP;
         return IBV_REREG_MR_ERR_CMD;
     })
VERB(ibv_context*, ibv_import_device, (int fd), (fd), { return fails(EOPNOTSUPP); })
VERB(ibv_pd*, ibv_import_pd, (ibv_context * handle, uint32_t pd), (handle, pd), { return fails(EOPNOTSUPP); })
VERB(ibv_mr*, ibv_import_mr, (ibv_pd * pd, uint32_t mr), (pd, mr), { return fails(EOPNOTSUPP); })
VERB(ibv_dm*, ibv_import_dm, (ibv_context * handle, uint32_t dm), (handle, dm), { return fails(EOPNOTSUPP); })
VERB(int, ibv_resolve_eth_l2_from_gid,
     (ibv_context * handle, ibv_ah_attr* address, uint8_t* mac, uint16_t* vid), (handle, address, mac, vid),
     { return fails(EOPNOTSUPP); })

NEWER_VERB_AS(with_minus_one, int, ibv_dm_export_dmabuf_fd, (ibv_dm * dm), (dm),
              { return fails(EOPNOTSUPP); })
NEWER_VERB(void*, ibv_alloc_dmah, (ibv_context * handle, void* wanted), (handle, wanted),
           { return fails(EOPNOTSUPP); })
NEWER_VERB(int, ibv_dealloc_dmah, (void* handle), (handle), { return fails(EOPNOTSUPP); })

NEWER_VERB(int, _ibv_query_comp_cntr_caps, (ibv_context * handle, void* into, size_t size),
           (handle, into, size), { return fails(EOPNOTSUPP); })
NEWER_VERB(void*, ibv_create_comp_cntr, (ibv_context * handle, void* wanted), (handle, wanted),
           { return fails(EOPNOTSUPP); })
NEWER_VERB(int, ibv_destroy_comp_cntr, (void* counter), (counter), { return fails(EOPNOTSUPP); })
NEWER_VERB(int, ibv_set_comp_cntr, (void* counter, uint64_t value), (counter, value),
           { return fails(EOPNOTSUPP); })
NEWER_VERB(int, ibv_set_err_comp_cntr, (void* counter, uint64_t value), (counter, value),
           { return fails(EOPNOTSUPP); })
NEWER_VERB(int, ibv_inc_comp_cntr, (void* counter, uint64_t amount), (counter, amount),
           { return fails(EOPNOTSUPP); })
NEWER_VERB(int, ibv_inc_err_comp_cntr, (void* counter, uint64_t amount), (counter, amount),
           { return fails(EOPNOTSUPP); })
NEWER_VERB(int, ibv_read_comp_cntr, (void* counter, uint64_t* into), (counter, into),
           { return fails(EOPNOTSUPP); })
NEWER_VERB(int, ibv_read_err_comp_cntr, (void* counter, uint64_t* into), (counter, into),
           { return fails(EOPNOTSUPP); })
NEWER_VERB(int, ibv_qp_attach_comp_cntr, (ibv_qp * qp, void* counter, void* wanted), (qp, counter, wanted),
           { return fails(EOPNOTSUPP); })

extern "C" {

[[gnu::visibility("default")]] void ibv_unimport_pd(ibv_pd*) {}
[[gnu::visibility("default")]] void ibv_unimport_mr(ibv_mr*) {}
[[gnu::visibility("default")]] void ibv_unimport_dm(ibv_dm*) {}
}
