// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace lab::synapse {

// The objects of one kind that a program knows by handle: the object's address, looked up before it is used.
template <typename T>
class handle_table {
public:
    [[nodiscard]] void* create() {
        auto object = std::make_shared<T>();
        void* const handle = object.get();
        const std::lock_guard guard(mutex_);
        objects_.push_back(std::move(object));
        return handle;
    }

    [[nodiscard]] std::shared_ptr<T> find(const void* handle) const {
        const std::lock_guard guard(mutex_);
        const auto place =
            std::ranges::find(objects_, handle, [](const auto& object) { return object.get(); });
        return place != objects_.end() ? *place : nullptr;
    }

    // The object, which the caller destroys without the mutex. Null: there is none of that handle.
    [[nodiscard]] std::shared_ptr<T> remove(const void* handle) {
        const std::lock_guard guard(mutex_);
        const auto place =
            std::ranges::find(objects_, handle, [](const auto& object) { return object.get(); });
        if (place == objects_.end())
            return nullptr;
        auto object = std::move(*place);
        objects_.erase(place);
        return object;
    }

    [[nodiscard]] std::vector<std::shared_ptr<T>> all() const {
        const std::lock_guard guard(mutex_);
        return objects_;
    }

    void clear() { objects_.clear(); }

private:
    mutable std::mutex mutex_;
    std::vector<std::shared_ptr<T>> objects_;
};

} // namespace lab::synapse
