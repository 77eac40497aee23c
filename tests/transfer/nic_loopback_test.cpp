// SPDX-License-Identifier: BSD-3-Clause
// Copies by a NIC in loopback: small ones complete inside the call, large ones later; and what it refuses.
#include "src/ipc/lease_core.hpp"
#include "src/os/internals.hpp"
#include "src/os/unique_fd.hpp"
#include "tests/ipc/ipc_test.hpp"
#include "tests/rdma/peer_access.hpp"
#include "tests/transfer/ends.hpp"

#include <sys/mman.h>

extern "C" int gaudi_lab_hca_arm_faults(const char* script);

namespace {

using namespace testing_support;

class nic_loopback_test : public ipc_test {
protected:
    static constexpr std::uint64_t small = 64 * 1024;

    void open() {
        opened_device = expect(open_device(by_index{0}));
        copies.emplace(copier_options{.nic_max = small});
    }
    void TearDown() override {
        copies.reset();
        opened_device.reset();
        ipc_test::TearDown();
    }
    std::shared_ptr<device> opened_device;
    std::optional<copier> copies;
};

TEST_F(nic_loopback_test, small_copies_are_done_at_once) {
    describe("gaudis = 1\nhcas = 1");
    open();
    auto engine = expect(opened_device->copies());
    const auto buffer = expect(opened_device->heap().allocate(mebibyte));
    for (const std::size_t size : {1UL, 8UL, 63UL, 4096UL, 16384UL, 16385UL, 65536UL}) {
        const place there(buffer.address() + 13, size);
        const auto out = pattern(size, static_cast<unsigned>(size));
        const auto written = expect(copies->copy(there, std::span(out)));
        EXPECT_EQ(written.path(), copy_path::nic_loopback);
        EXPECT_TRUE(written.finished());
        std::vector<std::byte> seen(size), back(size);
        expect(expect(engine.read(seen, buffer.address() + 13)).wait()); // by the device's engine
        EXPECT_EQ(seen, out) << size;
        const auto other = pattern(size, 77);
        expect(expect(engine.write(buffer.address() + 13, other)).wait());
        const auto read = expect(copies->copy(std::span(back), there));
        EXPECT_EQ(read.path(), copy_path::nic_loopback);
        EXPECT_TRUE(read.finished());
        EXPECT_EQ(back, other) << size;
    }
    std::vector<std::byte> longer(small + 1);
    auto writing = expect(copies->copy(place(buffer.address(), longer.size()), longer));
    EXPECT_EQ(writing.path(), copy_path::engine);
    expect(writing.wait());
}

TEST_F(nic_loopback_test, stays_within_an_allocation_that_lives) {
    describe("gaudis = 1\nhcas = 1");
    open();
    auto buffer = expect(opened_device->heap().allocate(4096));
    const auto neighbour = expect(opened_device->heap().allocate(4096)); // keeps the chunk allocated
    std::array<std::byte, 8> word{};
    for (const auto& only : {std::optional<copy_path>(), std::optional(copy_path::nic_loopback)}) {
        EXPECT_TRUE(copies->copy(place(buffer.address() + 4088, 8), std::span(word), {only}));
        EXPECT_EQ(copies->copy(place(buffer.address() + 4089, 8), std::span(word), {only}).error().code(),
                  errc::range_leaves_allocation);
    }
    const auto gone = buffer.address();
    buffer = {};
    for (const auto& only : {std::optional<copy_path>(), std::optional(copy_path::nic_loopback)}) {
        EXPECT_EQ(copies->copy(std::span(word), place(gone, 8), {only}).error().code(), errc::not_allocated);
        auto after = copies->copy(std::span(word), place(neighbour.address(), 8), {only});
        ASSERT_TRUE(after);
        EXPECT_EQ(after->path(), copy_path::nic_loopback) << "a refusal broke it";
    }
}

TEST_F(nic_loopback_test, a_chunk_goes_back_although_it_was_used) {
    describe("gaudis = 2\nhcas = 1");
    open();
    const auto other = expect(open_device(by_index{1}));
    {
        const auto buffer = expect(opened_device->heap().allocate(4096)),
                   second = expect(other->heap().allocate(4096));
        std::array<std::byte, 8> word{};
        expect(expect(copies->copy(place(buffer.address(), 8), std::span(word))).wait());
        auto across = expect(copies->copy(place(buffer.address(), 8), place(second.address(), 8)));
        EXPECT_EQ(across.path(), copy_path::nic_loopback);
        expect(across.wait());
    }
    for (const auto& each : {opened_device, other}) {
        each->heap().trim();
        EXPECT_EQ(each->heap().statistics().chunks, 0U);
    }
}

TEST_F(nic_loopback_test, a_nic_without_dmabufs_is_no_path) {
    describe("gaudis = 1\nhcas = 1\n[hca 0]\ndmabuf = no\n");
    open();
    const auto buffer = expect(opened_device->heap().allocate(4096));
    std::array<std::byte, 8> word{};
    const place there(buffer.address(), 8);
    auto writing = expect(copies->copy(there, word));
    EXPECT_EQ(writing.path(), copy_path::engine);
    expect(writing.wait());
    const auto refused = copies->copy(there, std::span(word), {copy_path::nic_loopback});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), errc::dmabuf_unsupported) << refused.error().message();
    EXPECT_NE(refused.error().observed().find("vhca0 port 1: "), std::string::npos)
        << refused.error().message();
}

