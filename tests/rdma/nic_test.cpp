// SPDX-License-Identifier: BSD-3-Clause
// Which NIC is chosen, and which are never opened.
#include "tests/rdma/rdma_test.hpp"

#include <algorithm>
#include <filesystem>
#include <infiniband/verbs.h>

namespace {

using namespace testing_support;

// A Gaudi server: the Gaudi's own ports are the NIC nearest to it.
class gaudis_own_ports : public rdma_test {
protected:
    void SetUp() override {
        describe("gaudis = 2\nhcas = 3\n[hca 0]\nof_gaudi = 0\n[hca 2]\nof_gaudi = 1\n");
    }
    // How often a process has tried to open them.
    [[nodiscard]] std::uintmax_t opens(const char* name) const {
        std::error_code none;
        const auto count = std::filesystem::file_size(lab() / (std::string(name) + ".opens"), none);
        return none ? 0 : count;
    }
};

TEST_F(gaudis_own_ports, are_listed_and_never_opened) {
    const auto near = expect(list_devices()).front();
    const auto nics = expect(list_nics(near));
    ASSERT_EQ(nics.size(), 3U);
    EXPECT_EQ(nics[0].name, "vhca1");
    EXPECT_TRUE(nics[0].moves_device_memory());
    for (const auto* name : {"hbl_0", "hbl_1"}) {
        const auto own =
            std::find_if(nics.begin(), nics.end(), [&](const auto& each) { return each.name == name; });
        ASSERT_NE(own, nics.end()) << name;
        EXPECT_TRUE(own->of_gaudi);
        EXPECT_FALSE(own->active);
        EXPECT_FALSE(own->moves_device_memory());
        EXPECT_EQ(own->state, "not opened: the ports of a Gaudi");
    }
    left.nic = expect(open_nic({.near_to = near, .needs_dmabuf = true}));
    EXPECT_EQ(left.nic->info().name, "vhca1");
    const auto refused = open_nic({.name = "hbl_0"});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), errc::nic_of_gaudi);
    EXPECT_EQ(refused.error().message(),
              "a Gaudi's own ports are not opened (unsupported): hbl_0, 0000:19:00.0; "
              "name another NIC: opening them would take them away from HCCL");
    EXPECT_EQ(opens("hbl_0"), 0U);
    EXPECT_EQ(opens("hbl_1"), 0U);
}

TEST_F(gaudis_own_ports, alone_are_no_nic) {
    describe("gaudis = 1\nhcas = 1\n[hca 0]\nof_gaudi = 0\n");
    EXPECT_EQ(open_nic().error().code(), errc::no_nic);
    EXPECT_EQ(opens("hbl_0"), 0U);
}

using nic_choice_test = rdma_test;

// As in a container to which only some NICs were passed.
TEST_F(nic_choice_test, passes_over_nics_that_cannot_be_opened) {
    describe("gaudis = 1\nhcas = 2\n[hca 0]\nhidden = yes\nnuma_node = 0\n[hca 1]\nnuma_node = 1\n");
    const auto near = expect(list_devices()).front();
    const auto nics = expect(list_nics(near));
    const auto hidden =
        std::find_if(nics.begin(), nics.end(), [](const auto& each) { return each.name == "vhca0"; });
    ASSERT_NE(hidden, nics.end());
    EXPECT_EQ(hidden->state, "cannot be opened: No such file or directory");
    EXPECT_FALSE(hidden->moves_device_memory());
    left.nic = expect(open_nic({.near_to = near, .needs_dmabuf = true}));
    EXPECT_EQ(left.nic->info().name, "vhca1");
    const auto refused = open_nic({.name = "vhca0"});
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().message().find("No such file or directory"), std::string::npos)
        << refused.error().message();
}

// Processes with many workers exhaust a NIC's contexts.
TEST_F(nic_choice_test, names_a_nic_without_a_context_left) {
    describe("gaudis = 1\nhcas = 1\nmax_contexts = 1\n");
    int count = 0;
    auto** const all = ibv_get_device_list(&count);
    ibv_context* const other = ibv_open_device(all[0]);
    ASSERT_NE(other, nullptr);
    const auto refused = open_nic();
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().message().find("Cannot allocate memory"), std::string::npos)
        << refused.error().message();
    EXPECT_EQ(ibv_close_device(other), 0);
    ibv_free_device_list(all);
    left.nic = expect(open_nic());
}

// The lab's ports behave as those of the vendor's driver: this is what opening them would do.
TEST_F(gaudis_own_ports, have_one_user_context_and_many_ports) {
    int count = 0;
    auto* const all = ibv_get_device_list(&count);
    ASSERT_EQ(count, 3);
    auto* const ours = std::find_if(all, all + count, [](ibv_device* each) {
        return std::string_view(ibv_get_device_name(each)) == "hbl_0";
    });
    ASSERT_NE(ours, all + count);
    auto* const first = ibv_open_device(*ours);
    ASSERT_NE(first, nullptr);
    ibv_device_attr attributes{};
    ASSERT_EQ(ibv_query_device(first, &attributes), 0);
    EXPECT_EQ(attributes.phys_port_cnt, 24);
    EXPECT_EQ(attributes.vendor_id, 0x1da3U);
    errno = 0;
    EXPECT_EQ(ibv_open_device(*ours), nullptr);
    EXPECT_EQ(errno, EBUSY);
    ibv_close_device(first);
    auto* const again = ibv_open_device(*ours);
    EXPECT_NE(again, nullptr) << "the first user has closed it";
    ibv_close_device(again);
    ibv_free_device_list(all);
    EXPECT_EQ(opens("hbl_0"), 3U);
}

} // namespace
