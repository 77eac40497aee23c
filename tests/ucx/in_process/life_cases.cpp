// SPDX-License-Identifier: BSD-3-Clause
// Resets, vfs, SynapseAI, Gaudi3, and leaks. Runs in the lab, under either UCX.
#include "tests/support/virtual_synapse.hpp"
#include "tests/ucx/in_process/uct_case.hpp"
#include "ucx/base/operations.hpp"

#include <gaudi/device.hpp>
#include <gaudi/ipc.hpp>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <unistd.h>

namespace {

using namespace testing_ucx;

std::size_t descriptors() {
    const std::filesystem::directory_iterator all("/proc/self/fd");
    return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

// Runs alone, with a fault script: the third submission resets the device.
TEST(uct_reset, copies_under_a_reset_fail_and_the_rest_at_once) {
    memory_domain domain("gaudi_copy", "gaudi_copy");
    copier copies(domain);
    const allocated memory(domain, 1 << 20);
    auto out = numbered(1 << 20, 1);
    ucs_status_t last = UCS_OK;
    ::testing::internal::CaptureStdout(); // where UCX logs to
    for (int tries = 0; tries < 10 && last == UCS_OK; ++tries)
        last = complete(copies, true, out.data(), out.size(), memory.number());
    EXPECT_EQ(last, UCS_ERR_IO_ERROR);
    EXPECT_EQ(complete(copies, true, out.data(), out.size(), memory.number()), UCS_ERR_IO_ERROR);
    const auto log = ::testing::internal::GetCapturedStdout();
    const auto said = log.find("UCX does not check the end of copies");
    EXPECT_NE(said, std::string::npos) << log;
    EXPECT_EQ(log.find("UCX does not check the end of copies", said + 1), std::string::npos) << "once:\n"
                                                                                             << log;
    const auto begin = std::chrono::steady_clock::now();
    uint64_t word = 1;
    EXPECT_EQ(uct_ep_put_short(copies.ep, &word, 8, memory.number(), UCT_INVALID_RKEY), UCS_ERR_IO_ERROR);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

// The reset hits a copy of an interface or of the library; another domain uses the device, and host memory
// stays registered.
struct met_by {
    bool interface, pinned;
};
class uct_reset_of : public ::testing::TestWithParam<met_by> {};
TEST_P(uct_reset_of, a_device_is_opened_again_under_the_same_domain) {
    const auto met = GetParam();
    const setting same("UCX_GAUDI_COPY_DEVICE", "0");
    memory_domain domain("gaudi_copy", "gaudi_copy"), other_domain("gaudi_copy", "gaudi_copy");
    copier copies(domain), dma(domain, "gaudi_dma", "gaudi_dma"), others(other_domain);
    auto out = numbered(1 << 20, 1);
    uct_md_mem_reg_params_t params{};
    uct_mem_h memh = nullptr;
    ASSERT_EQ(uct_md_mem_reg_v2(domain.md, out.data(), out.size(), &params, &memh), UCS_OK);
    const auto put = [&](copier& by, const allocated& to) {
        return complete(by, true, out.data(), out.size(), to.number(), met.pinned ? memh : nullptr);
    };
    ::testing::internal::CaptureStdout(); // where UCX logs to
    {
        const allocated memory(domain, 1 << 20), more(other_domain, 1 << 20);
        ASSERT_EQ(put(copies, memory), UCS_OK);
        ASSERT_EQ(put(dma, memory), UCS_OK);
        ASSERT_EQ(put(others, more), UCS_OK);
        auto engine = engine_at(memory.number());
        bool lost = false;
        for (int tries = 0; tries < 100 && !lost; ++tries)
            if (met.interface)
                lost = put(copies, memory) != UCS_OK;
            else {
                auto ticket = engine.write(gaudi::device_address(memory.number()), out);
                lost = !ticket || !ticket->wait();
            }
        ASSERT_TRUE(lost);
    }
    const allocated again(domain, 1 << 20), more(other_domain, 1 << 20);
    const auto log = ::testing::internal::GetCapturedStdout();
    EXPECT_EQ(device_at(again.number())->info().index, 0U) << log;
    for (auto* each : {&copies, &dma, &others})
        EXPECT_EQ(put(*each, again), UCS_OK);
    std::vector<std::byte> back(out.size());
    EXPECT_EQ(complete(copies, false, back.data(), back.size(), again.number()), UCS_OK);
    EXPECT_EQ(back, out);
    EXPECT_EQ(uct_md_mem_dereg(domain.md, memh), UCS_OK);
}
INSTANTIATE_TEST_SUITE_P(uct_reset, uct_reset_of,
                         ::testing::Values(met_by{true, true}, met_by{true, false}, met_by{false, true},
                                           met_by{false, false}),
                         [](const auto& each) {
                             return std::string(each.param.interface ? "by_an_interface" : "by_the_library") +
                                    (each.param.pinned ? "_pinned" : "");
                         });

// A callback may destroy the endpoint of other finished operations.
TEST(uct_operations, an_endpoint_that_goes_in_a_callback_is_forgotten) {
    struct ticket {
        int number = 0;
    };
    gaudi_ucx::operations<ticket> in_flight;
    static uct_ep some{};
    static gaudi_ucx::operations<ticket>* all = nullptr;
    all = &in_flight;
    uct_completion_t first{}, second{};
    first.count = second.count = 1;
    first.func = [](uct_completion_t*) {
        EXPECT_EQ(all->flush(nullptr), UCS_INPROGRESS) << "the second is not complete yet";
        all->forget(&some);
    };
    second.func = [](uct_completion_t*) {};
    in_flight.add({1}, &first, &some);
    in_flight.add({2}, &second, &some);
    std::vector<uct_ep_h> reported;
    EXPECT_EQ(in_flight.progress([](ticket&) { return true; },
                                 [&](ticket&, uct_ep_h ep) {
                                     reported.push_back(ep);
                                     return UCS_OK;
                                 }),
              2U);
    EXPECT_EQ(reported, (std::vector<uct_ep_h>{&some, nullptr}));
    EXPECT_TRUE(in_flight.idle());
}

std::string shown_by_vfs(const std::string& path) {
    ucs_string_buffer_t text;
    ucs_string_buffer_init(&text);
    EXPECT_EQ(ucs_vfs_path_read_file(path.c_str(), &text), UCS_OK) << path;
    const std::string copied = ucs_string_buffer_cstr(&text);
    ucs_string_buffer_cleanup(&text);
    return copied;
}

TEST(uct_life, counters_and_devices_are_files_of_vfs) {
    memory_domain domain("gaudi_copy", "gaudi_copy"), ipc("gaudi_ipc", "gaudi_ipc");
    constexpr std::size_t length = 1 << 20;
    const allocated memory(domain, length);
    copier dma(domain, "gaudi_dma", "gaudi_dma");
    auto bytes = numbered(length, 1);
    uct_iov_t iov{bytes.data(), length, nullptr, 0, 1};
    const auto devices = [] {
        return shown_by_vfs("/uct/component/gaudi_copy/memory_domain/gaudi_copy/devices");
    };
    const auto counters = [] {
        return shown_by_vfs("/uct/component/gaudi_copy/memory_domain/gaudi_copy/counters");
    };
    const auto dma_bytes = [&] {
        const auto text = counters();
        unsigned long long found = 0;
        const auto end = text.find(" by gaudi_dma");
        const auto begin = text.rfind(' ', end - 1);
        EXPECT_NE(end, std::string::npos) << text;
        std::sscanf(text.c_str() + begin, "%llu", &found);
        return found;
    };
    const auto before = dma_bytes();
    finished done;
    ASSERT_EQ(uct_ep_put_zcopy(dma.ep, &iov, 1, memory.number(), UCT_INVALID_RKEY, &done.comp),
              UCS_INPROGRESS);
    const auto meanwhile = devices();
    while (done.times == 0)
        dma.progress();
    EXPECT_EQ(dma_bytes() - before, length);
    EXPECT_NE(meanwhile.find("1048576 bytes in 1 buffers, 1 chunks, 0 exported"), std::string::npos)
        << meanwhile;
    uct_md_mem_attr_v2_t attr{};
    attr.field_mask = dmabuf;
    ASSERT_EQ(uct_md_mem_query_v2(domain.md, memory.memory.address, length, &attr), UCS_OK);
    ::close(attr.dmabuf_fd);
    EXPECT_NE(devices().find("1 buffers, 1 chunks, 1 exported"), std::string::npos) << devices();
    EXPECT_NE(meanwhile.find(", 1 packets on it"), std::string::npos) << "the copy is on a queue:\n"
                                                                      << meanwhile;
    // The queue's counters after the copy: all bytes, some time, no packet outstanding.
    unsigned queue = 0, depth = 1;
    unsigned long carried = 0;
    double busy = 0;
    const auto text = devices();
    const auto at = text.find("  queue ");
    ASSERT_NE(at, std::string::npos) << text;
    ASSERT_EQ(std::sscanf(text.c_str() + at, "  queue %u: %lu bytes, busy for %lf ms, %u packets on it",
                          &queue, &carried, &busy, &depth),
              4)
        << text;
    EXPECT_GE(carried, length);
    EXPECT_GT(busy, 0);
    EXPECT_EQ(depth, 0U);
    EXPECT_NE(shown_by_vfs("/uct/component/gaudi_ipc/memory_domain/gaudi_ipc/counters").find("by path: "),
              std::string::npos);
}

// The counters of the domain's vfs file, in its order.
struct counted {
    unsigned long long allocations, bytes, registrations, exports, brief, buffered, zcopy, by_nic, by_dma,
        frees;
};
counted counters_of_vfs() {
    const auto text = shown_by_vfs("/uct/component/gaudi_copy/memory_domain/gaudi_copy/counters");
    counted all{};
    EXPECT_EQ(
        std::sscanf(text.c_str(),
                    "gaudi_copy: %llu allocations, %llu bytes; %llu registrations; %llu DMA-BUFs "
                    "exported; staged %llu bytes by short, %llu by bcopy, %llu by zcopy operations, %llu of "
                    "them by a NIC in loopback, %llu by gaudi_dma; %llu frees announced",
                    &all.allocations, &all.bytes, &all.registrations, &all.exports, &all.brief, &all.buffered,
                    &all.zcopy, &all.by_nic, &all.by_dma, &all.frees),
        10)
        << text;
    return all;
}

TEST(uct_life, every_counter_of_vfs_rises_by_what_was_done) {
    memory_domain domain("gaudi_copy", "gaudi_copy");
    copier copies(domain);
    constexpr std::size_t length = 1 << 20, buffered = 3000;
    auto bytes = numbered(length, 1);
    const auto before = counters_of_vfs();
    {
        const allocated memory(domain, length);
        uct_mem_h handle = nullptr;
        uct_md_mem_reg_params_t asked{};
        ASSERT_EQ(uct_md_mem_reg_v2(domain.md, memory.memory.address, length, &asked, &handle), UCS_OK);
        uct_md_mem_attr_v2_t attr{};
        attr.field_mask = dmabuf;
        ASSERT_EQ(uct_md_mem_query_v2(domain.md, memory.memory.address, length, &attr), UCS_OK);
        ::close(attr.dmabuf_fd);
        ASSERT_EQ(uct_ep_put_short(copies.ep, bytes.data(), 100, memory.number(), UCT_INVALID_RKEY), UCS_OK);
        const auto pack = [](void* to, void* from) {
            std::memcpy(to, from, buffered);
            return buffered;
        };
        ASSERT_EQ(uct_ep_put_bcopy(copies.ep, pack, bytes.data(), memory.number(), UCT_INVALID_RKEY),
                  buffered);
        ASSERT_EQ(complete(copies, true, bytes.data(), length, memory.number()), UCS_OK);
        uct_md_mem_dereg_params_t back{};
        back.field_mask = UCT_MD_MEM_DEREG_FIELD_MEMH;
        back.memh = handle;
        ASSERT_EQ(uct_md_mem_dereg_v2(domain.md, &back), UCS_OK);
    }
    const auto after = counters_of_vfs();
    EXPECT_EQ(after.allocations - before.allocations, 1U);
    EXPECT_EQ(after.bytes - before.bytes, length);
    EXPECT_EQ(after.registrations - before.registrations, 1U);
    EXPECT_EQ(after.exports - before.exports, 1U);
    EXPECT_EQ(after.brief - before.brief, 100U);
    EXPECT_EQ(after.buffered - before.buffered, buffered);
    EXPECT_EQ(after.zcopy - before.zcopy, length);
    EXPECT_EQ(after.by_nic - before.by_nic, 100 + buffered) << "what is small";
    EXPECT_EQ(after.by_dma, before.by_dma);
    EXPECT_GE(after.frees - before.frees, 1U);
}

TEST(uct_life, openings_leave_nothing) {
    std::size_t before = 0;
    for (int round = 0; round < 40; ++round) {
        if (round == 5)
            before = descriptors();
        memory_domain domain("gaudi_copy", "gaudi_copy");
        copier copies(domain);
        int event = -1;
        ASSERT_EQ(uct_iface_event_fd_get(copies.iface, &event), UCS_OK);
        const allocated memory(domain, 4096);
        uint64_t word = 1;
        ASSERT_EQ(uct_ep_put_short(copies.ep, &word, 8, memory.number(), UCT_INVALID_RKEY), UCS_OK);
        uct_md_mem_attr_v2_t attr{};
        attr.field_mask = dmabuf;
        ASSERT_EQ(uct_md_mem_query_v2(domain.md, memory.memory.address, 4096, &attr), UCS_OK);
        ::close(attr.dmabuf_fd);
    }
    EXPECT_EQ(descriptors(), before);
}

// Puts and gets through a transport, and compares every byte.
void expect_there_and_back(copier& by, uint64_t address, std::size_t length) {
    auto out = numbered(length, 4);
    std::vector<std::byte> back(length);
    EXPECT_EQ(complete(by, true, out.data(), length, address), UCS_OK);
    EXPECT_EQ(complete(by, false, back.data(), length, address), UCS_OK);
    EXPECT_EQ(out, back);
}

TEST(uct_life, memory_of_synapse_is_found_whenever_it_comes) {
    memory_domain domain("gaudi_copy", "gaudi_copy");
    const virtual_synapse synapse;
    const auto address = synapse.pool();
    ucs_memory_info_t info{};
    // The cache has an entry of unknown type, so UCX queries the plugin.
    EXPECT_EQ(ucs_memtype_cache_lookup(reinterpret_cast<void*>(address), 4096, &info), UCS_OK);
    ucs_memory_type_t type = UCS_MEMORY_TYPE_LAST;
    EXPECT_EQ(uct_md_detect_memory_type(domain.md, reinterpret_cast<void*>(address + 12345), 8, &type),
              UCS_OK);
    EXPECT_EQ(type, UCS_MEMORY_TYPE_GAUDI);
    uct_md_mem_attr_v2_t attr{};
    attr.field_mask = dmabuf | UCT_MD_MEM_ATTR_V2_FIELD_MEM_FLAGS;
    ASSERT_EQ(uct_md_mem_query_v2(domain.md, reinterpret_cast<void*>(address + 65536), 4096, &attr), UCS_OK);
    EXPECT_EQ(attr.mem_flags, UCS_MEM_FLAG_REGISTRABLE);
    EXPECT_EQ(ucs_memtype_cache_lookup(reinterpret_cast<void*>(address), 4096, &info), UCS_OK);
    EXPECT_EQ(info.type, UCS_MEMORY_TYPE_GAUDI); // from now on UCX does not query the plugin
    EXPECT_GE(attr.dmabuf_fd, 0);
    ::close(attr.dmabuf_fd);
    {
        // Only SynapseAI may use its queues: its own call copies, or a NIC.
        copier copies(domain);
        auto out = numbered(100000, 4);
        std::vector<std::byte> back(out.size());
        const auto put = uct_ep_put_short(copies.ep, out.data(), 100000, address + 4096, UCT_INVALID_RKEY);
        const auto get = uct_ep_get_short(copies.ep, back.data(), 100000, address + 4096, UCT_INVALID_RKEY);
        EXPECT_EQ(put, UCS_OK);
        EXPECT_EQ(get, UCS_OK);
        EXPECT_EQ(out, back);
        copier dma(domain, "gaudi_dma", "gaudi_dma");
        expect_there_and_back(dma, address + 8192, 3 << 20);
    }
}

TEST(uct_life, memory_of_a_synapse_from_before_is_known_at_once) {
    const virtual_synapse synapse;
    memory_domain domain("gaudi_copy", "gaudi_copy");
    ucs_memory_info_t info{};
    const auto* address = reinterpret_cast<void*>(synapse.pool());
    EXPECT_EQ(ucs_memtype_cache_lookup(address, 4096, &info), UCS_OK);
    EXPECT_EQ(info.type, UCS_MEMORY_TYPE_UNKNOWN) << "UCX asks";
    uct_md_mem_attr_v2_t attr{};
    attr.field_mask = UCT_MD_MEM_ATTR_V2_FIELD_MEM_TYPE | UCT_MD_MEM_ATTR_V2_FIELD_MEM_FLAGS;
    EXPECT_EQ(uct_md_mem_query_v2(domain.md, address, 4096, &attr), UCS_OK);
    EXPECT_EQ(attr.mem_type, UCS_MEMORY_TYPE_GAUDI);
    EXPECT_EQ(ucs_memtype_cache_lookup(address, 4096, &info), UCS_OK);
    EXPECT_EQ(info.type, UCS_MEMORY_TYPE_GAUDI);
    EXPECT_EQ(info.sys_dev != UCS_SYS_DEVICE_ID_UNKNOWN, first_gaudi_is_in_sysfs());
    copier copies(domain);
    expect_there_and_back(copies, synapse.pool() + 4096, 1 << 20);
}

// No allocation of SynapseAI's is known, so that nothing but the registration can end a key.
TEST(uct_life, keys_of_synapse_memory_end_with_their_registrations_each_alone) {
    const virtual_synapse synapse;
    memory_domain copies("gaudi_copy", "gaudi_copy"), ipc("gaudi_ipc", "gaudi_ipc");
    (void)gaudi::attach_devices();
    const auto registration = [&](std::uint64_t address, std::size_t length) {
        uct_md_mem_reg_params_t params{};
        params.field_mask = UCT_MD_MEM_REG_FIELD_FLAGS;
        params.flags = UCT_MD_MEM_ACCESS_ALL;
        uct_mem_h made = nullptr;
        check(uct_md_mem_reg_v2(ipc.md, reinterpret_cast<void*>(address), length, &params, &made), "mem_reg");
        return made;
    };
    const auto handle_of = [&](uct_mem_h memh) {
        std::array<std::byte, 512> key{};
        uct_md_mkey_pack_params_t params{};
        check(uct_md_mkey_pack_v2(ipc.md, memh, nullptr, 0, &params, key.data()), "mkey_pack");
        gaudi::memory_handle handle; // the key begins with it
        std::memcpy(handle.bytes.data(), key.data(), handle.bytes.size());
        return handle;
    };
    auto* const page = registration(synapse.pool(), 4096);
    auto* const pages = registration(synapse.pool(), 8192); // begins at the same address
    auto* const same = registration(synapse.pool(), 4096);
    const auto of_page = handle_of(page), of_pages = handle_of(pages), of_same = handle_of(same);
    EXPECT_TRUE(gaudi::is_shared(of_page));
    EXPECT_TRUE(gaudi::is_shared(of_pages));
    EXPECT_EQ(of_page.bytes, of_same.bytes) << "one handle for the same bytes";
    EXPECT_NE(of_page.bytes, of_pages.bytes);
    check(uct_md_mem_dereg(ipc.md, page), "mem_dereg");
    EXPECT_TRUE(gaudi::is_shared(of_page)) << "another registration of the bytes is left";
    check(uct_md_mem_dereg(ipc.md, same), "mem_dereg");
    EXPECT_FALSE(gaudi::is_shared(of_page));
    EXPECT_TRUE(gaudi::is_shared(of_pages));
    check(uct_md_mem_dereg(ipc.md, pages), "mem_dereg");
    EXPECT_FALSE(gaudi::is_shared(of_pages));
    EXPECT_EQ(gaudi::process_statistics().ipc.shared, 0U) << "nothing is kept of them";
}

TEST(uct_life, memory_of_a_synapse_that_went_is_refused_and_found_when_it_comes_again) {
    memory_domain domain("gaudi_copy", "gaudi_copy");
    const auto dmabuf_of = [&](uint64_t address) {
        uct_md_mem_attr_v2_t attr{};
        attr.field_mask = dmabuf;
        const auto status = uct_md_mem_query_v2(domain.md, reinterpret_cast<void*>(address), 4096, &attr);
        if (status == UCS_OK && attr.dmabuf_fd >= 0)
            ::close(attr.dmabuf_fd);
        return status;
    };
    copier copies(domain), others(domain), dma(domain, "gaudi_dma", "gaudi_dma");
    const auto put = [&](uint64_t address, unsigned length) {
        auto out = numbered(length, 4);
        return uct_ep_put_short(copies.ep, out.data(), length, address, UCT_INVALID_RKEY);
    };
    std::optional<virtual_synapse> synapse(std::in_place);
    const auto before = synapse->pool();
    for (auto* each : {&copies, &others, &dma}) // each has an engine of the device now
        expect_there_and_back(*each, before + 4096, 100000);
    ASSERT_EQ(dmabuf_of(before), UCS_OK);
    synapse.reset();
    for (const unsigned length : {100000U, 8U}) // by SynapseAI's call, and by a NIC
        EXPECT_EQ(put(before, length), UCS_ERR_INVALID_ADDR) << length;
    EXPECT_EQ(dmabuf_of(before), UCS_ERR_INVALID_ADDR);
    const int between = ::dup(0); // so that the device gets another descriptor number
    synapse.emplace();
    ::close(between);
    for (auto* each : {&dma, &others, &copies})
        expect_there_and_back(*each, synapse->pool() + 4096, 100000);
    EXPECT_EQ(put(synapse->pool(), 8), UCS_OK);
    EXPECT_EQ(dmabuf_of(synapse->pool()), UCS_OK);
}

// Runs in a lab of Gaudi3, which have no queues for users.
TEST(uct_gaudi3, copies_go_through_the_nic) {
    memory_domain domain("gaudi_copy", "gaudi_copy");
    copier copies(domain);
    const allocated memory(domain, 1 << 20);
    auto out = numbered(1 << 20, 6);
    std::vector<std::byte> back(out.size());
    ASSERT_EQ(uct_ep_put_short(copies.ep, out.data(), 1 << 20, memory.number(), UCT_INVALID_RKEY), UCS_OK);
    ASSERT_EQ(complete(copies, false, back.data(), back.size(), memory.number()), UCS_OK);
    EXPECT_EQ(out, back);
}

TEST(uct_gaudi3, gaudi_dma_is_there_where_synapse_copies) {
    memory_domain domain("gaudi_copy", "gaudi_copy");
    const auto offered = [&] {
        uct_tl_resource_desc_t* all = nullptr;
        unsigned count = 0;
        check(uct_md_query_tl_resources(domain.md, &all, &count), "uct_md_query_tl_resources");
        const bool found = std::any_of(
            all, all + count, [](const auto& each) { return each.tl_name == std::string("gaudi_dma"); });
        uct_release_tl_resource_list(all);
        return found;
    };
    EXPECT_FALSE(offered());
    const virtual_synapse synapse;
    EXPECT_TRUE(offered());
    copier dma(domain, "gaudi_dma", "gaudi_dma");
    expect_there_and_back(dma, synapse.pool() + 8192, 3 << 20);
}

} // namespace
