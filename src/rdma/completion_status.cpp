// SPDX-License-Identifier: BSD-3-Clause
#include "src/rdma/completion_status.hpp"

#include <array>
#include <fmt/format.h>
#include <string_view>

namespace gaudi {
namespace {

const char* explanation_of(ibv_wc_status status) {
    switch (status) {
    case IBV_WC_LOC_LEN_ERR:
        return "a message did not fit";
    case IBV_WC_LOC_PROT_ERR:
        return "local memory is no longer registered, or not for this";
    case IBV_WC_WR_FLUSH_ERR:
        return "the queue pair was stopped";
    case IBV_WC_REM_INV_REQ_ERR:
        return "the peer's NIC found the request invalid";
    case IBV_WC_REM_OP_ERR:
        return "the peer's NIC could not carry it out";
    case IBV_WC_RETRY_EXC_ERR:
        return "its NIC does not answer: it ended, or no path leads there (subnet, GID type, MTU, firewall "
               "on UDP 4791, port down)";
    case IBV_WC_LOC_QP_OP_ERR:
        return "the NIC here could not carry it out: the port may be down or have lost its address";
    case IBV_WC_RNR_RETRY_EXC_ERR:
        return "the peer posts no receive";
    default: // the name of the status explains it
        return nullptr;
    }
}

} // namespace

std::string name_of(ibv_wc_status status) {
    // Indexed by status number; the numbers are part of libibverbs' ABI.
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

error failed_completion(ibv_wc_status status, const std::string& peer) {
    // A NIC cannot tell a peer that ended from one that no packet reaches: both exhaust the retries.
    const auto code = status == IBV_WC_RETRY_EXC_ERR    ? errc::peer_gone
                      : status == IBV_WC_REM_ACCESS_ERR ? errc::remote_access
                                                        : errc::connection_broken;
    const auto* explanation = explanation_of(status);
    return {code, fmt::format("{} from {}{}{}", name_of(status), peer, explanation != nullptr ? ": " : "",
                              explanation != nullptr ? explanation : "")};
}

} // namespace gaudi
