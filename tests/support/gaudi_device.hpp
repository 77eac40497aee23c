// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "tests/support/hlthunk_functions.h"

#include <cerrno>
#include <cstring>
#include <gtest/gtest.h>
#include <span>
#include <sys/mman.h>
#include <vector>

namespace testing_support {

constexpr std::uint64_t mib = 1ULL << 20, gib = 1ULL << 30, dram_page = 768 * mib;
constexpr std::uint64_t cfg = 0x1000007FF8000000, fence_of_queue_0 = cfg + 0x4C8A290;
constexpr std::uint32_t user_buffer = HL_CS_CHUNK_FLAGS_USER_ALLOC_CB;

// A device opened through the C interface, with common operations of the tests. The destructor closes it.
class gaudi_device {
public:
    explicit gaudi_device(const char* bus_id = "0000:19:00.0")
        : fd(hlthunk_open(HLTHUNK_DEVICE_DONT_CARE, bus_id)) {}
    ~gaudi_device() { close(); }
    gaudi_device(const gaudi_device&) = delete;
    gaudi_device& operator=(const gaudi_device&) = delete;

    int close() {
        const int rc = fd >= 0 ? hlthunk_close(fd) : 0;
        fd = -1;
        return rc;
    }

    // Allocates and maps device memory; returns its address, 0 on failure.
    std::uint64_t memory(std::uint64_t size, std::uint64_t* handle = nullptr) const {
        const auto made = hlthunk_device_memory_alloc(fd, size, 0, true, false);
        if (handle != nullptr)
            *handle = made;
        return made == 0 ? 0 : hlthunk_device_memory_map(fd, made, 0);
    }

    [[nodiscard]] int dmabuf(std::uint64_t address, std::uint64_t size, std::uint64_t offset = 0,
                             std::uint32_t flags = HL_EXPORT_FLAGS) const {
        return hlthunk_device_mapped_memory_export_dmabuf_fd(fd, address, size, offset, flags);
    }

    // Submits a command buffer at a device address. Returns the return code; stores the sequence number.
    int submit(std::uint64_t buffer, std::uint32_t size, std::uint32_t queue, std::uint64_t* sequence,
               std::uint32_t flags = user_buffer, std::uint32_t submission_flags = 0) const {
        hl_cs_chunk chunk{};
        chunk.cb_handle = buffer;
        chunk.cb_size = size;
        chunk.queue_index = queue;
        chunk.cs_chunk_flags = flags;
        hlthunk_cs_in in{};
        in.chunks_execute = &chunk;
        in.num_chunks_execute = 1;
        in.flags = submission_flags;
        hlthunk_cs_out out{};
        const int rc = hlthunk_command_submission(fd, &in, &out);
        if (sequence != nullptr)
            *sequence = out.seq;
        return rc;
    }

    int fd;
};

// Host memory mapped for a device, for data or command buffers.
class host_memory {
public:
    host_memory(const gaudi_device& where, std::size_t size) : device_(where), bytes_(size) {
        address = hlthunk_host_memory_map(device_.fd, bytes_.data(), 0, size);
    }
    ~host_memory() {
        if (address != 0 && device_.fd >= 0)
            hlthunk_memory_unmap(device_.fd, address);
    }
    host_memory(const host_memory&) = delete;
    host_memory& operator=(const host_memory&) = delete;

    [[nodiscard]] std::vector<unsigned char>& bytes() { return bytes_; }

    std::uint64_t address;

private:
    const gaudi_device& device_;
    std::vector<unsigned char> bytes_;
};

// Appends packets to a command buffer.
class packets {
public:
    void lin_dma(std::uint64_t source, std::uint64_t destination, std::uint32_t size,
                 std::uint32_t flags = 0) {
        word(size, 9U << 24 | flags);
        quad(source);
        quad(destination);
    }
    void fence(std::uint32_t id, std::uint32_t target, std::uint32_t decrement) {
        word(id << 30 | target << 16 | decrement, 8U << 24);
    }
    void msg_long(std::uint64_t address, std::uint32_t value) {
        word(value, 3U << 24);
        quad(address);
    }
    void msg_short(std::uint32_t base, std::uint32_t offset, std::uint32_t value) {
        word(value, 4U << 24 | base << 22 | offset);
    }
    void cp_dma(std::uint64_t address, std::uint32_t size) {
        word(size, 5U << 24);
        quad(address);
    }
    void nop() { word(0, 10U << 24); }
    void raw(std::uint32_t value, std::uint32_t control) { word(value, control); }

    [[nodiscard]] const std::vector<unsigned char>& bytes() const { return bytes_; }
    [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(bytes_.size()); }

private:
    void word(std::uint32_t low, std::uint32_t high) {
        put(&low, sizeof(low));
        put(&high, sizeof(high));
    }
    void quad(std::uint64_t value) { put(&value, sizeof(value)); }
    void put(const void* data, std::size_t size) {
        const auto* begin = static_cast<const unsigned char*>(data);
        bytes_.insert(bytes_.end(), begin, begin + size);
    }

    std::vector<unsigned char> bytes_;
};

// Submits packets to a queue and waits. Returns the return code of the wait; stores its status in `status`.
inline int run(const gaudi_device& where, const packets& what, std::uint32_t queue = 0,
               std::uint32_t* status = nullptr) {
    host_memory buffer(where, 4096 + what.size());
    std::copy(what.bytes().begin(), what.bytes().end(), buffer.bytes().begin());
    std::uint64_t sequence = 0;
    if (const int rc = where.submit(buffer.address, what.size(), queue, &sequence); rc != 0)
        return rc;
    std::uint32_t ignored = 0;
    auto* const seen = status != nullptr ? status : &ignored;
    int rc;
    do
        rc = hlthunk_wait_for_cs(where.fd, sequence, 5000000, seen);
    while (rc == 0 && *seen == HL_WAIT_CS_STATUS_BUSY);
    return rc;
}

// The same on gen1, which runs only command buffers that the driver allocated.
inline int run_on_gen1(const gaudi_device& where, const packets& what, std::uint32_t queue = 0) {
    std::uint64_t handle = 0, sequence = 0;
    if (const int rc = hlthunk_request_command_buffer(where.fd, 4096, &handle); rc != 0)
        return rc;
    void* view =
        ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, where.fd, static_cast<off_t>(handle));
    EXPECT_NE(view, MAP_FAILED);
    std::memcpy(view, what.bytes().data(), what.size());
    std::uint32_t status = HL_WAIT_CS_STATUS_BUSY;
    int rc = where.submit(handle, what.size(), queue, &sequence, 0);
    while (rc == 0 && status == HL_WAIT_CS_STATUS_BUSY)
        rc = hlthunk_wait_for_cs(where.fd, sequence, 5000000, &status);
    ::munmap(view, 4096);
    hlthunk_destroy_command_buffer(where.fd, handle);
    return rc;
}

inline int copy(const gaudi_device& where, std::uint64_t source, std::uint64_t destination,
                std::uint32_t size, std::uint32_t queue = 0) {
    packets what;
    what.lin_dma(source, destination, size);
    return run(where, what, queue);
}

} // namespace testing_support
