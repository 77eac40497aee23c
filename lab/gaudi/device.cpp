// SPDX-License-Identifier: BSD-3-Clause
#include "lab/gaudi/device.hpp"

#include "lab/world/storage.hpp"

#include "abi/hlthunk.h"
#include "lab/gaudi/queue_worker.hpp"
#include "lab/gaudi/submission.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>
#include <span>
#include <sys/file.h>
#include <sys/mman.h>
#include <system_error>
#include <thread>
#include <unistd.h>

namespace lab::gaudi {
namespace {

// The node is as large as the driver's mmap offsets: command buffers are at 1 << 60.
constexpr off_t node_size = 0x1800000000000000;
constexpr const char* state_file = "context";

bool same_inode(const struct stat& a, const struct stat& b) {
    return a.st_ino == b.st_ino && a.st_dev == b.st_dev;
}

bool try_lock(int fd, int how) {
    int rc;
    do
        rc = ::flock(fd, how | LOCK_NB);
    while (rc != 0 && errno == EINTR);
    return rc == 0;
}

std::vector<std::filesystem::path> states_in(const lab::folder& where, unsigned number) {
    std::vector<std::filesystem::path> others;
    for (unsigned i = 0; i < where.contents().gaudis.size(); ++i)
        if (i != number)
            others.push_back(where.device_folder(i) / state_file);
    return others;
}

} // namespace

virtual_device::virtual_device(const lab::folder& where, unsigned number)
    : index(number), description(where.contents().gaudis[number]), type(personality_of(description)),
      node(where.device_node(number)), control(where.control_node(number)),
      directory(where.device_folder(number)), other_states(states_in(where, number)) {
    ::stat(node.c_str(), &node_status_);
    ::stat(control.c_str(), &control_status_);
}

virtual_device::~virtual_device() {
    workers_.clear();
    delete hbm_.load();
    delete sram_.load();
    if (auto* mapped_state = context_.load(); mapped_state != nullptr)
        ::munmap(mapped_state, sizeof(context));
}

bool virtual_device::is_compute(const struct stat& status) const {
    return same_inode(status, node_status_);
}

bool virtual_device::is_control(const struct stat& status) const {
    return same_inode(status, control_status_);
}

int virtual_device::open_compute() {
    if (description.broken)
        return -EPERM;
    auto& shared = state();
    // Mapped now, so that a failure is an errno of open and not a fault in the middle of a copy.
    (void)hbm();
    (void)sram();
    const int fd = ::open(node.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    if (!try_lock(fd, LOCK_EX)) {
        ::close(fd);
        return shared.resetting != 0 ? -EAGAIN : -EBUSY;
    }
    // This is the only opener now, unless a DMA-BUF outlived the descriptors of the context it came from.
    if (any_export_alive()) {
        const int error = errno;
        ::close(fd);
        return -error;
    }
    reset_storage();
    // Allocate storage for the tables now: a full tmpfs must be an errno of open and not a SIGBUS on a later
    // write.
    if (::ftruncate(fd, node_size) != 0 || !store_tables()) {
        const int error = errno;
        std::fprintf(stderr, "gaudi-lab: no storage for the tables of a context in %s: %s\n",
                     directory.c_str(), explain_no_storage(directory, error).c_str());
        reset_storage();
        ::close(fd);
        return -error;
    }
    const context_lock lock(shared);
    shared.open_count++;
    shared.opened_ns = now_ns();
    shared.opener = ::getpid();
    shared.opener_start = process_start_time(shared.opener);
    return fd;
}

int virtual_device::open_control() const {
    if (description.broken)
        return -EPERM;
    const int fd = ::open(control.c_str(), O_RDWR | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

void virtual_device::reset_storage() {
    auto& shared = state();
    shared.resetting = 1;
    release_leftovers();
    // Gen1 is not reset when its user closes it, only after an error.
    if (type.reset_on_release || shared.status != HL_DEVICE_STATUS_OPERATIONAL) {
        backing::discard_all(directory / "hbm");
        backing::discard_all(directory / "sram");
    }
    // Command buffers are ranges of the node itself: truncating and growing it discards them.
    if (::truncate(node.c_str(), 0) != 0)
        std::fprintf(stderr, "gaudi-lab: cannot reset %s: %s\n", node.c_str(), std::strerror(errno));
    if (shared.opened_ns != 0)
        shared.last_open_ms = (now_ns() - shared.opened_ns) / 1000000;
    wipe(shared);
}

// Releases what the ending context kept in this process: duplicates of imported DMA-BUFs, views of mapped
// command buffers.
void virtual_device::release_leftovers() {
    auto& shared = state();
    const context_lock lock(shared);
    for (auto& record : std::span(shared.imports, shared.next_import > 1 ? context::max_imports : 0))
        if (record.id != 0 && record.process == ::getpid()) {
            ::close(record.dup_fd);
            record.id = 0;
        }
    for (std::uint32_t i = 0; i < shared.mapping_count; ++i)
        if (const auto& entry = shared.mappings[i];
            entry.kind == mapping_kind::command_buffer && entry.process == ::getpid())
            ::munmap(reinterpret_cast<void*>(entry.host_address), entry.size);
}

bool virtual_device::descriptors_left() const {
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
        const auto name = entry.path().filename().string();
        int fd = -1;
        std::from_chars(name.data(), name.data() + name.size(), fd);
        struct stat status {};
        if (const auto own = held_.lock(); own && *own == fd)
            continue;
        if (fd >= 0 && ::fstat(fd, &status) == 0 && is_compute(status))
            return true;
    }
    return false;
}

void virtual_device::released() {
    // Running work holds the device through the lab's duplicate of the descriptor. If the program has no
    // descriptor any more, this closes a context with work in flight: the driver aborts it.
    if (has_running_work() && !descriptors_left()) {
        abort_all(*this);
        while (has_running_work())
            std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    const int fd = ::open(node.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return;
    // Free the storage of the dead context now; otherwise it would stay until the next open. A process that
    // opens the device meanwhile gets EAGAIN.
    state().resetting = 1;
    if (try_lock(fd, LOCK_EX) && !any_export_alive())
        reset_storage();
    state().resetting = 0;
    ::close(fd);
}

// The opener was killed and never closed the device: free its memory here, not only at the next open.
void virtual_device::reclaim() {
    // An opener that was killed in the middle of open() leaves tables but no memory.
    constexpr std::uint64_t idle_context = 65536; // more than a closed context leaves in storage
    const auto stored = [&](const char* file) {
        struct stat status {};
        return ::stat((directory / file).c_str(), &status) == 0
                   ? static_cast<std::uint64_t>(status.st_blocks) * 512
                   : 0;
    };
    if (stored("hbm") == 0 && stored("sram") == 0 && stored(state_file) <= idle_context)
        return;
    auto& shared = state();
    if (const auto opener = shared.opener; opener != 0 && process_start_time(opener) == shared.opener_start)
        return;
    const int fd = ::open(node.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return;
    if (try_lock(fd, LOCK_EX)) {
        shared.resetting = 1; // a process that opens the device meanwhile gets EAGAIN
        if (!any_export_alive())
            reset_storage();
        shared.resetting = 1; // reset_storage() cleared it too early
        ::close(fd);
        shared.resetting = 0;
        return;
    }
    ::close(fd);
}

context* virtual_device::map_context() {
    const auto path = directory / state_file;
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    void* view = MAP_FAILED;
    if (fd >= 0 && ::ftruncate(fd, sizeof(context)) == 0 &&
        ::fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, offsetof(context, page_next)) == 0)
        view = ::mmap(nullptr, sizeof(context), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    const int error = errno;
    if (view != MAP_FAILED && ::flock(fd, LOCK_EX) == 0) {
        initialise(*static_cast<context*>(view));
        ::flock(fd, LOCK_UN); // explicitly: the mapping would keep the lock
    }
    if (fd >= 0)
        ::close(fd);
    if (view == MAP_FAILED) {
        std::fprintf(stderr, "gaudi-lab: cannot map %s: %s\n", path.c_str(), std::strerror(error));
        throw std::system_error(error, std::generic_category());
    }
    return static_cast<context*>(view);
}

bool virtual_device::store_tables() {
    const int fd = ::open((directory / state_file).c_str(), O_RDWR | O_CLOEXEC);
    const bool stored = fd >= 0 && ::fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, sizeof(context)) == 0;
    const int error = errno;
    if (fd >= 0)
        ::close(fd);
    errno = error;
    return stored && hbm().store_states() && sram().store_states();
}

context& virtual_device::state() {
    auto* current = context_.load(std::memory_order_acquire);
    if (current == nullptr) {
        const std::lock_guard guard(mutex_);
        current = context_.load(std::memory_order_relaxed);
        if (current == nullptr)
            context_.store(current = map_context(), std::memory_order_release);
    }
    return *current;
}

backing& virtual_device::mapped(std::atomic<backing*>& which, const char* file, std::uint64_t size) {
    auto* current = which.load(std::memory_order_acquire);
    if (current == nullptr) {
        const std::lock_guard guard(mutex_);
        current = which.load(std::memory_order_relaxed);
        if (current == nullptr)
            which.store(current = new backing(directory / file, size), std::memory_order_release);
    }
    return *current;
}

backing& virtual_device::hbm() {
    return mapped(hbm_, "hbm", type.hbm_size);
}

backing& virtual_device::sram() {
    return mapped(sram_, "sram", type.sram_size);
}

queue_worker& virtual_device::worker(unsigned queue) {
    const std::lock_guard guard(mutex_);
    auto& worker = workers_[queue];
    if (!worker)
        worker = std::make_unique<queue_worker>(*this, queue);
    return *worker;
}

bool virtual_device::help() {
    std::array<queue_worker*, 16> all{};
    std::size_t count = 0;
    {
        const std::lock_guard guard(mutex_);
        for (const auto& [queue, worker] : workers_)
            if (count < all.size())
                all[count++] = worker.get(); // workers live as long as the device
    }
    return std::any_of(all.begin(), all.begin() + count, [](queue_worker* each) { return each->help(); });
}

bool virtual_device::buffer_awaited(std::uint64_t begin, std::uint64_t end) {
    const std::lock_guard guard(mutex_);
    for (const auto& [queue, worker] : workers_)
        if (worker->awaits(begin, end))
            return true;
    return false;
}

bool virtual_device::has_running_work() const {
    return holds_.load(std::memory_order_acquire) != 0;
}

std::shared_ptr<const int> virtual_device::hold(int fd) {
    const std::lock_guard guard(mutex_);
    auto held = held_.lock();
    if (!held) {
        const int copy = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
        // Without a free descriptor the work does not hold the device: only a close during the work makes a
        // difference.
        holds_.fetch_add(1, std::memory_order_relaxed);
        held = std::shared_ptr<const int>(new int(copy), [this](const int* owned) {
            if (*owned >= 0)
                ::close(*owned);
            delete owned;
            holds_.fetch_sub(1, std::memory_order_release); // last: a thread that sees 0 may wipe the context
        });
        held_ = held;
    }
    return held;
}

std::filesystem::path virtual_device::export_path(std::uint64_t id) const {
    return directory / "exports" / fmt::format("{}", id);
}

bool virtual_device::export_alive(std::uint64_t id) const {
    const int fd = ::open(export_path(id).c_str(), O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return errno != ENOENT; // cannot check (no descriptor left): report busy rather than wipe
    // A probe takes a shared lock, so that two probes never mistake each other for the owner.
    const bool alive = !try_lock(fd, LOCK_SH);
    ::close(fd);
    return alive;
}

void virtual_device::forget_export(std::uint64_t id) const {
    const auto path = export_path(id);
    ::unlink((path.string() + ".ranges").c_str());
    ::unlink(path.c_str());
}

bool virtual_device::any_export_alive() const {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(directory / "exports", error)) {
        const auto name = entry.path().filename().string();
        std::uint64_t id = 0;
        if (name.find('.') != name.npos)
            continue;
        std::from_chars(name.data(), name.data() + name.size(), id);
        if (export_alive(id)) {
            errno = EBUSY;
            return true;
        }
        forget_export(id);
    }
    errno = error.value();
    return static_cast<bool>(error); // a folder that cannot be read may hold live exports
}

process& process::self() {
    // Never destroyed: worker threads and atexit handlers of the program may still call.
    static auto* instance = [] {
        auto* fresh = new process;
        // A forked child has the parent's mappings but none of its threads: it stays in the lab and starts
        // afresh. Nothing is locked around fork, because the program may hold its own locks when it calls
        // fork; the old objects are leaked.
        ::pthread_atfork(nullptr, nullptr, [] {
            auto& child = self();
            static auto* abandoned = new std::vector<std::unique_ptr<virtual_device>>;
            abandoned->insert(abandoned->end(), std::make_move_iterator(child.devices_.begin()),
                              std::make_move_iterator(child.devices_.end()));
            new (&child.devices_) std::vector<std::unique_ptr<virtual_device>>;
            new (&child.mutex_) std::mutex;
            new (&child.foreign_mutex_) std::mutex;
            child.tried_ = false;
        });
        return fresh;
    }();
    return *instance;
}

const std::vector<std::unique_ptr<virtual_device>>* process::devices() {
    const std::lock_guard guard(mutex_);
    if (!tried_) {
        tried_ = true;
        if (!folder_) {
            auto entered = lab::folder::enter(selected_name(), std::nullopt);
            if (!entered) {
                std::fprintf(stderr, "gaudi-lab: %s\n", entered.error().text.c_str());
                return nullptr;
            }
            folder_ = std::make_unique<lab::folder>(std::move(*entered));
        }
        for (unsigned i = 0; i < folder_->contents().gaudis.size(); ++i)
            devices_.push_back(std::make_unique<virtual_device>(*folder_, i));
        for (const auto& device : devices_)
            device->reclaim();
    }
    return folder_ ? &devices_ : nullptr;
}

virtual_device* process::find(int fd, bool* is_control) {
    struct stat status {};
    if (::fstat(fd, &status) != 0)
        return nullptr;
    if (const auto* all = devices(); all != nullptr)
        for (const auto& device : *all) {
            if (device->is_compute(status)) {
                if (is_control != nullptr)
                    *is_control = false;
                return device.get();
            }
            if (is_control != nullptr && device->is_control(status)) {
                *is_control = true;
                return device.get();
            }
        }
    errno = ENOTTY;
    return nullptr;
}

backing& process::foreign_memory(const std::string& path, std::uint64_t size) {
    const std::lock_guard guard(foreign_mutex_);
    auto& view = foreign_[path];
    if (!view)
        view = std::make_unique<backing>(path, size);
    return *view;
}

void process::leave() {
    const std::lock_guard guard(mutex_);
    foreign_.clear();
    devices_.clear();
    folder_.reset();
    tried_ = false;
}

} // namespace lab::gaudi
