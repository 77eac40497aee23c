// SPDX-License-Identifier: BSD-3-Clause
// libibverbs loads libmlx5 itself when it finds such a NIC: it is asked here only where it is loaded already.
#include "src/rdma/mlx5.hpp"

#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <infiniband/mlx5dv.h>

namespace gaudi {
namespace {

struct mlx5_functions {
    decltype(&mlx5dv_is_supported) is_supported = nullptr;
    decltype(&mlx5dv_create_qp) create_qp = nullptr;
};

mlx5_functions find_functions(const verbs_api& api) {
    mlx5_functions found{api.mlx5dv_is_supported, api.mlx5dv_create_qp};
    if (found.is_supported != nullptr && found.create_qp != nullptr)
        return found;
    void* const loaded = ::dlopen("libmlx5.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (loaded == nullptr)
        return {};
    found.is_supported =
        reinterpret_cast<decltype(found.is_supported)>(::dlsym(loaded, "mlx5dv_is_supported"));
    found.create_qp = reinterpret_cast<decltype(found.create_qp)>(::dlsym(loaded, "mlx5dv_create_qp"));
    ::dlclose(loaded); // takes back this reference: libibverbs keeps its drivers
    return found.is_supported != nullptr && found.create_qp != nullptr ? found : mlx5_functions{};
}

} // namespace

ibv_qp* create_qp_without_scatter(const verbs_api& api, ibv_pd* domain, ibv_qp_init_attr& wanted) {
    auto* const context = domain->context;
    const auto mlx5 = find_functions(api);
    if (mlx5.create_qp == nullptr) {
        // Linked statically, perhaps: its setting is read for each queue pair. What the user set stays.
        if (std::strncmp(api.ibv_get_device_name(context->device), "mlx5", 4) == 0)
            ::setenv("MLX5_SCATTER_TO_CQE", "0", 0);
        return api.ibv_create_qp(domain, &wanted);
    }
    if (!mlx5.is_supported(context->device))
        return api.ibv_create_qp(domain, &wanted);
    ibv_qp_init_attr_ex extended{};
    extended.qp_context = wanted.qp_context;
    extended.send_cq = wanted.send_cq;
    extended.recv_cq = wanted.recv_cq;
    extended.srq = wanted.srq;
    extended.cap = wanted.cap;
    extended.qp_type = wanted.qp_type;
    extended.sq_sig_all = wanted.sq_sig_all;
    extended.comp_mask = IBV_QP_INIT_ATTR_PD;
    extended.pd = domain;
    mlx5dv_qp_init_attr provider{};
    provider.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS;
    provider.create_flags = MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE;
    auto* const created = mlx5.create_qp(context, &extended, &provider);
    wanted.cap = extended.cap;
    return created;
}

} // namespace gaudi
