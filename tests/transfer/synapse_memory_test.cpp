// SPDX-License-Identifier: BSD-3-Clause
// Memory that SynapseAI allocated, in a process that SynapseAI shares with this library: copies by every
// path, and keys for peers.
#include "src/os/internals.hpp"
#include "tests/rdma/peer_access.hpp"
#include "tests/support/fake_synapse.hpp"
#include "tests/transfer/ends.hpp"

namespace {

using namespace testing_support;

class synapse_memory_test : public ipc_test {
protected:
    void SetUp() override {
        describe("gaudis = 2\nhcas = 1");
        synapse.emplace(FAKE_SYNAPSE);
        shared = expect(open_device(by_index{0}));
        ASSERT_TRUE(shared->attached());
        base = device_address(synapse->pool());
    }
    void TearDown() override {
        shared.reset();
        synapse.reset();
        ipc_test::TearDown();
    }
    std::optional<fake_synapse> synapse;
    std::shared_ptr<device> shared;
    device_address base; // of SynapseAI's pool
};

TEST_F(synapse_memory_test, is_copied_from_and_to_host_memory) {
    for (const auto path : {copy_path::engine, copy_path::nic_loopback}) {
        SCOPED_TRACE(name_of(path));
        copier copies;
        const auto out = pattern(mebibyte, 3 + static_cast<unsigned>(path));
        std::vector<std::byte> back(mebibyte);
        const place there(base + 4096, mebibyte);
        auto writing = expect(copies.copy(there, std::span(out), {path}));
        EXPECT_EQ(writing.path(), path);
        expect(writing.wait());
        expect(expect(copies.copy(std::span(back), there, {path})).wait());
        EXPECT_TRUE(back == out);
    }
}

TEST_F(synapse_memory_test, is_copied_from_and_to_another_device) {
    const auto other = expect(open_device(by_index{1}));
    const auto buffer = expect(other->heap().allocate(mebibyte));
    auto engine = expect(other->copies());
    for (const auto path : {copy_path::nic_loopback, copy_path::staged}) {
        SCOPED_TRACE(name_of(path));
        copier copies;
        const auto out = pattern(mebibyte, 5 + static_cast<unsigned>(path));
        expect(expect(engine.write(buffer.address(), out)).wait());
        expect(expect(copies.copy(place(base, mebibyte), buffer, {path})).wait());
        std::vector<std::byte> back(mebibyte);
        expect(expect(engine.write(buffer.address(), back)).wait());
        expect(expect(copies.copy(buffer, place(base, mebibyte), {path})).wait());
        expect(expect(engine.read(back, buffer.address())).wait());
        EXPECT_TRUE(back == out);
    }
}

TEST_F(synapse_memory_test, is_refused_beyond_its_pool) {
    copier copies;
    std::array<std::byte, 16> bytes{};
    const place over_the_end(base + (fake_synapse::pool_size - 8), 16);
    for (const auto path : {copy_path::engine, copy_path::nic_loopback})
        EXPECT_EQ(copies.copy(over_the_end, std::span(bytes), {path}).error().code(), errc::not_allocated);
}

// This process registers the whole pool once. A peer's key opens the named bytes alone.
TEST_F(synapse_memory_test, is_opened_to_a_peer_by_the_bytes_and_rights_of_its_key) {
    const auto opened_nic = expect(open_nic());
    const auto& through = core_of(*opened_nic);
    const auto region = expect(opened_nic->region(*shared, base + mebibyte, one_page));
    EXPECT_EQ(region.path(), memory_path::zero_copy);
    EXPECT_EQ(opened_nic->statistics().regions, 1U);
    EXPECT_EQ(opened_nic->statistics().bytes, fake_synapse::pool_size);
    const auto address = (base + mebibyte).value();
    std::uint32_t ended = 0;
    for (const auto rights : {remote_access::read, remote_access::write}) {
        const auto key = expect(region.expose(rights));
        const auto granted = rights == remote_access::read ? read_it : write_it,
                   other = rights == remote_access::read ? write_it : read_it;
        ended = key.region().key;
        EXPECT_EQ(access(through, granted, address, ended), IBV_WC_SUCCESS);
        EXPECT_EQ(access(through, granted, address + one_page - 64, ended), IBV_WC_SUCCESS);
        EXPECT_EQ(access(through, other, address, ended), IBV_WC_REM_ACCESS_ERR);
        EXPECT_EQ(access(through, granted, address - 1, ended), IBV_WC_REM_ACCESS_ERR);
        EXPECT_EQ(access(through, granted, address + one_page - 63, ended), IBV_WC_REM_ACCESS_ERR);
        EXPECT_EQ(access(through, granted, base.value(), ended), IBV_WC_REM_ACCESS_ERR);
        EXPECT_EQ(access(through, granted, address, region.local_key()), IBV_WC_REM_ACCESS_ERR)
            << "the key of this process's own registration";
    }
    for (const auto kind : {read_it, write_it})
        EXPECT_EQ(access(through, kind, address, ended), IBV_WC_REM_ACCESS_ERR) << "the key has ended";
}

} // namespace
