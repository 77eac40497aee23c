// SPDX-License-Identifier: BSD-3-Clause
#include "lab/dmabuf.h"
#include "lab/gaudi/device.hpp"

#include <cstdio>
#include <cstring>
#include <system_error>

namespace lab::gaudi {
namespace {

[[noreturn]] void fail(const char* what, const std::filesystem::path& path, int fd) {
    const int reason = errno;
    std::fprintf(stderr, "gaudi-lab: cannot %s %s: %s\n", what, path.c_str(), std::strerror(reason));
    if (fd >= 0)
        ::close(fd);
    throw std::system_error(reason, std::generic_category());
}

} // namespace

backing::backing(const std::filesystem::path& path, std::uint64_t size) : size_(size) {
    fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    const auto file_size = gaudi_lab_hbm_file_size(size);
    if (fd_ < 0 || ::ftruncate(fd_, static_cast<off_t>(file_size)) != 0)
        fail("open", path, fd_);
    void* mapped = ::mmap(nullptr, file_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd_, 0);
    if (mapped == MAP_FAILED)
        fail("map", path, fd_);
    base_ = static_cast<unsigned char*>(mapped);
}

backing::~backing() {
    if (base_ != nullptr)
        ::munmap(base_, gaudi_lab_hbm_file_size(size_));
    if (fd_ >= 0)
        ::close(fd_);
}

unsigned char* backing::bytes(std::uint64_t offset, std::uint64_t length) {
    if (const int rc = gaudi_lab_hbm_prepare(fd_, base_, size_, offset, length); rc != 0) {
        errno = -rc;
        return nullptr;
    }
    return base_ + offset;
}

bool backing::store_states() {
    const auto states = gaudi_lab_hbm_file_size(size_) - size_;
    return ::fallocate(fd_, FALLOC_FL_KEEP_SIZE, static_cast<off_t>(size_), static_cast<off_t>(states)) == 0;
}

void backing::discard(std::uint64_t offset, std::uint64_t length) {
    constexpr int punch = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    ::fallocate(fd_, punch, static_cast<off_t>(offset), static_cast<off_t>(length));
    // The granule states keep their storage; they are only set to zero.
    const auto first = offset / GAUDI_LAB_GRANULE, last = (offset + length - 1) / GAUDI_LAB_GRANULE;
    std::memset(base_ + size_ + first * sizeof(std::uint32_t), 0, (last - first + 1) * sizeof(std::uint32_t));
}

void backing::discard_all(const std::filesystem::path& path) {
    struct stat status {};
    const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return; // never used
    if (::fstat(fd, &status) == 0 && status.st_blocks != 0)
        ::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, status.st_size);
    ::close(fd);
}

} // namespace lab::gaudi
