// SPDX-License-Identifier: BSD-3-Clause
#include <gaudi/version.hpp>

namespace gaudi {

std::string_view version() {
    return GAUDI_DIRECT_VERSION;
}

} // namespace gaudi
