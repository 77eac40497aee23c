// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "src/os/mapping.hpp"
#include "src/os/unique_fd.hpp"

namespace gaudi {

// Memory that another process maps through the descriptor it is sent. It is sealed against shrinking, so that
// no process can make another one fault by truncating it.
class shared_memory {
public:
    shared_memory() = default;
    static result<shared_memory> make(const char* name, std::size_t size);
    // Maps another process's memory. errc::protocol_violated: it is smaller than `size`, or might shrink.
    static result<shared_memory> of(unique_fd descriptor, std::size_t size);

    [[nodiscard]] std::byte* data() const { return memory_.bytes().data(); }
    [[nodiscard]] std::span<std::byte> bytes() const { return memory_.bytes(); }
    [[nodiscard]] int descriptor() const { return descriptor_.get(); }
    // Closes the descriptor; the mapping stays.
    void drop_descriptor() { descriptor_.reset(); }

private:
    unique_fd descriptor_;
    mapping memory_;
};

} // namespace gaudi