TEST_F(nic_loopback_test, works_over_ethernet) {
    describe("gaudis = 1\nhcas = 1\nlink_layer = ethernet\n");
    open();
    const auto buffer = expect(opened_device->heap().allocate(mebibyte));
    for (const auto size : {std::size_t{4096}, mebibyte}) {
        const auto out = pattern(size, 3);
        std::vector<std::byte> back(size);
        const copy_policy only{copy_path::nic_loopback};
        expect(expect(copies->copy(place(buffer.address(), size), std::span(out), only)).wait());
        expect(expect(copies->copy(std::span(back), place(buffer.address(), size), only)).wait());
        EXPECT_TRUE(out == back);
    }
}

// The source is read-only memory, such as a mapped file.
TEST_F(nic_loopback_test, a_source_may_be_read_only) {
    describe("gaudis = 1\nhcas = 1");
    open();
    const auto buffer = expect(opened_device->heap().allocate(mebibyte));
    auto* const mapped = static_cast<std::byte*>(
        ::mmap(nullptr, mebibyte, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ASSERT_NE(mapped, MAP_FAILED);
    const auto sent = pattern(mebibyte, 4);
    std::copy(sent.begin(), sent.end(), mapped);
    ASSERT_EQ(::mprotect(mapped, mebibyte, PROT_READ), 0);
    const std::span<const std::byte> source(mapped, mebibyte);
    auto started = copies->copy(place(buffer.address(), mebibyte), source, {copy_path::nic_loopback});
    ASSERT_TRUE(started) << started.error().message();
    ASSERT_TRUE(started->wait());
    std::vector<std::byte> seen(mebibyte);
    expect(expect(expect(opened_device->copies()).read(seen, buffer.address())).wait());
    EXPECT_TRUE(seen == sent);

    // The NIC sends to a foreign DMA-BUF from its local end.
    const auto foreign = expect(opened_device->heap().allocate(mebibyte));
    const auto window = expect(opened_device->export_pages(foreign.address(), mebibyte));
    const unique_fd own(window.fd);
    expect(expect(copies->copy(place(window), source, {copy_path::nic_loopback})).wait());
    expect(expect(expect(opened_device->copies()).read(seen, foreign.address())).wait());
    EXPECT_TRUE(seen == sent);
    ::munmap(mapped, mebibyte);
}

// The NIC cannot connect to itself: the copier falls back to an engine, and does not retry the NIC.
TEST_F(nic_loopback_test, one_that_fails_is_left_alone) {
    describe("gaudis = 2\nhcas = 1");
    open();
    const auto buffer = expect(opened_device->heap().allocate(4096));
    std::array<std::byte, 8> word{std::byte{5}}, back{};
    ASSERT_EQ(gaudi_lab_hca_arm_faults("ibv_modify_qp every errno EINVAL"), 0);
    auto writing = expect(copies->copy(place(buffer.address(), 8), word));
    EXPECT_EQ(writing.path(), copy_path::engine);
    expect(writing.wait());
    const auto other = expect(open_device(by_index{1}));
    const auto second = expect(other->heap().allocate(4096));
    auto across = expect(copies->copy(second, buffer));
    EXPECT_EQ(across.path(), copy_path::staged);
    expect(across.wait());
    gaudi_lab_hca_arm_faults("");
    auto reading = expect(copies->copy(back, place(second.address(), 8)));
    EXPECT_EQ(reading.path(), copy_path::engine);
    expect(reading.wait());
    EXPECT_EQ(word, back);
}

// A shortage passes: the NIC is tried again.
TEST_F(nic_loopback_test, one_that_was_short_of_memory_is_tried_again) {
    describe("gaudis = 1\nhcas = 1");
    open();
    const auto buffer = expect(opened_device->heap().allocate(4096));
    std::array<std::byte, 8> word{std::byte{5}};
    const place there(buffer.address(), 8);
    const copy_policy only{copy_path::nic_loopback};
    ASSERT_EQ(gaudi_lab_hca_arm_faults("ibv_reg_mr every errno ENOMEM"), 0);
    EXPECT_EQ(copies->copy(there, std::span(word), only).error().kind(), error_kind::exhausted);
    gaudi_lab_hca_arm_faults("");
    EXPECT_TRUE(soon_true([&] { return copies->copy(there, std::span(word), only).has_value(); }));
}

// The importer's NIC needs a remote key to leased memory. No peer of the importer can use it.
TEST_F(nic_loopback_test, the_key_to_leased_memory_is_out_of_reach_for_connections) {
    describe("gaudis = 1\nhcas = 1");
    owner other;
    const auto imported = expect(import_memory(other.share(4096, 1)));
    const auto opened_nic = expect(open_nic());
    const auto& lease = internals::lease(imported);
    const auto resources = lease->resources();
    const auto key = expect(lease->key_on(*resources, opened_nic));
    const auto address = lease->base().value();
    const auto& through = core_of(*opened_nic);
    for (const auto kind : {transfer_kind::read, transfer_kind::write})
        EXPECT_EQ(access(through, kind, address, key), IBV_WC_REM_ACCESS_ERR);
    EXPECT_TRUE(other.holds(0, 1));
    auto* const loopback = expect(through->loopback_pd());
    EXPECT_EQ(access(through, transfer_kind::write, address, key, loopback), IBV_WC_SUCCESS)
        << "the key itself is valid";
    EXPECT_FALSE(other.holds(0, 1));
    EXPECT_EQ(access(through, transfer_kind::read, address - 1, key, loopback), IBV_WC_REM_ACCESS_ERR);
    EXPECT_EQ(access(through, transfer_kind::read, address + 4096 - 63, key, loopback),
              IBV_WC_REM_ACCESS_ERR);
}

} // namespace
