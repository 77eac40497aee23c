// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/gaudi.hpp>

#include <filesystem>
#include <gtest/gtest.h>
#include <string>
#include <vector>

namespace testing_support {

// The fixture of the suites that run anywhere: in a lab that each test makes (the default), or with
// GAUDI_TESTS_ON=machine on the devices of this machine. There they use only devices that no process holds,
// keep them open until the run ends, because a driver may reset a device when its last user closes it, and
// are skipped, with the reason, where the machine lacks something. They know neither drivers nor faults.
class machine_test : public ::testing::Test {
protected:
    machine_test();
    ~machine_test() override;
    void TearDown() override;

    // What a test needs: for SetUp, which ends then if IsSkipped(). A lab has `better` devices, at least.
    void need(unsigned devices, unsigned nics = 0, unsigned better = 0);
    // The hardware cannot do what the test is about: skips it, or in a lab, which can do all, fails it.
    static void skip(const std::string& reason);
    static void skip(const gaudi::error& reason);

    // A device of the test by number; where there are fewer, numbers share devices.
    [[nodiscard]] std::shared_ptr<gaudi::device> device_for_test(unsigned number);
    // The same for another process: its index. This process closes it.
    [[nodiscard]] unsigned index_for_others(unsigned number);
    // For programs that open devices themselves: this process closes them all.
    static void close_devices();
    // One NIC serves both ends of a connection: two of a machine need not reach each other.
    [[nodiscard]] std::shared_ptr<gaudi::nic> nic_for_test();
    [[nodiscard]] static bool in_lab();
    // Its NICs that are no ports of a Gaudi, as UCX_NET_DEVICES names them.
    [[nodiscard]] std::string ucx_devices() const;

private:
    void make_lab(unsigned devices, unsigned nics);

    std::filesystem::path root_;
    std::vector<gaudi::device_info> devices_;
    std::size_t descriptors_ = 0;
};

// Where the programs and libraries of this build or installation are that tests use: lib/gaudi-direct.
[[nodiscard]] std::filesystem::path parts_folder();

} // namespace testing_support
