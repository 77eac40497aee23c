// SPDX-License-Identifier: BSD-3-Clause
// The kinds of places that tests copy between. Each reads and writes its bytes by another path than the
// copier.
#pragma once

#include <gaudi/gaudi.hpp>

#include "tests/ipc/owner.hpp"

#include <unistd.h>

namespace testing_support {

class copy_place {
public:
    virtual ~copy_place() = default;
    [[nodiscard]] virtual place part(std::uint64_t offset, std::uint64_t length) = 0;
    virtual void fill(const std::vector<std::byte>& with) = 0;
    [[nodiscard]] virtual std::vector<std::byte> bytes() = 0;
};

class host_place : public copy_place {
public:
    explicit host_place(std::size_t size) : memory_(size) {}
    place part(std::uint64_t offset, std::uint64_t length) override {
        return std::span(memory_).subspan(offset, length);
    }
    void fill(const std::vector<std::byte>& with) override { memory_ = with; }
    std::vector<std::byte> bytes() override { return memory_; }

private:
    std::vector<std::byte> memory_;
};

// Device memory of this process.
class device_place : public copy_place {
public:
    device_place(std::shared_ptr<device> of, std::size_t size)
        : device_(std::move(of)), memory_(expect(device_->heap().allocate(size))) {}
    device_place(unsigned index, std::size_t size)
        : device_place(expect(open_device(by_index{index})), size) {}
    place part(std::uint64_t offset, std::uint64_t length) override {
        return {memory_.address() + offset, length};
    }
    void fill(const std::vector<std::byte>& with) override { write_bytes(*device_, memory_.address(), with); }
    std::vector<std::byte> bytes() override {
        std::vector<std::byte> seen(memory_.size());
        read_bytes(*device_, seen, memory_.address());
        return seen;
    }
    [[nodiscard]] device& opened_device() { return *device_; }
    [[nodiscard]] const device_buffer& memory() const { return memory_; }

private:
    std::shared_ptr<device> device_;
    device_buffer memory_;
};

// A DMA-BUF that is known only by its descriptor, as that of a GPU would be.
class foreign_place : public device_place {
public:
    foreign_place(std::shared_ptr<device> of, std::size_t size)
        : device_place(std::move(of), size),
          window_(expect(opened_device().export_memory(memory().address(), size))) {}
    ~foreign_place() override { ::close(window_.fd); }
    place part(std::uint64_t offset, std::uint64_t length) override {
        return dmabuf_export{window_.fd, window_.offset + offset, {}, length};
    }

private:
    dmabuf_export window_;
};

// Memory of another process, under a lease.
class leased_place : public copy_place {
public:
    leased_place(std::size_t size, const ipc_settings& settings = {}, unsigned index = 0)
        : owner_(index, settings), imported_(expect(import_memory(owner_.share(size, 1)))) {}
    place part(std::uint64_t offset, std::uint64_t length) override { return {imported_, offset, length}; }
    void fill(const std::vector<std::byte>& with) override {
        expect(expect(imported_.write(0, with)).wait());
    }
    std::vector<std::byte> bytes() override {
        std::vector<std::byte> seen(imported_.size());
        expect(expect(imported_.read(seen)).wait());
        return seen;
    }
    // The owner takes the memory back. Returns an errc + 1, or 0.
    std::uint64_t revoke() { return owner_.revoke(0); }

private:
    owner owner_;
    imported_buffer imported_;
};

} // namespace testing_support
