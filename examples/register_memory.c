/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Gaudi memory as a memory region of a NIC, in C: what any verbs program needs before it posts requests on
 * it. Built with: gcc register_memory.c $(pkg-config --cflags --libs gaudi-direct) -libverbs
 */
#include <gaudi/gaudi.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <unistd.h>

int main(void) {
    enum { size = 1 << 20 };
    gaudi_device* device = NULL;
    uint64_t memory = 0;
    gaudi_dmabuf window = {.struct_size = sizeof(window), .fd = -1};
    if (gaudi_open(NULL, &device) != GAUDI_OK || gaudi_allocate(device, size, &memory) != GAUDI_OK ||
        gaudi_export(device, memory, size, &window) != GAUDI_OK) {
        fprintf(stderr, "%s\n", gaudi_last_error());
        return 1;
    }

    struct ibv_device** nics = ibv_get_device_list(NULL);
    struct ibv_context* nic = nics != NULL && nics[0] != NULL ? ibv_open_device(nics[0]) : NULL;
    struct ibv_pd* pd = nic != NULL ? ibv_alloc_pd(nic) : NULL;
    struct ibv_mr* region =
        pd != NULL
            ? ibv_reg_dmabuf_mr(pd, window.offset, window.length, window.iova, window.fd,
                                IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE)
            : NULL;
    if (region == NULL) {
        perror("no NIC, or it does not register this DMA-BUF");
        return 1;
    }
    close(window.fd); /* the region keeps its own reference */

    /* In work requests, here and at the peer: the device address and the region's keys. */
    printf("address %#llx, lkey %#x, rkey %#x\n", (unsigned long long)window.iova, region->lkey,
           region->rkey);

    ibv_dereg_mr(region); /* before the memory is freed */
    ibv_dealloc_pd(pd);
    ibv_close_device(nic);
    ibv_free_device_list(nics);
    gaudi_free(device, memory);
    gaudi_close(device);
    return 0;
}
