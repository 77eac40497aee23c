/* SPDX-License-Identifier: BSD-3-Clause */
/* The C interface, used from C. */
#include <gaudi/gaudi.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPECT(condition)                                                                                    \
    do                                                                                                       \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, gaudi_last_error());                  \
            return 1;                                                                                        \
        }                                                                                                    \
    while (0)

/* The ABI of programs that are built today. */
_Static_assert(sizeof(gaudi_device_info) == 56 && offsetof(gaudi_device_info, memory_total) == 24 &&
                   offsetof(gaudi_device_info, bus_id) == 40,
               "gaudi_device_info");
_Static_assert(sizeof(gaudi_memory_info) == 40 && offsetof(gaudi_memory_info, generation) == 24 &&
                   offsetof(gaudi_memory_info, device_index) == 32,
               "gaudi_memory_info");
_Static_assert(sizeof(gaudi_dmabuf) == 40 && offsetof(gaudi_dmabuf, fd) == 8 &&
                   offsetof(gaudi_dmabuf, offset) == 16 && offsetof(gaudi_dmabuf, length) == 32,
               "gaudi_dmabuf");
_Static_assert(GAUDI_OK == 0 && GAUDI_UNSUPPORTED == 1 && GAUDI_NOT_PERMITTED == 2 && GAUDI_BUSY == 3 &&
                   GAUDI_EXHAUSTED == 4 && GAUDI_INVALID == 5 && GAUDI_PEER_GONE == 6 &&
                   GAUDI_DEVICE_LOST == 7,
               "gaudi_status");

