// SPDX-License-Identifier: BSD-3-Clause
#include "lab/hca/segment.hpp"

#include <cerrno>
#include <cstdlib>
#include <fcntl.h>
#include <string>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <vector>

namespace lab::hca {
namespace {

constexpr std::uint64_t magic = 0x6763682d69647561;
constexpr std::uint32_t version = 4;

tl::unexpected<int> failed(int error) {
    return tl::unexpected(error);
}

bool try_lock(int fd) {
    int rc;
    do
        rc = ::flock(fd, LOCK_EX | LOCK_NB);
    while (rc != 0 && errno == EINTR);
    return rc == 0;
}

tl::expected<void, int> reserve(int fd, std::uint64_t offset, std::uint64_t bytes) {
    while (::fallocate(fd, FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset), static_cast<off_t>(bytes)) != 0)
        if (errno != EINTR)
            return failed(errno == ENOSPC ? ENOMEM : errno);
    return {};
}

segment_layout* map(int fd) {
    void* at = ::mmap(nullptr, segment_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (at == MAP_FAILED)
        return nullptr;
    ::madvise(at, segment_size, MADV_DONTDUMP);
    return static_cast<segment_layout*>(at);
}

std::uint64_t random_incarnation() {
    std::uint64_t value = 0;
    while (value == 0)
        if (::getrandom(&value, sizeof(value), 0) != sizeof(value))
            value = static_cast<std::uint64_t>(::getpid()) << 32 | static_cast<std::uint64_t>(::clock());
    return value;
}

void init_life(pthread_mutex_t& life) {
    pthread_mutexattr_t how;
    ::pthread_mutexattr_init(&how);
    ::pthread_mutexattr_setpshared(&how, PTHREAD_PROCESS_SHARED);
    ::pthread_mutexattr_setrobust(&how, PTHREAD_MUTEX_ROBUST);
    ::pthread_mutex_init(&life, &how);
    ::pthread_mutexattr_destroy(&how);
}

// Opens and locks the file of a slot for its new owner, and checks that the name still refers to that file.
int take_file(const std::filesystem::path& file) {
    for (;;) {
        const int fd = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (fd < 0)
            return -errno;
        if (!try_lock(fd)) {
            ::close(fd);
            return -EBUSY;
        }
        struct stat mine {
        }, named{};
        if (::fstat(fd, &mine) == 0 && ::stat(file.c_str(), &named) == 0 && mine.st_ino == named.st_ino) {
            if (mine.st_size == 0)
                return fd;
            // The file of a dead process. Peers may still have it mapped, so it is replaced, not reused.
            ::unlink(file.c_str());
            sweep_segments(file.parent_path());
        }
        ::close(fd);
    }
}

} // namespace

segment::segment(std::filesystem::path file, int fd, segment_layout* base, bool local)
    : file_(std::move(file)), fd_(fd), base_(base), is_local_(local) {
    if (local)
        free_[arena_begin] = segment_size - arena_begin;
}

segment::~segment() {
    if (is_local_)
        ::unlink(file_.c_str());
    ::munmap(base_, segment_size);
    if (fd_ >= 0)
        ::close(fd_);
}

void segment::disown() {
    is_local_ = false;
    ::close(fd_);
    fd_ = -1;
}

tl::expected<std::shared_ptr<segment>, int> segment::make(const std::filesystem::path& folder,
                                                          const std::function<bool(std::uint32_t)>& fits) {
    for (std::uint32_t slot = 1; slot < max_slots; ++slot) {
        const auto file = folder / std::to_string(slot);
        const int fd = take_file(file);
        if (fd == -EBUSY)
            continue;
        if (fd < 0)
            return failed(-fd);
        if (!fits(slot)) {
            ::unlink(file.c_str());
            ::close(fd);
            continue;
        }
        const bool stored =
            ::ftruncate(fd, segment_size) == 0 && reserve(fd, 0, sizeof(segment_head)).has_value();
        auto* base = stored ? map(fd) : nullptr;
        if (base == nullptr) {
            const int error = errno;
            ::unlink(file.c_str());
            ::close(fd);
            return failed(error == ENOSPC ? ENOMEM : error);
        }
        auto& head = base->head;
        head.version = version;
        head.slot = slot;
        head.incarnation = random_incarnation();
        head.process = ::getpid();
        head.user = ::geteuid();
        init_life(head.life);
        std::atomic_ref(head.magic).store(magic, std::memory_order_release);
        return std::shared_ptr<segment>(new segment(file, fd, base, true));
    }
    return failed(EAGAIN);
}

tl::expected<std::shared_ptr<segment>, int> segment::open(const std::filesystem::path& folder,
                                                          std::uint32_t slot) {
    const auto file = folder / std::to_string(slot);
    const int fd = ::open(file.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return failed(errno);
    struct stat status {};
    segment_layout* base = nullptr;
    int error = ENOENT;
    if (::fstat(fd, &status) == 0 && status.st_uid != ::geteuid())
        error = EACCES; // its contents are trusted: only files of this user
    else if (static_cast<std::uint64_t>(status.st_size) == segment_size) {
        base = map(fd);
        error = base == nullptr ? errno : 0;
    }
    if (error != 0 || base == nullptr) {
        ::close(fd);
        return failed(error);
    }
    std::shared_ptr<segment> opened(new segment(file, fd, base, false));
    if (std::atomic_ref(base->head.magic).load(std::memory_order_acquire) != magic ||
        base->head.version != version)
        return failed(ENOENT);
    return opened;
}

party segment::party() const {
    return static_cast<hca::party>((base_->head.incarnation << 10 | base_->head.slot) & party_mask);
}

void segment::ring() const {
    base_->head.doorbell.fetch_add(1, std::memory_order_release);
    futex_wake(base_->head.doorbell, 1);
}

tl::expected<std::uint64_t, int> segment::allocate(std::uint64_t bytes) {
    bytes = (std::max<std::uint64_t>(bytes, 1) + segment_page - 1) / segment_page * segment_page;
    const std::lock_guard guard(mutex_);
    for (auto place = free_.begin(); place != free_.end(); ++place) {
        if (place->second < bytes)
            continue;
        const auto [offset, size] = *place;
        if (const auto reserved = reserve(fd_, offset, bytes); !reserved) {
            ::fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                        static_cast<off_t>(bytes));
            return failed(reserved.error());
        }
        taken_[offset] = bytes;
        free_.erase(place);
        if (size > bytes)
            free_[offset + bytes] = size - bytes;
        return offset;
    }
    return failed(ENOMEM);
}

void segment::release(std::uint64_t offset) {
    const std::lock_guard guard(mutex_);
    const auto entry = taken_.find(offset);
    if (entry == taken_.end())
        return;
    const auto bytes = entry->second;
    taken_.erase(entry);
    // A hole: the next owner of the range reads zeros.
    ::fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                static_cast<off_t>(bytes));
    auto next = free_.emplace(offset, bytes).first;
    if (const auto after = std::next(next); after != free_.end() && offset + next->second == after->first) {
        next->second += after->second;
        free_.erase(after);
    }
    if (next != free_.begin())
        if (const auto before = std::prev(next); before->first + before->second == next->first) {
            before->second += next->second;
            free_.erase(next);
        }
}

