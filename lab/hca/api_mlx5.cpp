// SPDX-License-Identifier: BSD-3-Clause
// Of libmlx5 as much as decides about scatter to CQE: programs that receive into device memory forbid it for
// their queue pairs.
#include "lab/hca/devices.hpp"
#include "lab/hca/exported.hpp"

#include <infiniband/mlx5dv.h>

// A plain query: no fault script names it.
extern "C" [[gnu::visibility("default")]] bool mlx5dv_is_supported(ibv_device* device) {
    return reinterpret_cast<lab::hca::device*>(device)->description.scatter_to_cqe;
}

VERB(ibv_qp*, mlx5dv_create_qp,
     (ibv_context * handle, ibv_qp_init_attr_ex* asked, mlx5dv_qp_init_attr* provider),
     (handle, asked, provider), {
         constexpr std::uint64_t known = MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS;
         constexpr std::uint32_t flags =
             MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE | MLX5DV_QP_CREATE_ALLOW_SCATTER_TO_CQE;
         if (provider != nullptr &&
             ((provider->comp_mask & ~known) != 0 || (provider->create_flags & ~flags) != 0))
             return fails(EOPNOTSUPP);
         auto* const created = ibv_create_qp_ex(handle, asked);
         if (created != nullptr && provider != nullptr &&
             (provider->create_flags & MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE) != 0)
             queue_pair::of(created).qp->scatters = 0;
         return created;
     })
