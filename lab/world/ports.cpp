// SPDX-License-Identifier: BSD-3-Clause
#include "lab/world/ports.hpp"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace lab {
namespace {

using word = std::atomic<std::uint64_t>;
static_assert(word::is_always_lock_free && max_hcas * 2 <= 64);

tl::unexpected<problem> failed(std::string_view what, const std::filesystem::path& path, int reason) {
    return tl::unexpected(problem{fmt::format("{} {}: {}", what, path.string(), std::strerror(reason))});
}

std::filesystem::path file_of(const std::filesystem::path& lab) {
    return lab / "ports";
}

} // namespace

port_states::~port_states() {
    if (word_ != nullptr)
        ::munmap(word_, sizeof(word));
}

result<void> port_states::make(const std::filesystem::path& lab, const description& wanted) {
    std::uint64_t down = 0;
    for (unsigned i = 0; i < wanted.hcas.size(); ++i)
        if (!wanted.hcas[i].port_up)
            down |= bit(i, 1) | bit(i, 2);
    const auto path = file_of(lab);
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return failed("cannot make", path, errno);
    const auto written = ::write(fd, &down, sizeof(down));
    const int reason = written < 0 ? errno : ENOSPC;
    ::close(fd);
    if (written != sizeof(down))
        return failed("cannot write", path, reason);
    return {};
}

result<port_states> port_states::open(const std::filesystem::path& lab) {
    const auto path = file_of(lab);
    const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return failed("cannot open", path, errno);
    struct stat status {};
    void* mapped = MAP_FAILED;
    errno = EINVAL;
    if (::fstat(fd, &status) == 0 && status.st_size == sizeof(word))
        mapped = ::mmap(nullptr, sizeof(word), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    const int reason = errno;
    ::close(fd);
    if (mapped == MAP_FAILED)
        return failed("cannot map", path, reason);
    return port_states(static_cast<word*>(mapped));
}

void port_states::set(unsigned card, unsigned port, bool up) const {
    if (up)
        word_->fetch_and(~bit(card, port));
    else
        word_->fetch_or(bit(card, port));
}

} // namespace lab
