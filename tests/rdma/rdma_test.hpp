// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "tests/rdma/two_sides.hpp"
#include "tests/support/test_lab.hpp"

#include <cstdlib>
#include <numeric>

namespace testing_support {

// A lab with a virtual NIC.
class nic_lab : public test_lab {
protected:
    nic_lab() { ::setenv("GAUDI_DIRECT_VERBS", LAB_VHCA, 1); }
    static std::shared_ptr<device> device_for_test(unsigned number) {
        return expect(open_device(by_index{number}));
    }
    static std::shared_ptr<nic> nic_for_test() { return expect(open_nic()); }
};

using rdma_test = two_sides<nic_lab>;

} // namespace testing_support