int main(void) {
    uint32_t count = 0;
    EXPECT(gaudi_device_count(&count) == GAUDI_OK && count == 2);
    gaudi_device *device = NULL, *same = NULL, *none = NULL;
    EXPECT(gaudi_open("1", &device) == GAUDI_OK);
    EXPECT(gaudi_open("auto", &same) == GAUDI_OK); /* the device that is already open */
    gaudi_device_info info = {.struct_size = sizeof(info)};
    EXPECT(gaudi_query_device(same, &info) == GAUDI_OK && info.index == 1 && info.generation == 2);
    EXPECT(info.struct_size == sizeof(info) && strlen(info.bus_id) == 12 && info.memory_total > (1ULL << 30));
    gaudi_close(same);
    EXPECT(gaudi_open("first", &none) == GAUDI_INVALID &&
           strstr(gaudi_last_error(), "device 'first'") != NULL);
    EXPECT(gaudi_open("7", &none) == GAUDI_INVALID && strstr(gaudi_last_error(), "there are: 0") != NULL);

    enum { size = 100000 };
    uint64_t one = 0, two = 0, refused_address = 0;
    EXPECT(gaudi_allocate(device, size, &one) == GAUDI_OK && gaudi_allocate(device, size, &two) == GAUDI_OK);
    EXPECT(gaudi_allocate(device, 0, &refused_address) == GAUDI_INVALID);
    EXPECT(gaudi_allocate(device, 1ULL << 50, &refused_address) != GAUDI_OK);
    unsigned char *out = malloc(size), *back = calloc(1, size);
    for (int i = 0; i < size; ++i)
        out[i] = (unsigned char)(i * 13 + i / 256);
    EXPECT(gaudi_copy_in(device, one, out, size) == GAUDI_OK);
    EXPECT(gaudi_copy_within(device, two, one, size) == GAUDI_OK);
    EXPECT(gaudi_copy_out(device, back, two, size) == GAUDI_OK);
    EXPECT(memcmp(out, back, size) == 0);
    EXPECT(gaudi_copy_out(device, back, two + 1, size) == GAUDI_INVALID); /* one byte too long */

    gaudi_memory_info memory = {.struct_size = sizeof(memory)};
    EXPECT(gaudi_query_memory(two + 777, &memory) == GAUDI_OK);
    EXPECT(memory.base == two && memory.length == size && memory.device_index == 1 && memory.generation != 0);
    EXPECT(gaudi_query_memory((uint64_t)(uintptr_t)out, &memory) == GAUDI_INVALID);
    gaudi_memory_info unset = {0};
    EXPECT(gaudi_query_memory(two, &unset) == GAUDI_INVALID &&
           strstr(gaudi_last_error(), "struct_size") != NULL);

    /* A program built with a shorter structure, and one built with a longer one. */
    struct {
        gaudi_memory_info known;
        uint64_t more[4];
    } longer;
    memset(&longer, 0xab, sizeof(longer));
    longer.known.struct_size = offsetof(gaudi_memory_info, generation);
    EXPECT(gaudi_query_memory(two, &longer.known) == GAUDI_OK);
    EXPECT(longer.known.struct_size == offsetof(gaudi_memory_info, generation) &&
           longer.known.length == size);
    EXPECT(longer.known.generation == 0xabababababababab && longer.more[0] == 0xabababababababab);
    longer.known.struct_size = sizeof(longer);
    EXPECT(gaudi_query_memory(two, &longer.known) == GAUDI_OK);
    EXPECT(longer.known.struct_size == sizeof(longer) && longer.known.generation == memory.generation);
    EXPECT(longer.more[0] == 0 && longer.more[3] == 0); /* fields that this library does not know */

    gaudi_dmabuf dmabuf = {.struct_size = sizeof(dmabuf)};
    EXPECT(gaudi_export(device, one + 4096, 8192, &dmabuf) == GAUDI_OK);
    EXPECT(dmabuf.fd >= 0 && dmabuf.iova == one + 4096 && dmabuf.length == 8192 && dmabuf.offset % 4096 == 0);
    EXPECT(lseek(dmabuf.fd, 0, SEEK_END) > 8192); /* the whole chunk */
    close(dmabuf.fd);
    EXPECT(gaudi_export_pages(device, one + 4100, 8192, &dmabuf) == GAUDI_OK);
    EXPECT(dmabuf.iova == one + 4100 && dmabuf.length == 8192 && dmabuf.offset == 4);
    EXPECT(lseek(dmabuf.fd, 0, SEEK_END) == 3 * 4096); /* the pages around the range */
    close(dmabuf.fd);
    EXPECT(gaudi_export(device, one, 0, &dmabuf) == GAUDI_INVALID &&
           strstr(gaudi_last_error(), "0 bytes") != NULL);

    /* Null pointers are refused with a message. */
    EXPECT(gaudi_device_count(NULL) == GAUDI_INVALID && strstr(gaudi_last_error(), "null pointer") != NULL);
    EXPECT(gaudi_open("0", NULL) == GAUDI_INVALID &&
           gaudi_open(NULL, &same) == GAUDI_OK); /* NULL means auto */
    gaudi_close(same);
    gaudi_close(NULL);
    EXPECT(gaudi_query_device(NULL, &info) == GAUDI_INVALID &&
           gaudi_query_device(device, NULL) == GAUDI_INVALID);
    EXPECT(gaudi_allocate(NULL, 1, &refused_address) == GAUDI_INVALID &&
           gaudi_allocate(device, 1, NULL) == GAUDI_INVALID);
    EXPECT(gaudi_free(NULL, one) == GAUDI_INVALID && gaudi_query_memory(one, NULL) == GAUDI_INVALID);
    EXPECT(gaudi_copy_in(NULL, one, out, 1) == GAUDI_INVALID &&
           gaudi_copy_in(device, one, NULL, 1) == GAUDI_INVALID);
    EXPECT(gaudi_copy_out(NULL, back, one, 1) == GAUDI_INVALID &&
           gaudi_copy_out(device, NULL, one, 1) == GAUDI_INVALID);
    EXPECT(gaudi_copy_within(NULL, two, one, 1) == GAUDI_INVALID);
    EXPECT(gaudi_export(NULL, one, 4096, &dmabuf) == GAUDI_INVALID &&
           gaudi_export(device, one, 4096, NULL) == GAUDI_INVALID);
    EXPECT(gaudi_export_pages(device, one, 0, &dmabuf) == GAUDI_INVALID &&
           gaudi_export_pages(NULL, one, 4096, &dmabuf) == GAUDI_INVALID);

    EXPECT(gaudi_free(device, one) == GAUDI_OK && gaudi_free(device, two) == GAUDI_OK);
    EXPECT(gaudi_free(device, two) == GAUDI_INVALID);
    EXPECT(gaudi_export(device, one, 4096, &dmabuf) == GAUDI_INVALID);
    gaudi_close(device);
    free(out);
    free(back);
    printf("libgaudi-direct %s: right\n", gaudi_version());
    return 0;
}
