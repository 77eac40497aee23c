// SPDX-License-Identifier: BSD-3-Clause
#include "lab/hca/qp_states.hpp"

#include <gtest/gtest.h>

namespace {

// Omits each required attribute in turn, and adds each attribute that is not allowed.
TEST(qp_states, required_and_foreign_attributes) {
    using lab::hca::may_change;
    struct row {
        ibv_qp_type type;
        ibv_qp_state from, to;
        int required;
    };
    const int path = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    const row rows[] = {
        {IBV_QPT_RC, IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
        {IBV_QPT_UC, IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
        {IBV_QPT_UD, IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY},
        {IBV_QPT_RC, IBV_QPS_INIT, IBV_QPS_RTR, path | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER},
        {IBV_QPT_UC, IBV_QPS_INIT, IBV_QPS_RTR, path},
        {IBV_QPT_UD, IBV_QPS_INIT, IBV_QPS_RTR, 0},
        {IBV_QPT_RC, IBV_QPS_RTR, IBV_QPS_RTS,
         IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC},
        {IBV_QPT_UC, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_SQ_PSN},
        {IBV_QPT_UD, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_SQ_PSN},
    };
    for (const auto& [type, from, to, required] : rows) {
        EXPECT_TRUE(may_change(type, from, to, required | IBV_QP_STATE)) << type << from << to;
        for (int bit = 1; bit <= IBV_QP_DEST_QPN; bit <<= 1)
            if ((required & bit) != 0) {
                EXPECT_FALSE(may_change(type, from, to, (required & ~bit) | IBV_QP_STATE))
                    << type << from << to << bit;
            }
    }
    EXPECT_FALSE(may_change(IBV_QPT_UD, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QP_STATE | IBV_QP_DEST_QPN));
    EXPECT_FALSE(
        may_change(IBV_QPT_UC, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT));
    EXPECT_FALSE(may_change(IBV_QPT_RC, IBV_QPS_RTS, IBV_QPS_RTR, IBV_QP_STATE | path));
    EXPECT_TRUE(may_change(IBV_QPT_RC, IBV_QPS_RTS, IBV_QPS_RTS, IBV_QP_ACCESS_FLAGS));
    EXPECT_FALSE(may_change(IBV_QPT_RC, IBV_QPS_SQE, IBV_QPS_RTS, IBV_QP_STATE));
    EXPECT_TRUE(may_change(IBV_QPT_UD, IBV_QPS_SQE, IBV_QPS_RTS, IBV_QP_STATE));
}

} // namespace
