// SPDX-License-Identifier: BSD-3-Clause
#include "lab/world/storage.hpp"

#include "lab/dmabuf.h"

#include <cerrno>
#include <cstring>
#include <fmt/format.h>
#include <sys/statvfs.h>

namespace lab {

std::string explain_no_storage(const std::filesystem::path& folder, int error) {
    if (error == ENOMEM)
        return fmt::format("{} MiB of memory are left on this machine or in this container, of which the lab "
                           "leaves {} MiB untouched; use less device memory, or set GAUDI_LAB_RESERVE (MiB)",
                           gaudi_lab_memory_left() >> 20, gaudi_lab_reserve() >> 20);
    struct statvfs system {};
    if (error != ENOSPC || ::statvfs(folder.c_str(), &system) != 0)
        return std::strerror(error);
    return fmt::format(
        "{}: the tmpfs of {} has {} MiB in all; in a container enlarge it (docker and podman: "
        "--shm-size=2g), else free some of it, or set GAUDI_LAB_ROOT to a folder on a larger one",
        std::strerror(error), folder.string(),
        static_cast<std::uint64_t>(system.f_blocks) * system.f_frsize >> 20);
}

} // namespace lab
