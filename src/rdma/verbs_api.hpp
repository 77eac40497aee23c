// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/error.hpp>

#include "src/os/dynamic_library.hpp"

#include <infiniband/verbs.h>
#include <memory>
#include <string>
#include <vector>

struct mlx5dv_qp_init_attr; // of mlx5dv.h

// verbs.h defines macros of these names, which use symbols that are not linked.
#undef ibv_reg_mr
#undef ibv_query_port

// The functions of libibverbs that this library calls by symbol. What verbs.h defines inline goes through the
// context and needs no row here: poll_cq, req_notify_cq, post_send, post_recv. Columns: symbol, need,
// signature.
#define GAUDI_VERBS_SYMBOLS(X)                                                                               \
    X(ibv_get_device_list, required, ibv_device**(int*))                                                     \
    X(ibv_free_device_list, required, void(ibv_device**))                                                    \
    X(ibv_get_device_name, required, const char*(ibv_device*))                                               \
    X(ibv_open_device, required, ibv_context*(ibv_device*))                                                  \
    X(ibv_close_device, required, int(ibv_context*))                                                         \
    X(ibv_query_device, required, int(ibv_context*, ibv_device_attr*))                                       \
    X(ibv_query_port, required, int(ibv_context*, std::uint8_t, _compat_ibv_port_attr*))                     \
    X(ibv_query_gid, required, int(ibv_context*, std::uint8_t, int, ibv_gid*))                               \
    X(ibv_alloc_pd, required, ibv_pd*(ibv_context*))                                                         \
    X(ibv_dealloc_pd, required, int(ibv_pd*))                                                                \
    X(ibv_reg_mr, required, ibv_mr*(ibv_pd*, void*, std::size_t, int))                                       \
    X(ibv_dereg_mr, required, int(ibv_mr*))                                                                  \
    X(ibv_create_comp_channel, required, ibv_comp_channel*(ibv_context*))                                    \
    X(ibv_destroy_comp_channel, required, int(ibv_comp_channel*))                                            \
    X(ibv_create_cq, required, ibv_cq*(ibv_context*, int, void*, ibv_comp_channel*, int))                    \
    X(ibv_destroy_cq, required, int(ibv_cq*))                                                                \
    X(ibv_get_cq_event, required, int(ibv_comp_channel*, ibv_cq**, void**))                                  \
    X(ibv_ack_cq_events, required, void(ibv_cq*, unsigned))                                                  \
    X(ibv_create_qp, required, ibv_qp*(ibv_pd*, ibv_qp_init_attr*))                                          \
    X(ibv_modify_qp, required, int(ibv_qp*, ibv_qp_attr*, int))                                              \
    X(ibv_destroy_qp, required, int(ibv_qp*))                                                                \
    X(ibv_reg_dmabuf_mr, optional, ibv_mr*(ibv_pd*, std::uint64_t, std::size_t, std::uint64_t, int, int))    \
    X(mlx5dv_is_supported, optional, bool(ibv_device*))                                                      \
    X(mlx5dv_create_qp, optional, ibv_qp*(ibv_context*, ibv_qp_init_attr_ex*, mlx5dv_qp_init_attr*))         \
    X(_ibv_query_gid_ex, optional,                                                                           \
      int(ibv_context*, std::uint32_t, std::uint32_t, ibv_gid_entry*, std::uint32_t, std::size_t))

namespace gaudi {

// libibverbs as a table. An optional function that is missing is nullptr.
class verbs_api {
public:
    // Loads $GAUDI_DIRECT_VERBS if it is set, and nothing else then; otherwise libibverbs.so.1 from the
    // loader's search path.
    static result<std::shared_ptr<const verbs_api>> load();

#define GAUDI_MEMBER(name, need, signature) std::add_pointer_t<signature> name = nullptr;
    GAUDI_VERBS_SYMBOLS(GAUDI_MEMBER)
#undef GAUDI_MEMBER

    [[nodiscard]] const std::string& path() const {
        return path_;
    }

private:
    std::shared_ptr<dynamic_library> library_;
    std::string path_;
};

// Owners of verbs objects. Each deleter carries the table, so that the library outlives the handle.
template <auto Destroy>
struct verbs_deleter {
    std::shared_ptr<const verbs_api> api;

    template <typename Object>
    void operator()(Object* object) const {
        // A call that fails has destroyed nothing: all that can be done is one more try.
        const auto destroy = (*api).*Destroy;
        if (destroy(object) != 0)
            (void)destroy(object);
    }
};
template <typename Object, auto Destroy>
using verbs_handle = std::unique_ptr<Object, verbs_deleter<Destroy>>;

using context_handle = verbs_handle<ibv_context, &verbs_api::ibv_close_device>;
using pd_handle = verbs_handle<ibv_pd, &verbs_api::ibv_dealloc_pd>;
using mr_handle = verbs_handle<ibv_mr, &verbs_api::ibv_dereg_mr>;
using channel_handle = verbs_handle<ibv_comp_channel, &verbs_api::ibv_destroy_comp_channel>;
using cq_handle = verbs_handle<ibv_cq, &verbs_api::ibv_destroy_cq>;
using qp_handle = verbs_handle<ibv_qp, &verbs_api::ibv_destroy_qp>;

} // namespace gaudi
