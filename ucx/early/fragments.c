/* SPDX-License-Identifier: BSD-3-Clause
 *
 * UCX loads modules of its lowest library, libucs, before it reads its settings. This module changes a
 * setting in time; libuct_gaudi is loaded too late for that.
 *
 * Where an NVIDIA GPU and a Gaudi are in one machine, UCX may stage a message for Gaudi memory through a
 * fragment of GPU memory, which it then tries to allocate on the Gaudi: the receive fails and the sender
 * waits for ever (gotcha U18). With fragments in host memory only, every pair of memory types works. A
 * setting by the user is kept.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Whether the kernel lists a Gaudi, vendor 0x1da3, under any accel number. */
static int any_gaudi(void) {
    char path[64], vendor[16];
    for (int i = 0; i < 64; ++i) {
        snprintf(path, sizeof(path), "/sys/class/accel/accel%d/device/vendor", i);
        FILE* file = fopen(path, "re");
        if (file == NULL)
            continue;
        const int read = fgets(vendor, sizeof(vendor), file) != NULL;
        fclose(file);
        if (read && strncmp(vendor, "0x1da3", 6) == 0)
            return 1;
    }
    return access("/sys/class/habanalabs/hl0", F_OK) == 0;
}

static int is_set(const char* variable) {
    const char* value = getenv(variable);
    return value != NULL && *value != '\0';
}

__attribute__((constructor)) static void keep_fragments_in_host_memory(void) {
    if (access("/dev/nvidiactl", F_OK) == 0 && (is_set("GAUDI_DIRECT_HLTHUNK") || any_gaudi()))
        setenv("UCX_RNDV_FRAG_MEM_TYPES", "host", 0);
}
