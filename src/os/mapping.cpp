// SPDX-License-Identifier: BSD-3-Clause
#include "src/os/mapping.hpp"

#include <cerrno>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

namespace gaudi {

void mapping::mapped_range::close() noexcept {
    // A child never had the mapping: the address may be another one's there.
    if (owner == 0 || owner == ::getpid())
        ::munmap(bytes.data(), bytes.size());
}

result<mapping> mapping::anonymous(std::size_t size) {
    void* mapped = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED)
        return tl::unexpected(error(errc::system_call_failed, fmt::format("mmap of {} bytes", size), errno));
    // After fork a write would give parent and child different pages, while the device keeps the ones it has
    // pinned (gotcha 29).
    ::madvise(mapped, size, MADV_DONTFORK);
    return mapping({{static_cast<std::byte*>(mapped), size}, ::getpid()});
}

result<mapping> mapping::of_file(int fd, std::uint64_t offset, std::size_t size) {
    void* mapped = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(offset));
    if (mapped == MAP_FAILED)
        return tl::unexpected(
            error(errc::system_call_failed,
                  fmt::format("mmap of descriptor {}, offset {:#x}, {} bytes", fd, offset, size), errno));
    return mapping({{static_cast<std::byte*>(mapped), size}, 0});
}

} // namespace gaudi
