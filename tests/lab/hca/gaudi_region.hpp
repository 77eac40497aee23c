// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "tests/lab/hca/verbs_node.hpp"
#include "tests/support/gaudi_device.hpp"
#include "tests/support/test_lab.hpp"

#include <optional>
#include <unistd.h>
#include <utility>
#include <vector>

namespace testing_support {

// A Gaudi whose memory is exported. register_it() registers it with a NIC; the iova is the device address.
class dmabuf_test : public test_lab {
protected:
    void SetUp() override { start("gaudis = 2\nhbm_pages = 4\n"); }
    void start(std::string_view description) {
        describe(description);
        gaudi.emplace();
        ASSERT_GE(gaudi->fd, 0);
        at = gaudi->memory(dram_page);
        ASSERT_NE(at, 0U);
        fd = gaudi->dmabuf(at, dram_page);
        ASSERT_GE(fd, 0);
    }
    void TearDown() override {
        stop();
        test_lab::TearDown();
    }
    void stop() {
        if (fd >= 0)
            ::close(std::exchange(fd, -1));
        gaudi.reset();
    }
    mr_handle register_it(const node& where, std::uint64_t offset = 0, std::size_t length = 1 << 20,
                          int access = all_access) const {
        return mr_handle(ibv_reg_dmabuf_mr(where.pd.get(), offset, length, at + offset, fd, access));
    }
    // Reads HBM through the device's DMA engine, without the NIC.
    std::vector<unsigned char> device_bytes(std::uint64_t offset, std::size_t length) {
        host_memory buffer(*gaudi, 65536);
        EXPECT_EQ(copy(*gaudi, at + offset, buffer.address, static_cast<std::uint32_t>(length), 4), 0);
        return {buffer.bytes().begin(), buffer.bytes().begin() + static_cast<std::ptrdiff_t>(length)};
    }

    std::optional<gaudi_device> gaudi;
    std::uint64_t at = 0;
    int fd = -1;
};

} // namespace testing_support
