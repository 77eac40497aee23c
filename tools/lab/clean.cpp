// SPDX-License-Identifier: BSD-3-Clause
#include "tools/lab/lab.hpp"

namespace tools {

int lab_clean(const std::string& name) {
    const auto cleaned = lab::clean(name);
    return cleaned ? static_cast<int>(ok) : complain(cleaned.error(), failed);
}

} // namespace tools
