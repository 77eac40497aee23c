/* SPDX-License-Identifier: BSD-3-Clause */
/* Opens the first free Gaudi, writes its bus id to the file $1, and holds it until the file $2 exists. */
#include "tests/support/hlthunk_functions.h"

#include <stdio.h>
#include <unistd.h>

int main(int count, char** arguments) {
    char bus_id[16] = "", unfinished[4096];
    const int fd = count == 3 ? hlthunk_open(HLTHUNK_DEVICE_DONT_CARE, NULL) : -1;
    if (fd < 0 || hlthunk_get_pci_bus_id_from_fd(fd, bus_id, 13) != 0)
        return 1;
    snprintf(unfinished, sizeof(unfinished), "%s.unfinished", arguments[1]);
    FILE* file = fopen(unfinished, "w");
    if (file == NULL || fputs(bus_id, file) < 0 || fclose(file) != 0 || rename(unfinished, arguments[1]) != 0)
        return 2;
    for (int i = 0; access(arguments[2], F_OK) != 0; ++i, usleep(10000))
        if (i == 3000)
            return 3;
    return hlthunk_close(fd) == 0 ? 0 : 4;
}
