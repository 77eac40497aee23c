/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What a virtual nic needs to access the bytes of a virtual device's DMA-BUF. This is the only interface
 * between the lab's two libraries. Plain C, header only, no state.
 *
 * A DMA-BUF descriptor is an open file <lab>/gaudiN/exports/ID, write-only, so that it can be neither read
 * nor mapped; its size is the buffer's. Its lock (flock, exclusive) belongs to the open file description: as
 * long as any process holds a duplicate, the device is busy. A registration keeps a dup of the descriptor.
 *
 * The file ID.ranges next to it lists the ranges of the device's HBM that make up the buffer. HBM itself is
 * the sparse file <lab>/gaudiN/hbm: hbm_size bytes of memory, then one 32-bit state per granule. Memory that
 * was not accessed since its allocation is a hole; gaudi_lab_hbm_prepare() gives it (non-zero) content and
 * its storage, and must be called for a range before its bytes are read or written. It is idempotent, and
 * cheap after the first call. It leaves the machine a reserve of memory: once only the reserve is left, it
 * fails with ENOMEM, so that no process is killed for lack of memory.
 */
#ifndef GAUDI_LAB_DMABUF_H
#define GAUDI_LAB_DMABUF_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef __cplusplus
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wold-style-cast" /* it is C */
extern "C" {
#endif

#define GAUDI_LAB_DMABUF_MAGIC 0x6675626d64696475ULL
#define GAUDI_LAB_GRANULE 65536ULL
#define GAUDI_LAB_FRESH_BYTE 0xA7 /* what memory holds after allocation: anything but zero */
#define GAUDI_LAB_GRANULE_READY 0xffffffffU

/* Flags of a DMA-BUF: how its driver takes a NIC that has no way to the device over PCIe. */
#define GAUDI_LAB_NO_PEER_MAP 1U  /* upstream tests the distance: mapping fails with EPERM */
#define GAUDI_LAB_NO_PEER_DATA 2U /* the vendor's does not: mapping succeeds, and the data is lost */

struct gaudi_lab_range {
    uint64_t hbm_offset;
    uint64_t length;
};

/* The head of ID.ranges; range_count ranges follow. */
struct gaudi_lab_dmabuf {
    uint64_t magic;
    uint64_t size;
    uint64_t hbm_size;
    uint32_t device_index;
    uint32_t range_count;
    uint64_t flags;
};

/* Bytes of the hbm file: the memory, then its granule states. */
static inline uint64_t gaudi_lab_hbm_file_size(uint64_t hbm_size) {
    return hbm_size + (hbm_size / GAUDI_LAB_GRANULE + 1) * sizeof(uint32_t);
}

/*
 * Describes the DMA-BUF of fd. ranges may be NULL to learn range_count first. hbm_path receives the path
 * of the HBM file. Returns 0, -EBADF (not open), -EINVAL (open, but not a DMA-BUF of this user's lab),
 * -ENOSPC (capacity), -EMFILE or -ENFILE (no descriptor is left to open its files).
 */
static inline int gaudi_lab_dmabuf_describe(int fd, struct gaudi_lab_dmabuf* head,
                                            struct gaudi_lab_range* ranges, uint32_t capacity, char* hbm_path,
                                            size_t hbm_path_size) {
    char link[64], path[3072], file[3200];
    struct stat by_fd, by_path;
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0)
        return -EBADF;
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof(path) - 1);
    if (length < 0)
        return -EINVAL;
    path[length] = '\0';
    char* name = strrchr(path, '/');
    if (name == NULL || name - path < 8 || strncmp(name - 8, "/exports", 8) != 0 ||
        (flags & O_ACCMODE) != O_WRONLY || fstat(fd, &by_fd) != 0 || stat(path, &by_path) != 0 ||
        by_fd.st_ino != by_path.st_ino || by_fd.st_dev != by_path.st_dev || by_fd.st_uid != geteuid())
        return -EINVAL;
    snprintf(file, sizeof(file), "%s.ranges", path);
    int description = open(file, O_RDONLY | O_CLOEXEC);
    if (description < 0)
        return errno == EMFILE || errno == ENFILE ? -errno : -EINVAL;
    int result = -EINVAL;
    if (read(description, head, sizeof(*head)) == (ssize_t)sizeof(*head) &&
        head->magic == GAUDI_LAB_DMABUF_MAGIC) {
        ssize_t wanted = (ssize_t)(head->range_count * sizeof(*ranges));
        if (ranges != NULL && head->range_count > capacity)
            result = -ENOSPC;
        else if (ranges == NULL || read(description, ranges, (size_t)wanted) == wanted)
            result = 0;
    }
    close(description);
    name[-8] = '\0';
    if (result == 0 && snprintf(hbm_path, hbm_path_size, "%s/hbm", path) >= (int)hbm_path_size)
        result = -ENOSPC;
    return result;
}

/* A number in a file of /proc or /sys: the one after `name`, or the first one. -1 if there is none. */
static inline int64_t gaudi_lab_number_in(const char* path, const char* name) {
    char text[8192];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t length = read(fd, text, sizeof(text) - 1);
    close(fd);
    if (length <= 0)
        return -1;
    text[length] = '\0';
    const char* digits = name != NULL ? strstr(text, name) : text;
    if (digits == NULL)
        return -1;
    digits += name != NULL ? strlen(name) : 0;
    while (*digits == ' ' || *digits == ':')
        ++digits;
    return *digits >= '0' && *digits <= '9' ? strtoll(digits, NULL, 10) : -1;
}

