// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// The verbs of libibverbs as its header states them, without the macros that stand in front of the functions
// that we define.
#include <infiniband/verbs.h>

#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova
