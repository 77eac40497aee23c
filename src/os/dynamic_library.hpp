// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/error.hpp>

#include <memory>
#include <span>
#include <string>
#include <vector>

namespace gaudi {

// A library opened at run time. The table of functions loaded from it holds a shared pointer to it, so that
// the library outlives every handle.
class dynamic_library {
public:
    // Opens the first candidate that loads. `tried` receives one line for each candidate that was tried.
    static result<std::shared_ptr<dynamic_library>> open_first(std::span<const std::string> candidates,
                                                               std::vector<std::string>& tried);
    ~dynamic_library();
    dynamic_library(const dynamic_library&) = delete;
    dynamic_library& operator=(const dynamic_library&) = delete;

    // nullptr: the library has no such symbol.
    [[nodiscard]] void* symbol(const char* name) const;
    // The path that it was loaded from.
    [[nodiscard]] std::string path() const;

private:
    explicit dynamic_library(void* handle) : handle_(handle) {}

    void* handle_;
};

} // namespace gaudi
