// SPDX-License-Identifier: BSD-3-Clause
#include "lab/hca/qp_states.hpp"

namespace lab::hca {
namespace {

struct step {
    ibv_qp_state from, to;
    struct attributes {
        int required, optional;
    } rc, uc, ud;
};

constexpr int none = 0;
constexpr int init = IBV_QP_PKEY_INDEX | IBV_QP_PORT;
constexpr int path = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
constexpr int change_path = IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX;
constexpr int running = IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PATH_MIG_STATE;
constexpr int datagram = IBV_QP_CUR_STATE | IBV_QP_QKEY;
constexpr int drained =
    IBV_QP_AV | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PATH_MIG_STATE;

constexpr step table[] = {
    {IBV_QPS_RESET,
     IBV_QPS_INIT,
     {init | IBV_QP_ACCESS_FLAGS, none},
     {init | IBV_QP_ACCESS_FLAGS, none},
     {init | IBV_QP_QKEY, none}},
    {IBV_QPS_INIT,
     IBV_QPS_INIT,
     {none, init | IBV_QP_ACCESS_FLAGS},
     {none, init | IBV_QP_ACCESS_FLAGS},
     {none, init | IBV_QP_QKEY}},
    {IBV_QPS_INIT,
     IBV_QPS_RTR,
     {path | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER, change_path},
     {path, change_path},
     {none, IBV_QP_PKEY_INDEX | IBV_QP_QKEY}},
    {IBV_QPS_RTR,
     IBV_QPS_RTS,
     {IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
      running | IBV_QP_MIN_RNR_TIMER},
     {IBV_QP_SQ_PSN, running},
     {IBV_QP_SQ_PSN, datagram}},
    {IBV_QPS_RTS, IBV_QPS_RTS, {none, running | IBV_QP_MIN_RNR_TIMER}, {none, running}, {none, datagram}},
    {IBV_QPS_RTS,
     IBV_QPS_SQD,
     {none, IBV_QP_EN_SQD_ASYNC_NOTIFY},
     {none, IBV_QP_EN_SQD_ASYNC_NOTIFY},
     {none, IBV_QP_EN_SQD_ASYNC_NOTIFY}},
    {IBV_QPS_SQD, IBV_QPS_RTS, {none, running | IBV_QP_MIN_RNR_TIMER}, {none, running}, {none, datagram}},
    {IBV_QPS_SQD,
     IBV_QPS_SQD,
     {none, drained | IBV_QP_PORT | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER},
     {none, drained},
     {none, IBV_QP_PKEY_INDEX | IBV_QP_QKEY}},
    {IBV_QPS_SQE,
     IBV_QPS_RTS,
     {none, none},
     {none, IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS},
     {none, datagram}},
};

} // namespace

bool may_change(ibv_qp_type type, ibv_qp_state from, ibv_qp_state to, int mask) {
    const int given = mask & ~IBV_QP_STATE;
    if (from == IBV_QPS_RESET && to == IBV_QPS_ERR)
        return false;
    if (to == IBV_QPS_RESET || to == IBV_QPS_ERR)
        return (given & ~IBV_QP_CUR_STATE) == 0;
    for (const auto& step : table) {
        if (step.from != from || step.to != to)
            continue;
        const auto& needs = type == IBV_QPT_RC ? step.rc : type == IBV_QPT_UC ? step.uc : step.ud;
        if (type == IBV_QPT_RC && from == IBV_QPS_SQE)
            return false; // a reliable queue pair never reaches SQE
        return (given & needs.required) == needs.required &&
               (given & ~(needs.required | needs.optional)) == 0;
    }
    return false;
}

} // namespace lab::hca
