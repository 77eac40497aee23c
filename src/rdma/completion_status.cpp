// SPDX-License-Identifier: BSD-3-Clause
#include "src/rdma/completion_status.hpp"

#include <array>
#include <fmt/format.h>
#include <string_view>

namespace gaudi {

std::string name_of(ibv_wc_status status) {
    // In the order of the numbers, which are the interface of libibverbs.
    constexpr std::array<std::string_view, 22> names{
        "SUCCESS",          "LOC_LEN_ERR",       "LOC_QP_OP_ERR",     "LOC_EEC_OP_ERR",
        "LOC_PROT_ERR",     "WR_FLUSH_ERR",      "MW_BIND_ERR",       "BAD_RESP_ERR",
        "LOC_ACCESS_ERR",   "REM_INV_REQ_ERR",   "REM_ACCESS_ERR",    "REM_OP_ERR",
        "RETRY_EXC_ERR",    "RNR_RETRY_EXC_ERR", "LOC_RDD_VIOL_ERR",  "REM_INV_RD_REQ_ERR",
        "REM_ABORT_ERR",    "INV_EECN_ERR",      "INV_EEC_STATE_ERR", "FATAL_ERR",
        "RESP_TIMEOUT_ERR", "GENERAL_ERR"};
    static_assert(IBV_WC_GENERAL_ERR + 1 == names.size());
    const auto number = static_cast<std::size_t>(status);
    return fmt::format("IBV_WC_{} ({})", number < names.size() ? names[number] : "unknown", number);
}

} // namespace gaudi
