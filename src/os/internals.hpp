// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>
#include <utility>

namespace gaudi {

// The library's access to its public classes, which befriend this: what an object wraps, and constructors
// that take private types.
struct internals {
    template <typename T>
    [[nodiscard]] static decltype(auto) core(const T& object) {
        return object.core();
    }
    template <typename T, typename... Parts>
    [[nodiscard]] static T wrap(Parts&&... parts) {
        return T(std::forward<Parts>(parts)...);
    }
    template <typename T, typename... Parts>
    [[nodiscard]] static std::shared_ptr<T> wrap_shared(Parts&&... parts) {
        return std::shared_ptr<T>(new T(std::forward<Parts>(parts)...));
    }
    template <typename Region>
    [[nodiscard]] static const auto& registration(const Region& region) {
        return region.registration_;
    }
    template <typename Region>
    [[nodiscard]] static const auto& staging(const Region& region) {
        return region.source_;
    }
    template <typename Imported>
    [[nodiscard]] static const auto& lease(const Imported& memory) {
        return memory.lease_;
    }
};

// What a public object wraps.
template <typename T>
[[nodiscard]] decltype(auto) core_of(const T& object) {
    return internals::core(object);
}

} // namespace gaudi
