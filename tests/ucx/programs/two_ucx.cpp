// SPDX-License-Identifier: BSD-3-Clause
// Two UCX in one process, both with the plugin, as with MPI and NIXL. Arguments: the two libucp.
#include "tests/ucx/in_process/opened_ucx.hpp"

#include <initializer_list>

int main(int, char** argv) {
    opened_ucx first(argv[1]), second(argv[2]);
    for (auto* each : {&first, &second}) {
        std::printf("UCX %s\n", each->function<decltype(ucp_get_version_string)>("ucp_get_version_string")());
        each->open();
    }
    first.allocate();
    second.allocate();
    first.expect_gaudi(second.address);
    second.expect_gaudi(first.address);
    first.close();
    second.close();
    std::printf("both right\n");
}
