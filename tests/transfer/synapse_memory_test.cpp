// SPDX-License-Identifier: BSD-3-Clause
// Memory that SynapseAI allocated, in a process that SynapseAI shares with this library: copies by every
// path, also from C, and keys for peers.
#include <gaudi/gaudi.h>

#include "src/hl/hl_device.hpp"
#include "src/os/internals.hpp"
#include "tests/ipc/ipc_test.hpp"
#include "tests/rdma/peer_access.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/hlthunk_functions.h"
#include "tests/support/virtual_synapse.hpp"
#include "tests/transfer/ends.hpp"

namespace {

using namespace testing_support;

class synapse_memory_test : public ipc_test {
protected:
    void SetUp() override { start("gaudis = 2\nhcas = 1"); }
    void start(std::string_view description) {
        describe(description);
        synapse.emplace();
        shared = expect(open_device(by_index{0}));
        ASSERT_TRUE(shared->attached());
        base = device_address(synapse->pool());
    }
    void TearDown() override {
        shared.reset();
        synapse.reset();
        ipc_test::TearDown();
    }
    std::optional<virtual_synapse> synapse;
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
    const place over_the_end(base + (synapse->pool_size() - 8), 16);
    for (const auto path : {copy_path::engine, copy_path::nic_loopback})
        EXPECT_EQ(copies.copy(over_the_end, std::span(bytes), {path}).error().code(), errc::not_allocated);
}

// Linux before 6.7: every DMA-BUF begins where its allocation does.
TEST_F(synapse_memory_test, is_right_where_only_whole_allocations_are_exported) {
    shared.reset();
    synapse.reset();
    ::setenv("GAUDI_DIRECT_FSROOT", lab().c_str(), 1);
    start("gaudis = 1\nhcas = 1\ndriver = upstream-6.6");
    ::unsetenv("GAUDI_DIRECT_FSROOT");
    copier copies;
    const auto out = pattern(mebibyte, 9);
    std::vector<std::byte> back(mebibyte);
    const place there(base + 3 * mebibyte, mebibyte);
    expect(expect(copies.copy(there, std::span(out), {copy_path::nic_loopback})).wait());
    expect(expect(copies.copy(std::span(back), there, {copy_path::engine})).wait());
    EXPECT_TRUE(back == out) << "written by a NIC, read by SynapseAI";

    // As UCX does it: by a descriptor and an offset.
    const auto window = expect(shared->export_memory(base + 3 * mebibyte + 4096, one_page));
    const unique_fd descriptor(window.fd);
    EXPECT_EQ(window.offset, base + 3 * mebibyte + 4096 - device_address(synapse->mapping()));
    const auto opened_nic = expect(open_nic());
    const auto region = expect(opened_nic->region(window.fd, window.offset, one_page, window.iova.value()));
    const auto key = expect(region.expose(remote_access::write));
    EXPECT_EQ(access(core_of(*opened_nic), write_it, window.iova.value(), key.region().key), IBV_WC_SUCCESS);

    // Another process must not get a DMA-BUF of other pages than these.
    const auto pages = shared->export_pages(base + mebibyte, one_page);
    ASSERT_FALSE(pages);
    EXPECT_EQ(pages.error().code(), errc::export_offset_ignored);
    EXPECT_HAS(pages.error().message(), "Linux 6.7");
}

// What torch.Tensor.data_ptr() returns, for medium and for big tensors.
TEST_F(synapse_memory_test, is_not_addressed_by_a_handle_of_pytorch) {
    copier copies;
    const auto opened_nic = expect(open_nic());
    std::array<std::byte, 16> bytes{};
    for (const auto handle : {0x4000000100000000U, 0x8000040000000000U}) {
        const device_address wrong(handle);
        EXPECT_EQ(copies.copy(place(wrong, 16), std::span(bytes)).error().code(), errc::pytorch_handle);
        EXPECT_EQ(opened_nic->region(*shared, wrong, 16).error().code(), errc::pytorch_handle);
        EXPECT_EQ(shared->export_foreign(wrong, 4096).error().code(), errc::pytorch_handle);
        EXPECT_EQ(gaudi::share(wrong, 16).error().code(), errc::pytorch_handle);
    }
}

// This process registers the whole pool once. A peer's key opens the named bytes alone.
TEST_F(synapse_memory_test, is_opened_to_a_peer_by_the_bytes_and_rights_of_its_key) {
    const auto opened_nic = expect(open_nic());
    const auto& through = core_of(*opened_nic);
    const auto region = expect(opened_nic->region(*shared, base + mebibyte, one_page));
    EXPECT_EQ(region.path(), memory_path::zero_copy);
    EXPECT_EQ(opened_nic->statistics().regions, 1U);
    EXPECT_EQ(opened_nic->statistics().bytes, synapse->pool_size());
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

// The driver keeps the device busy while a DMA-BUF of its pool exists: SynapseAI could not open it again.
TEST_F(synapse_memory_test, is_registered_until_trimmed_or_its_device_is_lost) {
    const auto opened_nic = expect(open_nic());
    auto region = expect(opened_nic->region(*shared, base, one_page));
    auto key = expect(region.expose(remote_access::read));
    opened_nic->trim();
    EXPECT_EQ(opened_nic->statistics().regions, 2U) << "in use";
    region = {};
    key = {};
    EXPECT_EQ(opened_nic->statistics().regions, 1U) << "kept";
    opened_nic->trim();
    EXPECT_EQ(opened_nic->statistics().regions, 0U);

    std::vector<std::byte> host(one_page);
    const auto of_host = expect(opened_nic->region(host));
    const auto host_key = expect(of_host.expose(remote_access::read));
    region = expect(opened_nic->region(*shared, base, one_page));
    key = expect(region.expose(remote_access::read));
    region = {};
    opened_nic->trim(); // and the key stays
    region = expect(opened_nic->region(*shared, base, one_page));
    EXPECT_EQ(access(core_of(*opened_nic), read_it, base.value(), key.region().key), IBV_WC_SUCCESS);
    core_of(*shared)->loss().mark("SynapseAI closed it");
    EXPECT_EQ(opened_nic->region(*shared, base, one_page).error().code(), errc::device_lost);
    EXPECT_FALSE(key.valid());
    EXPECT_EQ(access(core_of(*opened_nic), read_it, base.value(), key.region().key), IBV_WC_REM_ACCESS_ERR);
    EXPECT_TRUE(host_key.valid()) << "memory of no device";
    region = {};
    shared.reset();
    synapse.reset();
    synapse.emplace(); // the device is not busy
    shared = expect(open_device(by_index{0}));
    EXPECT_TRUE(opened_nic->region(*shared, base, one_page));
}

using c_device = std::unique_ptr<gaudi_device, void (*)(gaudi_device*)>;

c_device open_in_c(const char* which) {
    gaudi_device* opened = nullptr;
    EXPECT_EQ(gaudi_open(which, &opened), GAUDI_OK) << gaudi_last_error();
    return {opened, gaudi_close};
}

// Copies in, within the device from `one` to `two`, and out again.
std::vector<std::byte> copy_around(gaudi_device* handle, std::uint64_t one, std::uint64_t two,
                                   const std::vector<std::byte>& out) {
    std::vector<std::byte> back(out.size());
    EXPECT_EQ(gaudi_copy_in(handle, one, out.data(), out.size()), GAUDI_OK) << gaudi_last_error();
    EXPECT_EQ(gaudi_copy_within(handle, two, one, out.size()), GAUDI_OK) << gaudi_last_error();
    EXPECT_EQ(gaudi_copy_out(handle, back.data(), two, out.size()), GAUDI_OK) << gaudi_last_error();
    return back;
}

// Successful copies by each path since this object was made.
class copies_since {
public:
    [[nodiscard]] std::uint64_t by(copy_path path) const {
        return process_statistics().copies.by(path).operations - before_.by(path).operations;
    }

private:
    const copy_traffic before_ = process_statistics().copies;
};

TEST_F(synapse_memory_test, is_copied_from_c_by_synapses_engine) {
    constexpr std::size_t size = mebibyte + 17;
    const auto handle = open_in_c("0");
    const auto one = base.value() + 4096, two = one + 2 * mebibyte;
    const auto out = pattern(size, 7);
    std::vector<std::byte> by_nic(size);
    const copies_since before;
    EXPECT_TRUE(copy_around(handle.get(), one, two, out) == out);
    EXPECT_EQ(before.by(copy_path::engine), 3U);
    EXPECT_EQ(before.by(copy_path::nic_loopback), 0U);
    copier copies;
    expect(expect(copies.copy(std::span(by_nic), place(device_address(one), size), {copy_path::nic_loopback}))
               .wait());
    EXPECT_TRUE(by_nic == out) << "they lie where C has written them";
}

TEST_F(synapse_memory_test, is_refused_in_c_beyond_its_pool_and_for_another_device) {
    const auto handle = open_in_c("0"), other = open_in_c("1");
    std::array<std::byte, 16> bytes{};
    const auto end = base.value() + synapse->pool_size();
    EXPECT_EQ(gaudi_copy_in(handle.get(), end - 16, bytes.data(), 16), GAUDI_OK) << gaudi_last_error();
    for (const auto address : {end - 15, end, base.value() - 1}) {
        EXPECT_EQ(gaudi_copy_in(handle.get(), address, bytes.data(), 16), GAUDI_INVALID) << address;
        EXPECT_HAS(std::string(gaudi_last_error()), "16 bytes at");
        EXPECT_EQ(gaudi_copy_out(handle.get(), bytes.data(), address, 16), GAUDI_INVALID) << address;
    }
    EXPECT_EQ(gaudi_copy_within(handle.get(), base.value(), end - 8, 16), GAUDI_INVALID);
    EXPECT_EQ(gaudi_copy_in(other.get(), base.value(), bytes.data(), 16), GAUDI_INVALID);
    EXPECT_EQ(gaudi_copy_out(other.get(), bytes.data(), base.value(), 16), GAUDI_INVALID);
}

class synapse_memory_on_gaudi3 : public synapse_memory_test {
protected:
    void SetUp() override { start("gaudis = 2\nhcas = 1\ngeneration = gaudi3"); }
};

TEST_F(synapse_memory_on_gaudi3, is_copied_from_c_by_synapses_engine) {
    constexpr std::size_t size = mebibyte + 17;
    const auto handle = open_in_c("0");
    const auto one = base.value() + 4096, two = one + 2 * mebibyte;
    const auto out = pattern(size, 8);
    const copies_since before;
    EXPECT_TRUE(copy_around(handle.get(), one, two, out) == out);
    EXPECT_EQ(before.by(copy_path::engine), 3U);
    EXPECT_EQ(before.by(copy_path::nic_loopback), 0U);
}

TEST_F(synapse_memory_on_gaudi3, is_copied_from_c_by_a_nic_if_synapse_has_no_engine) {
    constexpr std::size_t size = 5 * mebibyte + 17;
    synapse->arm_faults("synStreamCreateGeneric every errno ENOMEM");
    EXPECT_EQ(shared->copies().error().code(), errc::copies_absent);
    const auto handle = open_in_c("0");
    const auto one = base.value() + 4096, two = one + 8 * mebibyte;
    const auto out = pattern(size, 9);
    const copies_since before;
    EXPECT_TRUE(copy_around(handle.get(), one, two, out) == out);
    EXPECT_EQ(before.by(copy_path::nic_loopback), 3U);
    EXPECT_EQ(before.by(copy_path::engine), 0U);
    const auto end = base.value() + synapse->pool_size();
    std::array<std::byte, 16> bytes{};
    EXPECT_EQ(gaudi_copy_in(handle.get(), end - 8, bytes.data(), 16), GAUDI_INVALID);
    EXPECT_EQ(gaudi_copy_out(handle.get(), bytes.data(), end - 8, 16), GAUDI_INVALID);
}

} // namespace
