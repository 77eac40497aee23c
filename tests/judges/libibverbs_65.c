/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Replaces libibverbs of rdma-core 65, so that a program can link to its symbol versions and the dynamic
 * linker finds them. No call may reach these verbs: the virtual HCA is preloaded before this library.
 */
#include <stdio.h>
#include <stdlib.h>

#define STOCK(name)                                                                                          \
    __attribute__((visibility("default"))) void name(void);                                                  \
    void name(void) {                                                                                        \
        fputs(#name ": the stock library was reached\n", stderr);                                            \
        abort();                                                                                             \
    }

STOCK(ibv_create_comp_channel)
STOCK(ibv_destroy_comp_channel)
STOCK(ibv_get_device_list)
STOCK(ibv_free_device_list)
STOCK(ibv_open_device)
STOCK(ibv_close_device)
STOCK(ibv_alloc_pd)
STOCK(ibv_dealloc_pd)
STOCK(ibv_dereg_mr)
STOCK(ibv_create_cq)
STOCK(ibv_destroy_cq)
STOCK(ibv_create_qp)
STOCK(ibv_modify_qp)
STOCK(ibv_destroy_qp)
STOCK(ibv_query_gid)
STOCK(ibv_qp_to_qp_ex)
STOCK(ibv_query_qp_data_in_order)
STOCK(ibv_alloc_dmah)
STOCK(ibv_reg_mr_ex)
STOCK(ibv_query_port_speed)
STOCK(ibv_alloc_buf)
STOCK(ibv_free_buf)
STOCK(ibv_reg_buf_mr)
STOCK(ibv_create_comp_cntr)
STOCK(ibv_export_buf_dmabuf_fd)
STOCK(ibv_query_gid_type)
