// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/gaudi/context.hpp"
#include "lab/world/folder.hpp"

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <sys/stat.h>
#include <vector>

namespace lab::gaudi {

class queue_worker;

// The HBM (or SRAM) of a device, mapped into this process. Sparse: see lab/dmabuf.h.
class backing {
public:
    backing(const std::filesystem::path& path, std::uint64_t size);
    ~backing();
    backing(const backing&) = delete;
    backing& operator=(const backing&) = delete;

    [[nodiscard]] std::uint64_t size() const { return size_; }
    // Bytes ready for reading and writing, or nullptr with errno (no space on tmpfs).
    [[nodiscard]] unsigned char* bytes(std::uint64_t offset, std::uint64_t length);
    // Allocates storage for the granule states, without which accessing them could be a SIGBUS.
    [[nodiscard]] bool store_states();
    // Discards the contents and frees the storage.
    void discard(std::uint64_t offset, std::uint64_t length);
    // The same for the whole file, without a mapping.
    static void discard_all(const std::filesystem::path& path);

private:
    int fd_ = -1;
    unsigned char* base_ = nullptr;
    std::uint64_t size_;
};

// One virtual device in this process. Lives until the process leaves the lab.
class virtual_device {
public:
    virtual_device(const lab::folder& where, unsigned index);
    ~virtual_device();
    virtual_device(const virtual_device&) = delete;
    virtual_device& operator=(const virtual_device&) = delete;

    const unsigned index;
    const gaudi_description description;
    const personality type;
    const std::filesystem::path node, control, directory;
    const std::vector<std::filesystem::path> other_states; // of the lab's other devices

    [[nodiscard]] bool is_compute(const struct stat& status) const;
    [[nodiscard]] bool is_control(const struct stat& status) const;

    // A new compute descriptor, or -errno: EBUSY, EAGAIN, EPERM, ENOENT ...
    [[nodiscard]] int open_compute();
    [[nodiscard]] int open_control() const;
    // Called after a compute descriptor was closed: if it was the last reference, releases the device.
    void released();
    // Frees the memory of an opener that was killed.
    void reclaim();

    // These map their files on first use.
    [[nodiscard]] context& state();
    [[nodiscard]] backing& hbm();
    [[nodiscard]] backing& sram();
    [[nodiscard]] queue_worker& worker(unsigned queue);
    // The calling thread executes a waiting short copy. False: there was none.
    bool help();
    // Whether a submission is waiting whose command buffer is in that range and was not fetched yet.
    [[nodiscard]] bool buffer_awaited(std::uint64_t begin, std::uint64_t end);
    [[nodiscard]] bool has_running_work() const;
    // Keeps the device busy for a running submission, like a dup of the descriptor.
    [[nodiscard]] std::shared_ptr<const int> hold(int fd);

    [[nodiscard]] std::filesystem::path export_path(std::uint64_t id) const;
    // Whether a DMA-BUF of this device is alive in any process, or may be: errno says which. Removes dead
    // ones.
    [[nodiscard]] bool any_export_alive() const;
    [[nodiscard]] bool export_alive(std::uint64_t id) const;
    void forget_export(std::uint64_t id) const;

    [[nodiscard]] unsigned cs_timeout_ms() const {
        return description.cs_timeout_ms != 0 ? description.cs_timeout_ms : type.cs_timeout_ms;
    }

private:
    void reset_storage();
    void release_leftovers();
    backing& mapped(std::atomic<backing*>& which, const char* file, std::uint64_t size);
    context* map_context();
    bool store_tables();
    [[nodiscard]] bool descriptors_left() const;

    std::mutex mutex_;
    struct stat node_status_ {
    }, control_status_{};
    // Mapped on first use; read without the mutex, which running work may hold.
    std::atomic<context*> context_{nullptr};
    std::atomic<backing*> hbm_{nullptr}, sram_{nullptr};
    std::map<unsigned, std::unique_ptr<queue_worker>> workers_;
    std::weak_ptr<const int> held_;
    std::atomic<unsigned> holds_{0};
};

// The lab that this process is in. Entered at the first call that needs a device.
class process {
public:
    static process& self();

    // nullptr if the lab cannot be entered; the reason was printed once.
    [[nodiscard]] const std::vector<std::unique_ptr<virtual_device>>* devices();
    // The device of a descriptor; nullptr with errno EBADF or ENOTTY.
    [[nodiscard]] virtual_device* find(int fd, bool* is_control = nullptr);
    // HBM of a device that may belong to another lab, for imports; mapped once and kept until leave().
    [[nodiscard]] backing& foreign_memory(const std::string& path, std::uint64_t size);
    // Leaves the lab, so that the next call enters it again: for tests that use several labs. Devices must be
    // closed.
    void leave();

private:
    std::mutex mutex_;
    bool tried_ = false;
    std::unique_ptr<lab::folder> folder_;
    std::vector<std::unique_ptr<virtual_device>> devices_;
    std::mutex foreign_mutex_;
    std::map<std::string, std::unique_ptr<backing>> foreign_;
};

} // namespace lab::gaudi
