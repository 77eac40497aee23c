// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <utility>

namespace gaudi {

/// Owns a resource and closes it in the destructor. A default-constructed `Resource` means "none"; any other
/// converts to true and has `void close() noexcept`.
template <class Resource>
class unique_handle {
public:
    unique_handle() = default;
    /// Takes ownership.
    explicit unique_handle(Resource owned) : resource_(std::move(owned)) {}
    unique_handle(unique_handle&& other) noexcept : resource_(other.release()) {}
    unique_handle& operator=(unique_handle&& other) noexcept {
        unique_handle previous(std::exchange(resource_, other.release())); // closed after the exchange
        return *this;
    }
    ~unique_handle() {
        if (resource_)
            resource_.close();
    }

    explicit operator bool() const { return static_cast<bool>(resource_); }
    const Resource& operator*() const { return resource_; }
    const Resource* operator->() const { return &resource_; }
    /// Releases ownership: the caller closes the resource, or does not.
    [[nodiscard]] Resource release() noexcept { return std::exchange(resource_, Resource{}); }

private:
    Resource resource_{};
};

} // namespace gaudi
