// SPDX-License-Identifier: BSD-3-Clause
// Verbs that this device does not offer. All of them are here, because one that is missing would reach the
// stock library, which takes our context for its own and crashes. Names up to rdma-core 65; those that our
// headers do not know are declared by what they answer with.
#include "lab/hca/devices.hpp"
#include "lab/hca/exported.hpp"

#include <cstdlib>
#include <sys/mman.h>

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

// The wrappers of libibverbs call these without asking whether they are there.
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

// A page-aligned buffer of ordinary memory: what ibv_alloc_buf() gives where the driver has nothing better.
struct plain_buffer {
    void* address;
    std::size_t size;
};

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

extern "C" {

#define EXPORTED [[gnu::visibility("default")]]
struct ibv_buf;
struct ibv_dmah;
struct ibv_comp_cntr;

EXPORTED void ibv_unimport_pd(ibv_pd*) {}
EXPORTED void ibv_unimport_mr(ibv_mr*) {}
EXPORTED void ibv_unimport_dm(ibv_dm*) {}

EXPORTED void* ibv_alloc_buf(ibv_pd*, size_t size, ibv_buf** buffer) {
    auto* made = new (std::nothrow) lab::hca::plain_buffer{MAP_FAILED, size};
    if (made != nullptr)
        made->address = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == nullptr || made->address == MAP_FAILED) {
        delete made;
        errno = ENOMEM;
        return nullptr;
    }
    *buffer = reinterpret_cast<ibv_buf*>(made);
    return made->address;
}
EXPORTED void ibv_free_buf(ibv_buf* buffer) {
    auto* made = reinterpret_cast<lab::hca::plain_buffer*>(buffer);
    ::munmap(made->address, made->size);
    delete made;
}
EXPORTED ibv_mr* ibv_reg_buf_mr(ibv_pd* pd, ibv_buf*, void* address, size_t length, int access) {
    return ibv_reg_mr(pd, address, length, access);
}
EXPORTED int ibv_export_buf_dmabuf_fd(ibv_buf*) {
    errno = EOPNOTSUPP;
    return -1;
}
EXPORTED int ibv_dm_export_dmabuf_fd(ibv_dm*) {
    errno = EOPNOTSUPP;
    return -1;
}
EXPORTED ibv_dmah* ibv_alloc_dmah(ibv_context*, void*) {
    return lab::hca::refused<ibv_dmah*>();
}
EXPORTED int ibv_dealloc_dmah(ibv_dmah*) {
    return lab::hca::refused<int>();
}
EXPORTED ibv_mr* ibv_reg_mr_ex(ibv_pd*, void*) {
    return lab::hca::refused<ibv_mr*>();
}
EXPORTED int _ibv_query_comp_cntr_caps(ibv_context*, void*, size_t) {
    return lab::hca::refused<int>();
}
EXPORTED ibv_comp_cntr* ibv_create_comp_cntr(ibv_context*, void*) {
    return lab::hca::refused<ibv_comp_cntr*>();
}
EXPORTED int ibv_destroy_comp_cntr(ibv_comp_cntr*) {
    return lab::hca::refused<int>();
}
EXPORTED int ibv_set_comp_cntr(ibv_comp_cntr*, uint64_t) {
    return lab::hca::refused<int>();
}
EXPORTED int ibv_set_err_comp_cntr(ibv_comp_cntr*, uint64_t) {
    return lab::hca::refused<int>();
}
EXPORTED int ibv_inc_comp_cntr(ibv_comp_cntr*, uint64_t) {
    return lab::hca::refused<int>();
}
EXPORTED int ibv_inc_err_comp_cntr(ibv_comp_cntr*, uint64_t) {
    return lab::hca::refused<int>();
}
EXPORTED int ibv_read_comp_cntr(ibv_comp_cntr*, uint64_t*) {
    return lab::hca::refused<int>();
}
EXPORTED int ibv_read_err_comp_cntr(ibv_comp_cntr*, uint64_t*) {
    return lab::hca::refused<int>();
}
EXPORTED int ibv_qp_attach_comp_cntr(ibv_qp*, void*, void*) {
    return lab::hca::refused<int>();
}
}
