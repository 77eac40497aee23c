// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "tests/ipc/owner.hpp"
#include "tests/support/test_lab.hpp"

namespace testing_support {

class ipc_lab : public test_lab {
protected:
    ipc_lab() { ::setenv("GAUDI_DIRECT_VERBS", LAB_VHCA, 1); }
};

using ipc_test = ipc_fixture<ipc_lab>;

} // namespace testing_support
