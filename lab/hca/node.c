/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Some programs (UCX) check for the character device of a NIC before they use it through libibverbs. A
 * virtual nic has none; this library, preloaded together with libvhca.so, redirects calls about its path, and
 * about no other path, to /dev/null.
 *
 * It has no symbol versions, so that it also serves the symbols in the private version node of libibverbs,
 * whose number changes with the releases of rdma-core.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))

static const char* real_path(const char* path) {
    static const char prefix[] = "/dev/infiniband/uverbs-vhca";
    return path != NULL && strncmp(path, prefix, sizeof(prefix) - 1) == 0 ? "/dev/null" : path;
}

EXPORTED int access(const char* path, int mode) {
    return faccessat(AT_FDCWD, real_path(path), mode, 0);
}

EXPORTED int stat(const char* restrict path, struct stat* restrict into) {
    return fstatat(AT_FDCWD, real_path(path), into, 0);
}

EXPORTED int stat64(const char* restrict path, struct stat64* restrict into) {
    return fstatat64(AT_FDCWD, real_path(path), into, 0);
}

/* Programs built on a glibc before 2.33. */
EXPORTED int __xstat(int version, const char* path, struct stat* into) {
    (void)version;
    return fstatat(AT_FDCWD, real_path(path), into, 0);
}

/* Defined in libvhca.so. */
extern int _ibv_query_gid_ex(struct ibv_context*, uint32_t, uint32_t, struct ibv_gid_entry*, uint32_t, size_t)
    __attribute__((weak));

/* For ibv_devinfo: the type as in the kernel's file. 0: InfiniBand, RoCE v1, or no such GID; 1: RoCE v2. */
EXPORTED int ibv_query_gid_type(struct ibv_context* context, uint8_t port, unsigned index, int* type) {
    struct ibv_gid_entry entry = {.gid_type = IBV_GID_TYPE_IB};
    const int error = _ibv_query_gid_ex != NULL
                          ? _ibv_query_gid_ex(context, port, index, &entry, 0, sizeof(entry))
                          : ENOSYS;
    if (error != 0 && error != ENODATA) {
        errno = error;
        return -1;
    }
    *type = entry.gid_type == IBV_GID_TYPE_ROCE_V2 ? 1 : 0;
    return 0;
}
