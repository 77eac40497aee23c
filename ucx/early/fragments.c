/* SPDX-License-Identifier: BSD-3-Clause
 *
 * UCX loads modules of its lowest library, libucs, before it reads its settings: this one makes a setting
 * that libuct_gaudi would come too late for.
 *
 * Where a GPU of NVIDIA and a Gaudi are in one machine, UCX may stage a message for Gaudi memory through a
 * fragment of GPU memory, which it then asks for on the Gaudi: the receive fails and the sender waits for
 * ever (gotcha U18). With fragments in host memory only, every pair of memories works. The user's own setting
 * stays.
 */
#include <stdlib.h>
#include <unistd.h>

static int is_there(const char* path) {
    return access(path, F_OK) == 0;
}

static int is_set(const char* variable) {
    const char* value = getenv(variable);
    return value != NULL && *value != '\0';
}

__attribute__((constructor)) static void keep_fragments_in_host_memory(void) {
    const int gaudi = is_there("/dev/accel/accel0") || is_there("/dev/hl0") || is_set("GAUDI_DIRECT_HLTHUNK");
    if (gaudi && is_there("/dev/nvidiactl"))
        setenv("UCX_RNDV_FRAG_MEM_TYPES", "host", 0);
}
