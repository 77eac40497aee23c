// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "src/os/dynamic_library.hpp"

#include <string_view>
#include <type_traits>

namespace gaudi {

// Fills the members of a function table from a library and records which functions it lacks.
class symbol_loader {
public:
    explicit symbol_loader(const dynamic_library& from) : from_(from) {}

    template <typename Function>
    void take(Function*& target, const char* name, std::string_view need) {
        target = reinterpret_cast<Function*>(from_.symbol(name));
        if (target == nullptr)
            (need == "required" ? lacking : missing).emplace_back(name);
    }

    std::vector<std::string> lacking; // required
    std::vector<std::string> missing; // optional

private:
    const dynamic_library& from_;
};

} // namespace gaudi
