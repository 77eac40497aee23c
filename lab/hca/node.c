/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Some programs (UCX) look for the character device of a NIC before they use it through libibverbs. The
 * virtual one has none; this library, preloaded beside libvhca.so, lets the questions about its path, and
 * about no other, be answered by /dev/null.
 */
#define _GNU_SOURCE
#include <fcntl.h>
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
