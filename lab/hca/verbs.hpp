// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// The verbs of libibverbs as its header declares them, without the macros that would replace the functions
// defined here.
#include <infiniband/verbs.h>

#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova
