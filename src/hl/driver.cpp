// SPDX-License-Identifier: BSD-3-Clause
#include <gaudi/device_info.hpp>

#include "src/os/machine_files.hpp"

#include <cstdio>
#include <filesystem>
#include <tuple>

namespace gaudi {

kernel_driver find_kernel_driver() {
    kernel_driver driver;
    // The vendor's module has a version; Linux's own has none.
    if (auto version = read_machine_file("/sys/module/habanalabs/version")) {
        driver.provided_by = kernel_driver::provider::vendor;
        driver.version = std::move(*version);
    } else if (std::error_code absent;
               std::filesystem::exists(machine_path("/sys/module/habanalabs"), absent))
        driver.provided_by = kernel_driver::provider::upstream;
    driver.kernel = read_machine_file("/proc/sys/kernel/osrelease").value_or("");
    if (std::sscanf(driver.kernel.c_str(), "%u.%u", &driver.kernel_major, &driver.kernel_minor) != 2)
        driver.kernel_major = driver.kernel_minor = 0;
    return driver;
}

bool kernel_driver::exports_whole_only() const {
    return provided_by == provider::upstream && kernel_major != 0 &&
           std::tuple(kernel_major, kernel_minor) < std::tuple(6U, 7U);
}

} // namespace gaudi
