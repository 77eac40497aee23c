// SPDX-License-Identifier: BSD-3-Clause
#include "src/os/shared_memory.hpp"

#include "src/error/try.hpp"
#include "src/os/system_error.hpp"

#include <cerrno>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

namespace gaudi {

result<shared_memory> shared_memory::make(const char* name, std::size_t size) {
    shared_memory segment;
    segment.descriptor_ = unique_fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!segment.descriptor_)
        return tl::unexpected(system_error(fmt::format("memfd_create of {}", name)));
    // Sealed: a peer that shrank the memory would end this process with SIGBUS at its next access.
    if (::ftruncate(segment.descriptor(), static_cast<off_t>(size)) != 0 ||
        ::fcntl(segment.descriptor(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        return tl::unexpected(
            error(errc::system_call_failed, fmt::format("{} bytes of shared memory", size), errno));
    GAUDI_TRY(segment.memory_, mapping::of_file(segment.descriptor(), 0, size));
    return segment;
}

result<shared_memory> shared_memory::of(unique_fd descriptor, std::size_t size) {
    struct stat status {};
    const int seals = ::fcntl(descriptor.get(), F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || ::fstat(descriptor.get(), &status) != 0 ||
        static_cast<std::size_t>(status.st_size) < size)
        return tl::unexpected(error(
            errc::protocol_violated,
            fmt::format("shared memory of {} bytes that cannot shrink, expected {}", status.st_size, size)));
    GAUDI_TRY(auto mapped, mapping::of_file(descriptor.get(), 0, size));
    shared_memory segment;
    segment.descriptor_ = std::move(descriptor);
    segment.memory_ = std::move(mapped);
    return segment;
}

} // namespace gaudi
