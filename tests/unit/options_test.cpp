// SPDX-License-Identifier: BSD-3-Clause
// The structures of options: each takes any one member by name, without a warning of -Wextra, and keeps the
// defaults of the others.
#include <gaudi/gaudi.hpp>

#include <gtest/gtest.h>

namespace {

using namespace gaudi;

TEST(options, each_structure_takes_one_member_by_name) {
    constexpr connection_options connecting{.depth = 7};
    EXPECT_EQ(connecting.depth, 7U);
    EXPECT_EQ(connecting.operations, connection_options().operations);
    const nic_choice nic{.needs_dmabuf = true};
    EXPECT_TRUE(nic.needs_dmabuf && nic.name.empty() && !nic.gid_index && !nic.near_to);
    const nic_choice named{.name = "mlx5_0"};
    EXPECT_EQ(named.port, 0U);
    constexpr registration_limits limits{.regions = 3};
    EXPECT_EQ(limits.bytes, registration_limits().bytes);
    constexpr copy_options engines{.batch = 5};
    EXPECT_EQ(engines.queues, copy_options().queues);
    constexpr copy_hints hints{.queues = 1};
    EXPECT_EQ(hints.stripe_bytes, 0U);
    constexpr copier_options copies{.nic_max = 4096};
    EXPECT_TRUE(copies.keep && copies.engines.queues == copy_options().queues);
    const copy_policy policy{.zero_copy = true};
    EXPECT_TRUE(!policy.only && policy.hints.batch == 0);
    const import_options importing{.only = copy_path::staged};
    EXPECT_FALSE(importing.zero_copy);
    const ipc_settings sharing{.imports = 9};
    EXPECT_TRUE(sharing.give == ipc_give::context && sharing.allow.empty());
}

} // namespace
