// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/error.hpp>

#include <memory>
#include <span>
#include <string>
#include <vector>

namespace gaudi {

// A library opened at run time. Functions taken from it hold a share in it, so that it outlives every handle.
class dynamic_library {
public:
    // Opens the first candidate that loads. `tried` receives a line for each that was looked at.
    static result<std::shared_ptr<dynamic_library>> open_first(std::span<const std::string> candidates,
                                                               std::vector<std::string>& tried);
    ~dynamic_library();
    dynamic_library(const dynamic_library&) = delete;
    dynamic_library& operator=(const dynamic_library&) = delete;

    // nullptr where it has no such symbol.
    [[nodiscard]] void* symbol(const char* name) const;
    // Where it was loaded from.
    [[nodiscard]] std::string path() const;

private:
    explicit dynamic_library(void* handle) : handle_(handle) {}

    void* handle_;
};

} // namespace gaudi