/* Bytes of memory that can still be allocated: the machine's, and the container's if it has a limit. */
static inline uint64_t gaudi_lab_memory_left(void) {
    const char* group = "/sys/fs/cgroup/memory.stat";
    int64_t left = gaudi_lab_number_in("/proc/meminfo", "MemAvailable");
    int64_t limit = gaudi_lab_number_in("/sys/fs/cgroup/memory.max", NULL);
    int64_t used = gaudi_lab_number_in("/sys/fs/cgroup/memory.current", NULL);
    uint64_t bytes = left < 0 ? UINT64_MAX : (uint64_t)left << 10;
    if (limit > 0 && used >= 0) {
        int64_t active = gaudi_lab_number_in(group, "\nactive_file");
        int64_t inactive = gaudi_lab_number_in(group, "\ninactive_file");
        used -= (active > 0 ? active : 0) + (inactive > 0 ? inactive : 0);
        uint64_t here = limit > used ? (uint64_t)(limit - used) : 0;
        bytes = here < bytes ? here : bytes;
    }
    return bytes;
}

/* The reserve of the machine: GAUDI_LAB_RESERVE in MiB, or a sixteenth of its memory, 1 GiB at most. */
static inline uint64_t gaudi_lab_reserve(void) {
    const char* chosen = getenv("GAUDI_LAB_RESERVE");
    if (chosen != NULL && *chosen >= '0' && *chosen <= '9')
        return strtoull(chosen, NULL, 10) << 20;
    int64_t total = gaudi_lab_number_in("/proc/meminfo", "MemTotal");
    uint64_t part = total < 0 ? 0 : ((uint64_t)total << 10) / 16;
    return part < 1ULL << 30 ? part : 1ULL << 30;
}

/* Checked for every 4 MiB that this process fills: one check takes as long as filling a granule. */
static inline int gaudi_lab_memory_is_left(void) {
    static uint32_t granules;
    if (__atomic_fetch_add(&granules, 1, __ATOMIC_RELAXED) % 64 != 0)
        return 1;
    if (gaudi_lab_memory_left() > gaudi_lab_reserve() + (64 * GAUDI_LAB_GRANULE))
        return 1;
    __atomic_store_n(&granules, 0, __ATOMIC_RELAXED); /* the next call checks again */
    return 0;
}

/* Fills one granule: allocates storage first (a full tmpfs is an error here, not a SIGBUS later), then
 * writes its initial content. */
static inline int gaudi_lab_granule_fill(int hbm_fd, unsigned char* base, uint64_t offset,
                                         uint64_t hbm_size) {
    uint64_t length = hbm_size - offset < GAUDI_LAB_GRANULE ? hbm_size - offset : GAUDI_LAB_GRANULE;
    if (!gaudi_lab_memory_is_left())
        return -ENOMEM;
    while (fallocate(hbm_fd, FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)length) != 0)
        if (errno != EINTR)
            return -errno;
    memset(base + offset, GAUDI_LAB_FRESH_BYTE, length);
    return 0;
}

/* The process does not exist, or is a zombie. */
static inline int gaudi_lab_is_dead(pid_t process) {
    char path[64], text[512];
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)process);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT || errno == ESRCH;
    ssize_t length = read(fd, text, sizeof(text) - 1);
    close(fd);
    if (length <= 0)
        return 1;
    text[length] = '\0';
    const char* name_end = strrchr(text, ')');
    return name_end != NULL && name_end[1] == ' ' && (name_end[2] == 'Z' || name_end[2] == 'X');
}

/* base: the whole hbm file, mapped shared and writable. Returns 0 or -ENOSPC and the like. */
static inline int gaudi_lab_hbm_prepare(int hbm_fd, unsigned char* base, uint64_t hbm_size, uint64_t offset,
                                        uint64_t length) {
    uint32_t* states = (uint32_t*)(void*)(base + hbm_size);
    if (length == 0)
        return 0;
    for (uint64_t granule = offset / GAUDI_LAB_GRANULE; granule <= (offset + length - 1) / GAUDI_LAB_GRANULE;
         ++granule) {
        uint32_t* state = &states[granule];
        uint32_t seen = __atomic_load_n(state, __ATOMIC_ACQUIRE);
        while (seen != GAUDI_LAB_GRANULE_READY) {
            /* The state holds the pid of the process that fills the granule: wait for it while it lives,
             * take over if it died. */
            if (seen != 0 && !gaudi_lab_is_dead((pid_t)seen)) {
                sched_yield();
                seen = __atomic_load_n(state, __ATOMIC_ACQUIRE);
                continue;
            }
            if (!__atomic_compare_exchange_n(state, &seen, (uint32_t)getpid(), 0, __ATOMIC_ACQUIRE,
                                             __ATOMIC_ACQUIRE))
                continue;
            int result = gaudi_lab_granule_fill(hbm_fd, base, granule * GAUDI_LAB_GRANULE, hbm_size);
            seen = result == 0 ? GAUDI_LAB_GRANULE_READY : 0;
            __atomic_store_n(state, seen, __ATOMIC_RELEASE);
            if (result != 0)
                return result;
        }
    }
    return 0;
}

#ifdef __cplusplus
}
#pragma GCC diagnostic pop
#endif
#endif
