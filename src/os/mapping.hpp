// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/error.hpp>
#include <gaudi/unique_handle.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace gaudi {

// Mapped memory with one owner, unmapped by the destructor.
class mapping {
public:
    mapping() = default;

    // Anonymous, zeroed, private. Children of fork do not inherit it: after copy-on-write the device would
    // see other pages than the parent.
    static result<mapping> anonymous(std::size_t size);
    static result<mapping> of_file(int fd, std::uint64_t offset, std::size_t size);

    [[nodiscard]] std::span<std::byte> bytes() const { return mapped_->bytes; }

private:
    struct mapped_range {
        std::span<std::byte> bytes;
        int owner = 0; // the only process that has it mapped, because children do not inherit it; 0: any
        explicit operator bool() const { return !bytes.empty(); }
        void close() noexcept;
    };
    explicit mapping(mapped_range mapped) : mapped_(mapped) {}

    unique_handle<mapped_range> mapped_;
};

} // namespace gaudi
