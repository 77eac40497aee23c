/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Calls the new verbs of rdma-core 65, and writes from one buffer to another over a queue pair that is
 * connected to itself. Linked to libibverbs_65.c.
 */
#include "tests/lab/hca/newer_verbs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures;
#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "line %d: %s; errno %d\n", __LINE__, #condition, errno);                         \
            ++failures;                                                                                      \
        }                                                                                                    \
    } while (0)
#define NEEDED(condition)                                                                                    \
    do {                                                                                                     \
        CHECK(condition);                                                                                    \
        if (failures != 0)                                                                                   \
            exit(1);                                                                                         \
    } while (0)

static struct ibv_qp* connected_to_itself(struct ibv_pd* pd, struct ibv_cq* cq) {
    struct ibv_qp_init_attr_ex wanted = {.send_cq = cq,
                                         .recv_cq = cq,
                                         .cap = {8, 8, 1, 1, 0},
                                         .qp_type = IBV_QPT_RC,
                                         .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
                                         .pd = pd,
                                         .send_ops_flags = UINT64_C(1) << 11}; /* IBV_QP_EX_WITH_FLUSH */
    CHECK(ibv_create_qp_ex(pd->context, &wanted) == NULL && errno == EOPNOTSUPP);
    wanted.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE;
    struct ibv_qp* qp = ibv_create_qp_ex(pd->context, &wanted);
    NEEDED(qp != NULL);
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
    NEEDED(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) ==
           0);
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR,
                                .path_mtu = IBV_MTU_1024,
                                .dest_qp_num = qp->qp_num,
                                .max_dest_rd_atomic = 1,
                                .min_rnr_timer = 12,
                                .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 1}}};
    NEEDED(ibv_query_gid(pd->context, 1, 0, &attr.ah_attr.grh.dgid) == 0);
    NEEDED(ibv_modify_qp(qp, &attr,
                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                             IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
    NEEDED(ibv_modify_qp(qp, &attr,
                         IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                             IBV_QP_MAX_QP_RD_ATOMIC) == 0);
    return qp;
}

int main(void) {
    int count = 0;
    struct ibv_device** devices = ibv_get_device_list(&count);
    NEEDED(devices != NULL && count == 1);
    struct ibv_context* context = ibv_open_device(devices[0]);
    NEEDED(context != NULL);
    ibv_free_device_list(devices);

    /* The device. */
    uint64_t speed = 0;
    CHECK(newer_query_port_speed(context, 1, &speed) == 0 && speed == 4000); /* in units of 100 Mbit/s */
    CHECK(newer_query_port_speed(context, 9, &speed) == EINVAL);
    int type = -1;
    CHECK(newer_query_gid_type(context, 1, 1, &type) == 0); /* InfiniBand has no entry there */
    CHECK(newer_query_gid_type(context, 1, 9, &type) == -1 && errno == EINVAL);
    CHECK(newer_query_gid_type(context, 1, 0, &type) == 0);
    CHECK(newer_query_gid_type(context, 9, 0, &type) == -1 && errno == EINVAL);
    CHECK(newer_alloc_dmah(context, &(char[64]){0}) == NULL && errno == EOPNOTSUPP);
    CHECK(newer_create_comp_cntr(context, &(char[64]){0}) == NULL && errno == EOPNOTSUPP);
    struct ibv_comp_channel* channel = ibv_create_comp_channel(context);
    CHECK(channel != NULL && ibv_destroy_comp_channel(channel) == 0);

    /* Buffers. */
    enum { size = 3 << 16 };
    const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    struct ibv_pd *pd = ibv_alloc_pd(context), *other = ibv_alloc_pd(context);
    NEEDED(pd != NULL && other != NULL);
    void *from = NULL, *to = NULL;
    unsigned char* source = newer_alloc_buf(pd, size, &from);
    unsigned char* target = newer_alloc_buf(pd, size, &to);
    NEEDED(source != NULL && target != NULL && (uintptr_t)source % 4096 == 0 &&
           (uintptr_t)target % 4096 == 0);
    CHECK(newer_export_buf_dmabuf_fd(from) == -1 && errno == ENODATA);
    CHECK(newer_reg_buf_mr(other, from, source, size, access) == NULL && errno == EINVAL);
    CHECK(newer_reg_buf_mr(pd, from, source + 1, size, access) == NULL && errno == EINVAL);
    CHECK(newer_reg_buf_mr(pd, from, source - 1, 1, access) == NULL && errno == EINVAL);
    struct ibv_mr* mr = newer_reg_buf_mr(pd, from, source, size, access);
    NEEDED(mr != NULL && mr->addr == source && mr->length == size);

    /* Regions by ibv_reg_mr_ex, the target with an iova of its own. */
    struct newer_mr_init_attr wanted = {.length = size, .access = access, .addr = target, .fd = -1};
    const uint64_t mapped_at = UINT64_C(0x700000000000);
    wanted.comp_mask = newer_mr_addr | newer_mr_dmah;
    CHECK(newer_reg_mr_ex(pd, &wanted) == NULL && errno == EOPNOTSUPP);
    wanted.comp_mask = newer_mr_addr | newer_mr_fd_offset;
    CHECK(newer_reg_mr_ex(pd, &wanted) == NULL && errno == EINVAL);
    wanted.comp_mask = newer_mr_iova;
    CHECK(newer_reg_mr_ex(pd, &wanted) == NULL && errno == EINVAL);
    wanted.comp_mask = newer_mr_fd | newer_mr_fd_offset;
    CHECK(newer_reg_mr_ex(pd, &wanted) == NULL && errno == EINVAL);
    wanted.comp_mask = newer_mr_fd | newer_mr_fd_offset | newer_mr_iova;
    CHECK(newer_reg_mr_ex(pd, &wanted) == NULL && errno == EBADF);
    wanted.comp_mask = newer_mr_addr | newer_mr_buf;
    wanted.buf = from;
    CHECK(newer_reg_mr_ex(pd, &wanted) == NULL && errno == EINVAL);
    wanted.buf = to;
    wanted.iova = mapped_at;
    wanted.comp_mask = newer_mr_addr | newer_mr_buf | newer_mr_iova;
    struct ibv_mr* remote = newer_reg_mr_ex(pd, &wanted);
    NEEDED(remote != NULL && remote->addr == target && remote->length == size);

    /* The write. */
    for (unsigned i = 0; i < size; ++i)
        source[i] = (unsigned char)(i * 7 + i / 251);
    memset(target, 0, size);
    struct ibv_cq* cq = ibv_create_cq(context, 8, NULL, NULL, 0);
    NEEDED(cq != NULL);
    struct ibv_qp* qp = connected_to_itself(pd, cq);
    CHECK(ibv_query_qp_data_in_order(qp, IBV_WR_RDMA_WRITE, 0) == 1);
    CHECK(ibv_query_qp_data_in_order(qp, IBV_WR_RDMA_WRITE, newer_in_order_return_caps) == 1);
    CHECK(ibv_query_qp_data_in_order(qp, IBV_WR_RDMA_WRITE, 1U << 30) == 0);
    struct ibv_qp_ex* poster = ibv_qp_to_qp_ex(qp);
    NEEDED(poster != NULL);
    ibv_wr_start(poster);
    poster->wr_id = 65;
    poster->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_rdma_write(poster, remote->rkey, mapped_at);
    ibv_wr_set_sge(poster, mr->lkey, (uintptr_t)source, size);
    NEEDED(ibv_wr_complete(poster) == 0);
    struct ibv_wc done;
    while ((count = ibv_poll_cq(cq, 1, &done)) == 0) {
    }
    CHECK(count == 1 && done.status == IBV_WC_SUCCESS && done.wr_id == 65);
    CHECK(memcmp(source, target, size) == 0);

    CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
    CHECK(ibv_dereg_mr(mr) == 0 && ibv_dereg_mr(remote) == 0);
    newer_free_buf(from);
    newer_free_buf(to);
    CHECK(ibv_dealloc_pd(pd) == 0 && ibv_dealloc_pd(other) == 0 && ibv_close_device(context) == 0);
    if (failures == 0)
        printf("GIDs of type %d, %d bytes written\n", type, size);
    return failures != 0;
}
