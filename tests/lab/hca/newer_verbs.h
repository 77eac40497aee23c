/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once

/* Verbs of rdma-core 65 that the headers of Debian 12 do not declare. The prefix newer_ avoids conflicts with
   newer headers. */
#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ibv_mr_init_attr and its comp_mask. */
struct newer_mr_init_attr {
    size_t length;
    int access;
    uint64_t comp_mask;
    uint64_t iova;
    void* addr;
    int fd;
    uint64_t fd_offset;
    void* dmah;
    void* buf;
};
enum newer_mr_mask {
    newer_mr_iova = 1,
    newer_mr_addr = 2,
    newer_mr_fd = 4,
    newer_mr_fd_offset = 8,
    newer_mr_dmah = 16,
    newer_mr_buf = 32
};
enum { newer_in_order_return_caps = 1 };

int newer_query_port_speed(struct ibv_context*, uint32_t, uint64_t*) __asm__("ibv_query_port_speed");
void* newer_alloc_dmah(struct ibv_context*, void*) __asm__("ibv_alloc_dmah");
int newer_dealloc_dmah(void*) __asm__("ibv_dealloc_dmah");
int newer_dm_export_dmabuf_fd(struct ibv_dm*) __asm__("ibv_dm_export_dmabuf_fd");
struct ibv_mr* newer_reg_mr_ex(struct ibv_pd*, struct newer_mr_init_attr*) __asm__("ibv_reg_mr_ex");
void* newer_alloc_buf(struct ibv_pd*, size_t, void**) __asm__("ibv_alloc_buf");
void newer_free_buf(void*) __asm__("ibv_free_buf");
struct ibv_mr* newer_reg_buf_mr(struct ibv_pd*, void*, void*, size_t, int) __asm__("ibv_reg_buf_mr");
int newer_export_buf_dmabuf_fd(void*) __asm__("ibv_export_buf_dmabuf_fd");
int newer_query_comp_cntr_caps(struct ibv_context*, void*, size_t) __asm__("_ibv_query_comp_cntr_caps");
void* newer_create_comp_cntr(struct ibv_context*, void*) __asm__("ibv_create_comp_cntr");
int newer_destroy_comp_cntr(void*) __asm__("ibv_destroy_comp_cntr");
int newer_set_comp_cntr(void*, uint64_t) __asm__("ibv_set_comp_cntr");
int newer_set_err_comp_cntr(void*, uint64_t) __asm__("ibv_set_err_comp_cntr");
int newer_inc_comp_cntr(void*, uint64_t) __asm__("ibv_inc_comp_cntr");
int newer_inc_err_comp_cntr(void*, uint64_t) __asm__("ibv_inc_err_comp_cntr");
int newer_read_comp_cntr(void*, uint64_t*) __asm__("ibv_read_comp_cntr");
int newer_read_err_comp_cntr(void*, uint64_t*) __asm__("ibv_read_err_comp_cntr");
int newer_qp_attach_comp_cntr(struct ibv_qp*, void*, void*) __asm__("ibv_qp_attach_comp_cntr");
/* In the private version node (IBVERBS_PRIVATE) of libibverbs; ibv_devinfo uses it. */
int newer_query_gid_type(struct ibv_context*, uint8_t, unsigned, int*) __asm__("ibv_query_gid_type");

#ifdef __cplusplus
}
#endif
