// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/hca/verbs.hpp"

namespace lab::hca {

// Whether a queue pair of this type may go from one state to the other with these attributes, by the table of
// the specification: all required ones are given, and none beyond the optional ones.
[[nodiscard]] bool may_change(ibv_qp_type type, ibv_qp_state from, ibv_qp_state to, int mask);

} // namespace lab::hca
