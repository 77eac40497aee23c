// SPDX-License-Identifier: BSD-3-Clause
#include "src/os/machine_files.hpp"

#include <cstdlib>
#include <fstream>

namespace gaudi {

std::string machine_path(std::string_view absolute) {
    const char* root = std::getenv("GAUDI_DIRECT_FSROOT");
    return std::string(root != nullptr ? root : "").append(absolute);
}

std::optional<std::string> read_machine_file(std::string_view absolute) {
    std::ifstream file(machine_path(absolute));
    std::string line;
    if (!file || !(std::getline(file, line) || file.eof()))
        return std::nullopt;
    return line;
}

} // namespace gaudi
