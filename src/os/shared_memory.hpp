// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "src/os/mapping.hpp"
#include "src/os/unique_fd.hpp"

namespace gaudi {

// Memory that another process maps from the descriptor it is sent. It cannot shrink: who maps it need not
// fear the other side.
class shared_memory {
public:
    shared_memory() = default;
    static result<shared_memory> make(const char* name, std::size_t size);
    // Somebody else's. errc::handle_invalid where it is smaller or might become so.
    static result<shared_memory> of(unique_fd descriptor, std::size_t size);

    [[nodiscard]] std::byte* data() const { return memory_.bytes().data(); }
    [[nodiscard]] std::span<std::byte> bytes() const { return memory_.bytes(); }
    [[nodiscard]] int descriptor() const { return descriptor_.get(); }
    // The mapping needs none.
    void drop_descriptor() { descriptor_.reset(); }

private:
    unique_fd descriptor_;
    mapping memory_;
};

} // namespace gaudi
