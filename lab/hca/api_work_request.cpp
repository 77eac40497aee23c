// SPDX-License-Identifier: BSD-3-Clause
// Posting with ibv_wr_*: the program builds requests between ibv_wr_start() and ibv_wr_complete().
#include "lab/hca/api_post.hpp"
#include "lab/hca/exported.hpp"

#include <cstring>

namespace lab::hca {
namespace {

ibv_send_wr& begin(ibv_qp_ex* handle, ibv_wr_opcode opcode) {
    auto& pair = queue_pair::of(handle);
    pair.built.emplace_back();
    auto& wr = pair.built.back().wr;
    wr = {};
    wr.wr_id = handle->wr_id;
    wr.send_flags = handle->wr_flags;
    wr.opcode = opcode;
    return wr;
}

built_request* current(ibv_qp_ex* handle) {
    auto& pair = queue_pair::of(handle);
    if (pair.built.empty()) {
        pair.build_error = EINVAL;
        return nullptr;
    }
    return &pair.built.back();
}

void rdma(ibv_send_wr& wr, std::uint32_t key, std::uint64_t address) {
    wr.wr.rdma.rkey = key;
    wr.wr.rdma.remote_addr = address;
}

void start(ibv_qp_ex* handle) {
    auto& pair = queue_pair::of(handle);
    pair.building.lock();
    pair.built.clear();
    pair.build_error = 0;
}

int complete(ibv_qp_ex* handle) {
    auto& pair = queue_pair::of(handle);
    int error = pair.build_error;
    if (error == 0 && !pair.built.empty()) {
        for (std::size_t i = 0; i < pair.built.size(); ++i) {
            auto& request = pair.built[i];
            if ((request.wr.send_flags & IBV_SEND_INLINE) != 0)
                request.entries.assign(1, {reinterpret_cast<std::uint64_t>(request.inlined.data()),
                                           static_cast<std::uint32_t>(request.inlined.size()), 0});
            request.wr.sg_list = request.entries.data();
            request.wr.num_sge = static_cast<int>(request.entries.size());
            request.wr.next = i + 1 < pair.built.size() ? &pair.built[i + 1].wr : nullptr;
        }
        ibv_send_wr* bad = nullptr;
        error = watched(
            "ibv_wr_complete", [&] { return post_sends(pair, &pair.built[0].wr, &bad, takes::all_or_none); },
            [&] { return described(pair.handle()->qp_num, &pair.built[0].wr); });
    }
    pair.built.clear();
    pair.building.unlock();
    return error;
}

void abort(ibv_qp_ex* handle) {
    auto& pair = queue_pair::of(handle);
    pair.built.clear();
    pair.building.unlock();
}

void set_inline(ibv_qp_ex* handle, void* address, std::size_t length) {
    if (auto* request = current(handle); request != nullptr) {
        const auto* bytes = static_cast<const std::byte*>(address);
        request->inlined.assign(bytes, bytes + length);
        request->wr.send_flags |= IBV_SEND_INLINE;
    }
}

void set_inline_list(ibv_qp_ex* handle, std::size_t count, const ibv_data_buf* list) {
    if (auto* request = current(handle); request != nullptr) {
        request->inlined.clear();
        for (std::size_t i = 0; i < count; ++i) {
            const auto* bytes = static_cast<const std::byte*>(list[i].addr);
            request->inlined.insert(request->inlined.end(), bytes, bytes + list[i].length);
        }
        request->wr.send_flags |= IBV_SEND_INLINE;
    }
}

void set_entry(ibv_qp_ex* handle, std::uint32_t key, std::uint64_t address, std::uint32_t length) {
    if (auto* request = current(handle); request != nullptr)
        request->entries.assign(1, {address, length, key});
}

void set_entries(ibv_qp_ex* handle, std::size_t count, const ibv_sge* list) {
    if (auto* request = current(handle); request != nullptr)
        request->entries.assign(list, list + count);
}

// Operations that the device does not support make ibv_wr_complete() fail.
void unsupported(ibv_qp_ex* handle) {
    queue_pair::of(handle).build_error = EOPNOTSUPP;
}

} // namespace

void fill_work_request_functions(ibv_qp_ex& qp) {
    qp.wr_start = start;
    qp.wr_complete = complete;
    qp.wr_abort = abort;
    qp.wr_send = [](ibv_qp_ex* handle) { begin(handle, IBV_WR_SEND); };
    qp.wr_send_imm = [](ibv_qp_ex* handle, __be32 immediate) {
        begin(handle, IBV_WR_SEND_WITH_IMM).imm_data = immediate;
    };
    qp.wr_rdma_write = [](ibv_qp_ex* handle, std::uint32_t key, std::uint64_t address) {
        rdma(begin(handle, IBV_WR_RDMA_WRITE), key, address);
    };
    qp.wr_rdma_write_imm = [](ibv_qp_ex* handle, std::uint32_t key, std::uint64_t address, __be32 immediate) {
        auto& wr = begin(handle, IBV_WR_RDMA_WRITE_WITH_IMM);
        rdma(wr, key, address);
        wr.imm_data = immediate;
    };
    qp.wr_rdma_read = [](ibv_qp_ex* handle, std::uint32_t key, std::uint64_t address) {
        rdma(begin(handle, IBV_WR_RDMA_READ), key, address);
    };
    qp.wr_atomic_fetch_add = [](ibv_qp_ex* handle, std::uint32_t key, std::uint64_t address,
                                std::uint64_t add) {
        begin(handle, IBV_WR_ATOMIC_FETCH_AND_ADD).wr.atomic = {address, add, 0, key};
    };
    qp.wr_atomic_cmp_swp = [](ibv_qp_ex* handle, std::uint32_t key, std::uint64_t address,
                              std::uint64_t compare, std::uint64_t swap) {
        begin(handle, IBV_WR_ATOMIC_CMP_AND_SWP).wr.atomic = {address, compare, swap, key};
    };
    qp.wr_set_ud_addr = [](ibv_qp_ex* handle, ibv_ah* ah, std::uint32_t number, std::uint32_t qkey) {
        if (auto* request = current(handle); request != nullptr)
            request->wr.wr.ud = {ah, number, qkey};
    };
    qp.wr_set_inline_data = set_inline;
    qp.wr_set_inline_data_list = set_inline_list;
    qp.wr_set_sge = set_entry;
    qp.wr_set_sge_list = set_entries;
    qp.wr_bind_mw = [](ibv_qp_ex* handle, ibv_mw*, std::uint32_t, const ibv_mw_bind_info*) {
        unsupported(handle);
    };
    qp.wr_local_inv = [](ibv_qp_ex* handle, std::uint32_t) { unsupported(handle); };
    qp.wr_send_inv = [](ibv_qp_ex* handle, std::uint32_t) { unsupported(handle); };
    qp.wr_send_tso = [](ibv_qp_ex* handle, void*, std::uint16_t, std::uint16_t) { unsupported(handle); };
    qp.wr_set_xrc_srqn = [](ibv_qp_ex* handle, std::uint32_t) { unsupported(handle); };
    qp.wr_atomic_write = [](ibv_qp_ex* handle, std::uint32_t, std::uint64_t, const void*) {
        unsupported(handle);
    };
}

} // namespace lab::hca