tl::expected<void, int> segment::claim(const void* record, std::size_t bytes) {
    const auto begin = static_cast<std::uint64_t>(static_cast<const std::byte*>(record) -
                                                  reinterpret_cast<const std::byte*>(base_));
    return reserve(fd_, begin, bytes);
}

void for_each_user(const std::filesystem::path& folder, const std::function<void(segment&)>& visit) {
    std::error_code failure;
    for (std::uint32_t slot = 1; slot < max_slots; ++slot)
        if (std::filesystem::exists(folder / std::to_string(slot), failure))
            if (const auto user = segment::open(folder, slot); user && (*user)->alive())
                visit(**user);
}

void ring_all(const std::filesystem::path& folder) {
    for_each_user(folder, [](const segment& user) { user.ring(); });
}

void sweep_segments(const std::filesystem::path& folder) {
    std::error_code failure;
    std::vector<std::filesystem::path> channels;
    for (const auto& entry : std::filesystem::directory_iterator(folder, failure)) {
        const auto name = entry.path().filename().string();
        if (name.find_first_not_of("0123456789") != name.npos) {
            channels.push_back(entry.path());
            continue;
        }
        const int fd = ::open(entry.path().c_str(), O_RDWR | O_CLOEXEC);
        if (fd < 0)
            continue;
        if (try_lock(fd))
            ::unlink(entry.path().c_str());
        ::close(fd);
    }
    for (const auto& channel : channels)
        if (!std::filesystem::exists(channel.parent_path() / channel.stem(), failure))
            ::unlink(channel.c_str());
}

} // namespace lab::hca
