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

tl::unexpected<problem> failed(std::string_view what, const std::filesystem::path& path, int reason) {
    return tl::unexpected(problem{fmt::format("{} {}: {}", what, path.string(), std::strerror(reason))});
}

} // namespace

port_states::~port_states() {
    if (shared_ != nullptr)
        ::munmap(shared_, sizeof(contents));
}

std::filesystem::path port_states::file_of(const std::filesystem::path& lab) {
    return lab / "ports";
}

std::string port_states::text_of(const description& wanted) {
    contents states{};
    for (unsigned i = 0; i < wanted.hcas.size(); ++i)
        for (unsigned port = 1; port <= wanted.hcas[i].ports && !wanted.hcas[i].port_up; ++port) {
            states.down |= 1ULL << index_of(i, port);
            states.changes[index_of(i, port)] = 1;
        }
    return {reinterpret_cast<const char*>(&states), sizeof(states)};
}

result<port_states> port_states::open(const std::filesystem::path& lab) {
    const auto path = file_of(lab);
    const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return tl::unexpected(problem{fmt::format(
            "there is no {}: the lab is one of an older version; end its programs", path.string())});
    if (fd < 0)
        return failed("cannot open", path, errno);
    struct stat status {};
    void* mapped = MAP_FAILED;
    errno = EINVAL;
    if (::fstat(fd, &status) == 0 && status.st_size == sizeof(contents))
        mapped = ::mmap(nullptr, sizeof(contents), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    const int reason = errno;
    ::close(fd);
    if (mapped == MAP_FAILED)
        return failed("cannot map", path, reason);
    return port_states(static_cast<contents*>(mapped));
}

void port_states::set(unsigned hca, unsigned port, bool up) const {
    auto& count = shared_->changes[index_of(hca, port)];
    auto seen = count.load();
    do
        if ((seen % 2 == 0) == up)
            return;
    while (!count.compare_exchange_weak(seen, seen + 1));
    // Another process may change it meanwhile: repeat until the bit matches the last change.
    const auto bit = 1ULL << index_of(hca, port);
    do {
        seen = count.load();
        if (seen % 2 == 0)
            shared_->down.fetch_and(~bit);
        else
            shared_->down.fetch_or(bit);
    } while (count.load() != seen);
}

port_states::changes port_states::seen() const {
    changes now{};
    for (unsigned i = 0; i < most; ++i)
        now[i] = shared_->changes[i].load();
    return now;
}

} // namespace lab
