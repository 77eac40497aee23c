// SPDX-License-Identifier: BSD-3-Clause
// The memory domain and its transport, call by call. Runs in the lab, under either UCX: uct_test runs it.
#include "tests/ucx/uct_fixture.hpp"

#include <gaudi/device.hpp>

#include "ucx/base/key.hpp"

#include <algorithm>
#include <chrono>
#include <dlfcn.h>
#include <fcntl.h>
#include <filesystem>
#include <gtest/gtest.h>
#include <optional>
#include <poll.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace {

using namespace testing_ucx;
using gaudi_ucx::memory_key;

class uct_case : public ::testing::Test {
protected:
    memory_domain domain{"gaudi_copy", "gaudi_copy"};

    uct_md_mem_attr_v2_t query(uint64_t address, std::size_t length, uint64_t mask,
                               ucs_status_t expected = UCS_OK) {
        uct_md_mem_attr_v2_t attr{};
        attr.field_mask = mask;
        EXPECT_EQ(uct_md_mem_query_v2(domain.md, reinterpret_cast<void*>(address), length, &attr), expected);
        return attr;
    }
    uct_mem_h registered(uint64_t address, std::size_t length, ucs_status_t expected = UCS_OK) {
        uct_md_mem_reg_params_t params{};
        params.field_mask = UCT_MD_MEM_REG_FIELD_FLAGS;
        params.flags = UCT_MD_MEM_ACCESS_ALL | UCT_MD_MEM_FLAG_HIDE_ERRORS;
        uct_mem_h memh = nullptr;
        EXPECT_EQ(uct_md_mem_reg_v2(domain.md, reinterpret_cast<void*>(address), length, &params, &memh),
                  expected);
        return memh;
    }
    memory_key packed(uct_mem_h memh) {
        memory_key key;
        uct_md_mkey_pack_params_t params{};
        EXPECT_EQ(uct_md_mkey_pack_v2(domain.md, memh, nullptr, 0, &params, &key), UCS_OK);
        return key;
    }
    std::optional<uct_rkey_bundle_t> unpacked(const memory_key& key) {
        uct_rkey_bundle_t bundle{};
        if (uct_rkey_unpack(domain.component, &key, &bundle) != UCS_OK)
            return std::nullopt;
        return bundle;
    }
};

constexpr uint64_t type_and_place = UCT_MD_MEM_ATTR_V2_FIELD_MEM_TYPE | UCT_MD_MEM_ATTR_V2_FIELD_SYS_DEV |
                                    UCT_MD_MEM_ATTR_V2_FIELD_BASE_ADDRESS |
                                    UCT_MD_MEM_ATTR_V2_FIELD_ALLOC_LENGTH |
                                    UCT_MD_MEM_ATTR_V2_FIELD_MEM_FLAGS;
constexpr uint64_t dmabuf = UCT_MD_MEM_ATTR_V2_FIELD_DMABUF_FD | UCT_MD_MEM_ATTR_V2_FIELD_DMABUF_OFFSET;

// ---- memory ----

TEST_F(uct_case, allocated_memory_is_known_in_all_its_parts) {
    const allocated memory(domain, 1 << 20);
    EXPECT_EQ(memory.memory.mem_type, UCS_MEMORY_TYPE_GAUDI);
    for (const uint64_t into : {0ULL, 1ULL, 4096ULL, (1ULL << 20) - 1}) {
        const auto attr = query(memory.number() + into, 1, type_and_place);
        EXPECT_EQ(attr.mem_type, UCS_MEMORY_TYPE_GAUDI);
        EXPECT_NE(attr.sys_dev, UCS_SYS_DEVICE_ID_UNKNOWN);
        EXPECT_EQ(attr.base_address, memory.memory.address);
        EXPECT_EQ(attr.alloc_length, 1U << 20);
        EXPECT_EQ(attr.mem_flags, UCS_MEM_FLAG_REGISTRABLE);
    }
}

TEST_F(uct_case, a_dmabuf_comes_with_the_offset_of_the_address) {
    const allocated first(domain, 1 << 20), second(domain, 1 << 20);
    const auto one = query(first.number(), 1 << 20, dmabuf),
               two = query(second.number() + 8192, 4096, dmabuf);
    EXPECT_GE(one.dmabuf_fd, 0);
    EXPECT_GE(two.dmabuf_fd, 0);
    EXPECT_NE(one.dmabuf_fd, two.dmabuf_fd); // each is its asker's to close
    EXPECT_EQ(two.dmabuf_offset - one.dmabuf_offset, second.number() + 8192 - first.number());
    EXPECT_NE(::fcntl(one.dmabuf_fd, F_GETFD) & FD_CLOEXEC, 0);
    ::close(one.dmabuf_fd);
    ::close(two.dmabuf_fd);
}

TEST_F(uct_case, small_memory_may_be_asked_for_by_its_page) {
    const allocated one(domain, 100), two(domain, 100); // they share a page
    ASSERT_EQ(one.number() / 4096, two.number() / 4096);
    const auto page = one.number() / 4096 * 4096;
    const auto attr = query(page, 4096, dmabuf);
    EXPECT_GE(attr.dmabuf_fd, 0);
    ::close(attr.dmabuf_fd);
    const auto memh = registered(page, 4096);
    uct_md_mem_dereg(domain.md, memh);
}

TEST_F(uct_case, host_memory_is_none_of_ours) {
    int on_stack = 0;
    query(reinterpret_cast<uint64_t>(&on_stack), sizeof(on_stack), type_and_place, UCS_ERR_INVALID_ADDR);
    ucs_memory_type_t type = UCS_MEMORY_TYPE_LAST;
    EXPECT_EQ(uct_md_detect_memory_type(domain.md, &on_stack, sizeof(on_stack), &type), UCS_ERR_INVALID_ADDR);
}

TEST_F(uct_case, a_range_over_two_allocations_is_refused) {
    const allocated one(domain, 1 << 20), two(domain, 1 << 20);
    const auto low = std::min(one.number(), two.number());
    query(low, 2 << 20, dmabuf, UCS_ERR_INVALID_ADDR);
    (void)registered(low, 2 << 20, UCS_ERR_INVALID_ADDR);
    (void)registered(low + (1 << 20) - 8192, 16384, UCS_ERR_INVALID_ADDR);
}

TEST_F(uct_case, freed_memory_is_forgotten_and_still_no_host_memory) {
    uint64_t gone = 0;
    const allocated stays(domain, 4096); // the device stays open
    {
        const allocated goes(domain, 1 << 20);
        gone = goes.number();
        const auto attr = query(gone, 4096, dmabuf);
        ::close(attr.dmabuf_fd);
    }
    query(gone, 4096, dmabuf, UCS_ERR_INVALID_ADDR);
    (void)registered(gone, 4096, UCS_ERR_INVALID_ADDR);
    ucs_memory_info_t info{};
    EXPECT_EQ(ucs_memtype_cache_lookup(reinterpret_cast<void*>(gone), 8, &info), UCS_OK);
    EXPECT_EQ(info.type, UCS_MEMORY_TYPE_GAUDI); // a CPU that touches it dies all the same
}

TEST_F(uct_case, memory_of_the_library_is_the_same_memory) {
    const auto device = gaudi::expect(gaudi::open_device());
    const auto buffer = gaudi::expect(device->heap().allocate(65536));
    ucs_memory_info_t info{};
    EXPECT_EQ(ucs_memtype_cache_lookup(reinterpret_cast<void*>(buffer.address().value()), 65536, &info),
              UCS_OK);
    EXPECT_EQ(info.type, UCS_MEMORY_TYPE_GAUDI);
    const auto attr = query(buffer.address().value() + 100, 8, type_and_place);
    EXPECT_EQ(attr.base_address, reinterpret_cast<void*>(buffer.address().value()));
    EXPECT_EQ(attr.alloc_length, 65536U);
    EXPECT_EQ(attr.sys_dev, info.sys_dev);
}

TEST_F(uct_case, a_full_device_says_so) {
    const allocated most(domain, 60ULL << 30);
    try {
        const allocated more(domain, 60ULL << 30);
        FAIL() << "more memory than there is";
    } catch (const std::exception& why) {
        EXPECT_STREQ(why.what(), "uct_mem_alloc: Out of memory");
    }
    const allocated rest(domain, 1 << 20); // nothing was lost
}

TEST_F(uct_case, a_child_of_fork_gets_errors_and_leaves_the_parent_alone) {
    copier copies(domain);
    const allocated memory(domain, 65536);
    uint64_t word = 5, found = 0;
    ASSERT_EQ(uct_ep_put_short(copies.ep, &word, 8, memory.number(), UCT_INVALID_RKEY), UCS_OK);
    const auto child = ::fork();
    if (child == 0) {
        // Its parent's device is not its own: no crash, no copy, and nothing of the parent's is closed.
        uint64_t other = 6;
        const bool refused =
            uct_ep_put_short(copies.ep, &other, 8, memory.number(), UCT_INVALID_RKEY) != UCS_OK;
        ::_exit(refused ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    ASSERT_EQ(uct_ep_get_short(copies.ep, &found, 8, memory.number(), UCT_INVALID_RKEY), UCS_OK);
    EXPECT_EQ(found, word);
}

TEST_F(uct_case, what_cannot_be_allocated_is_refused) {
    const uct_alloc_method_t methods[] = {UCT_ALLOC_METHOD_MD};
    uct_md_h mds[] = {domain.md};
    uct_mem_alloc_params_t params{};
    params.field_mask = UCT_MEM_ALLOC_PARAM_FIELD_FLAGS | UCT_MEM_ALLOC_PARAM_FIELD_MDS |
                        UCT_MEM_ALLOC_PARAM_FIELD_MEM_TYPE | UCT_MEM_ALLOC_PARAM_FIELD_ADDRESS;
    params.mds.mds = mds;
    params.mds.count = 1;
    params.mem_type = UCS_MEMORY_TYPE_GAUDI;
    params.flags = UCT_MD_MEM_ACCESS_ALL | UCT_MD_MEM_FLAG_HIDE_ERRORS;
    uct_allocated_memory_t memory{};
    EXPECT_NE(uct_mem_alloc(1ULL << 40, methods, 1, &params, &memory), UCS_OK); // more than a device has
    params.flags |= UCT_MD_MEM_FLAG_FIXED;
    params.address = reinterpret_cast<void*>(0x1001500000000000);
    EXPECT_NE(uct_mem_alloc(4096, methods, 1, &params, &memory), UCS_OK); // the driver places memory itself
    params.flags = UCT_MD_MEM_ACCESS_ALL;
    params.mem_type = UCS_MEMORY_TYPE_CUDA;
    EXPECT_NE(uct_mem_alloc(4096, methods, 1, &params, &memory), UCS_OK);
}

// ---- keys ----

TEST_F(uct_case, keys_name_allocation_and_process_and_no_descriptor) {
    const allocated memory(domain, 65536);
    const auto key = packed(memory.memory.memh);
    EXPECT_EQ(key.kind, memory_key::device);
    EXPECT_EQ(key.base, memory.number());
    EXPECT_EQ(key.length, 65536U);
    EXPECT_EQ(key.pid, static_cast<uint32_t>(::getpid()));
    EXPECT_NE(key.generation, 0U);
    const auto one = unpacked(key), two = unpacked(key);
    ASSERT_TRUE(one && two);
    int order = 1;
    uct_rkey_compare_params_t none{};
    EXPECT_EQ(uct_rkey_compare(domain.component, one->rkey, two->rkey, &none, &order), UCS_OK);
    EXPECT_EQ(order, 0);
    uct_rkey_release(domain.component, &*one);
    uct_rkey_release(domain.component, &*two);
}

TEST_F(uct_case, damaged_keys_are_refused) {
    const allocated memory(domain, 65536);
    const auto good = packed(memory.memory.memh);
    auto magic = good, version = good, flipped = good, empty = good;
    magic.magic ^= 1;
    version.version = 2;
    version.seal();
    flipped.generation ^= 1;
    empty.length = 0;
    empty.seal();
    for (const auto& bad : {magic, version, flipped, empty})
        EXPECT_FALSE(unpacked(bad));
    EXPECT_TRUE(unpacked(good));
}

TEST_F(uct_case, short_keys_and_those_of_others_cannot_be_attached) {
    const allocated memory(domain, 65536);
    auto key = packed(memory.memory.memh);
    uct_md_mem_attach_params_t params{};
    params.field_mask = UCT_MD_MEM_ATTACH_FIELD_FLAGS | UCT_MD_MEM_ATTACH_FIELD_MKEY_SIZE;
    params.flags = UCT_MD_MEM_ATTACH_FLAG_HIDE_ERRORS;
    params.mkey_size = sizeof(key);
    uct_mem_h memh = nullptr;
    ASSERT_EQ(uct_md_mem_attach(domain.md, &key, &params, &memh), UCS_OK);
    uct_md_mem_dereg(domain.md, memh);
    params.mkey_size = 16;
    EXPECT_EQ(uct_md_mem_attach(domain.md, &key, &params, &memh), UCS_ERR_INVALID_PARAM);
    params.mkey_size = sizeof(key);
    key.process ^= 1;
    key.seal();
    EXPECT_EQ(uct_md_mem_attach(domain.md, &key, &params, &memh), UCS_ERR_UNREACHABLE);
}

TEST_F(uct_case, a_key_opens_its_own_memory_and_no_other) {
    copier copies(domain);
    const allocated memory(domain, 65536);
    const auto key = unpacked(packed(memory.memory.memh));
    ASSERT_TRUE(key);
    uint64_t word = 42;
    EXPECT_EQ(uct_ep_put_short(copies.ep, &word, 8, memory.number() + 65528, key->rkey), UCS_OK);
    EXPECT_EQ(uct_ep_put_short(copies.ep, &word, 8, memory.number() + 65532, key->rkey),
              UCS_ERR_INVALID_PARAM);
    EXPECT_EQ(uct_ep_put_short(copies.ep, &word, 8, memory.number() - 8, key->rkey), UCS_ERR_INVALID_PARAM);
    auto foreign = packed(memory.memory.memh);
    foreign.process ^= 1;
    foreign.seal();
    const auto other = unpacked(foreign);
    ASSERT_TRUE(other);
    EXPECT_EQ(uct_ep_put_short(copies.ep, &word, 8, memory.number(), other->rkey), UCS_ERR_INVALID_PARAM);
    uct_rkey_release(domain.component, &*key);
    uct_rkey_release(domain.component, &*other);
}

TEST_F(uct_case, a_key_dies_with_its_allocation) {
    copier copies(domain);
    const allocated keeps(domain, 4096);
    std::optional<uct_rkey_bundle_t> key;
    uint64_t where = 0, word = 1;
    {
        const allocated first(domain, 65536);
        where = first.number();
        key = unpacked(packed(first.memory.memh));
        ASSERT_TRUE(key);
        EXPECT_EQ(uct_ep_put_short(copies.ep, &word, 8, where, key->rkey), UCS_OK);
    }
    EXPECT_EQ(uct_ep_put_short(copies.ep, &word, 8, where, key->rkey), UCS_ERR_INVALID_PARAM);
    const allocated second(domain, 65536);
    ASSERT_EQ(second.number(), where); // the same place, another allocation
    EXPECT_EQ(uct_ep_put_short(copies.ep, &word, 8, where, key->rkey), UCS_ERR_INVALID_PARAM);
    uct_rkey_release(domain.component, &*key);
}

// ---- copies ----

// Starts a zcopy and drives it to its end.
ucs_status_t complete(copier& copies, bool put, void* local, std::size_t length, uint64_t remote,
                      uct_mem_h memh = nullptr) {
    finished done;
    uct_iov_t iov{local, length, memh, 0, 1};
    const auto status = put ? uct_ep_put_zcopy(copies.ep, &iov, 1, remote, UCT_INVALID_RKEY, &done.comp)
                            : uct_ep_get_zcopy(copies.ep, &iov, 1, remote, UCT_INVALID_RKEY, &done.comp);
    if (status != UCS_INPROGRESS)
        return status;
    while (done.times == 0)
        copies.progress();
    EXPECT_EQ(done.times, 1);
    return done.comp.status;
}

TEST_F(uct_case, every_way_of_copying_moves_every_byte) {
    copier copies(domain);
    for (const std::size_t size : {1UL, 8UL, 255UL, 256UL, 4097UL, 32768UL, 1000003UL}) {
        const allocated one(domain, size), two(domain, size);
        auto out = numbered(size, 1);
        std::vector<std::byte> back(size);
        // short, of any size: UCX itself goes beyond the limit
        ASSERT_EQ(uct_ep_put_short(copies.ep, out.data(), static_cast<unsigned>(size), one.number(),
                                   UCT_INVALID_RKEY),
                  UCS_OK);
        ASSERT_EQ(uct_ep_get_short(copies.ep, back.data(), static_cast<unsigned>(size), one.number(),
                                   UCT_INVALID_RKEY),
                  UCS_OK);
        EXPECT_EQ(out, back) << size;
        // device to device, both directions
        ASSERT_EQ(complete(copies, true, one.memory.address, size, two.number()), UCS_OK);
        std::fill(back.begin(), back.end(), std::byte{0});
        ASSERT_EQ(complete(copies, false, back.data(), size, two.number()), UCS_OK);
        EXPECT_EQ(out, back) << size;
        // registered host memory
        out = numbered(size, 2);
        const auto memh = registered(reinterpret_cast<uint64_t>(out.data()), size);
        ASSERT_EQ(complete(copies, true, out.data(), size, one.number(), memh), UCS_OK);
        ASSERT_EQ(complete(copies, false, two.memory.address, size, one.number()), UCS_OK);
        uct_md_mem_dereg(domain.md, memh);
        ASSERT_EQ(complete(copies, false, back.data(), size, two.number()), UCS_OK);
        EXPECT_EQ(out, back) << size;
        if (size > 32768)
            continue;
        out = numbered(size, 3);
        struct packing {
            const std::vector<std::byte>* from;
        } packing{&out};
        const auto moved = uct_ep_put_bcopy(
            copies.ep,
            [](void* to, void* arg) {
                const auto& from = *static_cast<struct packing*>(arg)->from;
                std::memcpy(to, from.data(), from.size());
                return from.size();
            },
            &packing, one.number(), UCT_INVALID_RKEY);
        EXPECT_EQ(moved, static_cast<ssize_t>(size));
        std::fill(back.begin(), back.end(), std::byte{0});
        ASSERT_EQ(uct_ep_get_bcopy(
                      copies.ep,
                      [](void* to, const void* data, size_t length) { std::memcpy(to, data, length); },
                      back.data(), size, one.number(), UCT_INVALID_RKEY, nullptr),
                  UCS_OK);
        EXPECT_EQ(out, back) << size;
    }
}

TEST_F(uct_case, a_flush_ends_after_all_before_it) {
    copier copies(domain);
    const allocated memory(domain, 64 << 20);
    auto out = numbered(4 << 20, 5);
    std::vector<finished> each(16);
    for (std::size_t i = 0; i < each.size(); ++i) {
        uct_iov_t iov{out.data(), out.size(), nullptr, 0, 1};
        ASSERT_EQ(uct_ep_put_zcopy(copies.ep, &iov, 1, memory.number() + i * out.size(), UCT_INVALID_RKEY,
                                   &each[i].comp),
                  UCS_INPROGRESS);
    }
    finished flushed;
    ASSERT_EQ(uct_iface_flush(copies.iface, UCT_FLUSH_FLAG_LOCAL, &flushed.comp), UCS_INPROGRESS);
    while (flushed.times == 0) {
        copies.progress();
    }
    for (const auto& copy : each)
        EXPECT_EQ(copy.times, 1); // and not a moment later
    EXPECT_EQ(uct_iface_flush(copies.iface, UCT_FLUSH_FLAG_LOCAL, nullptr), UCS_OK);
}

TEST_F(uct_case, a_fence_orders_copies) {
    copier copies(domain);
    const allocated memory(domain, 32 << 20);
    for (unsigned round = 0; round < 8; ++round) {
        auto large = numbered(32 << 20, round);
        finished first, second;
        uct_iov_t iov{large.data(), large.size(), nullptr, 0, 1};
        ASSERT_EQ(uct_ep_put_zcopy(copies.ep, &iov, 1, memory.number(), UCT_INVALID_RKEY, &first.comp),
                  UCS_INPROGRESS);
        ASSERT_EQ(uct_ep_fence(copies.ep, 0), UCS_OK);
        std::byte last{99}, found{0};
        ASSERT_EQ(uct_ep_put_short(copies.ep, &last, 1, memory.number() + large.size() - 1, UCT_INVALID_RKEY),
                  UCS_OK);
        while (first.times == 0)
            copies.progress();
        ASSERT_EQ(
            uct_ep_get_short(copies.ep, &found, 1, memory.number() + large.size() - 1, UCT_INVALID_RKEY),
            UCS_OK);
        EXPECT_EQ(found, last);
    }
}

// Completions that start the next copy behind a fence, while others are still under way.
TEST_F(uct_case, a_callback_may_copy_behind_a_fence) {
    copier copies(domain);
    const allocated memory(domain, 32 << 20);
    auto out = numbered(4 << 20, 3);
    struct chain {
        uct_completion_t comp{};
        copier* copies = nullptr;
        uct_iov_t iov{};
        uint64_t to = 0;
        int left = 0, ended = 0;
    };
    std::vector<chain> chains(6);
    const auto post = [](chain& each) {
        each.comp.count = 1;
        uct_ep_fence(each.copies->ep, 0);
        ASSERT_EQ(uct_ep_put_zcopy(each.copies->ep, &each.iov, 1, each.to, UCT_INVALID_RKEY, &each.comp),
                  UCS_INPROGRESS);
    };
    for (std::size_t i = 0; i < chains.size(); ++i) {
        auto& each = chains[i];
        each.copies = &copies;
        each.iov = {out.data(), out.size(), nullptr, 0, 1};
        each.to = memory.number() + i * out.size();
        each.left = 4;
        each.comp.func = [](uct_completion_t* self) {
            auto& own = *reinterpret_cast<chain*>(self);
            ++own.ended;
            if (--own.left == 0)
                return;
            own.comp.count = 1;
            uct_ep_fence(own.copies->ep, 0);
            EXPECT_EQ(uct_ep_put_zcopy(own.copies->ep, &own.iov, 1, own.to, UCT_INVALID_RKEY, &own.comp),
                      UCS_INPROGRESS);
        };
        post(each);
    }
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (std::any_of(chains.begin(), chains.end(), [](const auto& each) { return each.left != 0; })) {
        copies.progress();
        ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    }
    for (int i = 0; i < 1000; ++i)
        copies.progress();
    for (const auto& each : chains) {
        EXPECT_EQ(each.ended, 4); // not once more
        EXPECT_EQ(each.comp.status, UCS_OK);
    }
}

TEST_F(uct_case, a_sleeper_is_woken_by_the_end_of_a_copy) {
    copier copies(domain);
    int event = -1;
    ASSERT_EQ(uct_iface_event_fd_get(copies.iface, &event), UCS_OK);
    const allocated memory(domain, 32 << 20);
    auto out = numbered(32 << 20, 9);
    for (int round = 0; round < 5; ++round) {
        finished done;
        uct_iov_t iov{out.data(), out.size(), nullptr, 0, 1};
        ASSERT_EQ(uct_ep_put_zcopy(copies.ep, &iov, 1, memory.number(), UCT_INVALID_RKEY, &done.comp),
                  UCS_INPROGRESS);
        while (done.times == 0) {
            if (const auto armed = uct_iface_event_arm(copies.iface, UCT_EVENT_SEND_COMP); armed == UCS_OK) {
                pollfd waiting{event, POLLIN, 0};
                ASSERT_EQ(::poll(&waiting, 1, 10000), 1) << "nothing woke the sleeper";
            } else
                ASSERT_EQ(armed, UCS_ERR_BUSY);
            copies.progress();
        }
    }
}

TEST_F(uct_case, copies_of_freed_memory_fail) {
    copier copies(domain);
    const allocated stays(domain, 4096);
    uint64_t gone = 0;
    {
        const allocated goes(domain, 65536);
        gone = goes.number();
    }
    std::uint64_t word = 0;
    EXPECT_EQ(uct_ep_get_short(copies.ep, &word, 8, gone, UCT_INVALID_RKEY), UCS_ERR_INVALID_ADDR);
    EXPECT_EQ(uct_ep_put_short(copies.ep, &word, 8, stays.number() + 4092, UCT_INVALID_RKEY),
              UCS_ERR_INVALID_ADDR);
}

// ---- the whole ----

TEST_F(uct_case, several_domains_and_interfaces_share_a_device) {
    memory_domain second("gaudi_copy", "gaudi_copy");
    copier here(domain), there(second);
    const allocated mine(domain, 4096), yours(second, 4096);
    uint64_t word = 7, found = 0;
    ASSERT_EQ(uct_ep_put_short(here.ep, &word, 8, yours.number(), UCT_INVALID_RKEY), UCS_OK);
    ASSERT_EQ(uct_ep_get_short(there.ep, &found, 8, yours.number(), UCT_INVALID_RKEY), UCS_OK);
    EXPECT_EQ(found, word);
}

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
    for (int tries = 0; tries < 10 && last == UCS_OK; ++tries)
        last = complete(copies, true, out.data(), out.size(), memory.number());
    EXPECT_EQ(last, UCS_ERR_IO_ERROR);
    const auto begin = std::chrono::steady_clock::now();
    uint64_t word = 1;
    EXPECT_EQ(uct_ep_put_short(copies.ep, &word, 8, memory.number(), UCT_INVALID_RKEY), UCS_ERR_IO_ERROR);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
}

TEST(uct_life, counters_and_devices_are_files_of_vfs) {
    memory_domain domain("gaudi_copy", "gaudi_copy");
    const allocated memory(domain, 65536);
    const auto shown = [](const char* name) {
        ucs_string_buffer_t text;
        ucs_string_buffer_init(&text);
        const auto path = std::string("/uct/component/gaudi_copy/memory_domain/gaudi_copy/") + name;
        EXPECT_EQ(ucs_vfs_path_read_file(path.c_str(), &text), UCS_OK) << path;
        const std::string copied = ucs_string_buffer_cstr(&text);
        ucs_string_buffer_cleanup(&text);
        return copied;
    };
    EXPECT_NE(shown("counters").find("gaudi_copy: "), std::string::npos);
    EXPECT_NE(shown("devices").find("65536 bytes in 1 buffers, 1 chunks"), std::string::npos)
        << shown("devices");
}

TEST(uct_life, a_hundred_openings_leave_nothing) {
    std::size_t before = 0;
    for (int round = 0; round < 100; ++round) {
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

TEST(uct_life, memory_of_synapse_is_found_whenever_it_comes) {
    memory_domain domain("gaudi_copy", "gaudi_copy");
    void* synapse = ::dlopen(FAKE_SYNAPSE, RTLD_NOW | RTLD_GLOBAL);
    ASSERT_NE(synapse, nullptr) << ::dlerror();
    const auto acquire =
        reinterpret_cast<int (*)(const char*, uint64_t)>(::dlsym(synapse, "fake_synapse_acquire"));
    const auto pool = reinterpret_cast<uint64_t (*)()>(::dlsym(synapse, "fake_synapse_pool"));
    const auto release = reinterpret_cast<void (*)()>(::dlsym(synapse, "fake_synapse_release"));
    ASSERT_TRUE(acquire != nullptr && pool != nullptr && release != nullptr);
    ASSERT_EQ(acquire(gaudi::expect(gaudi::list_devices()).at(0).bus_id.c_str(), 1536ULL << 20), 0);
    const auto address = pool();
    ucs_memory_info_t info{};
    // Unknown, not missing: UCX asks us.
    EXPECT_EQ(ucs_memtype_cache_lookup(reinterpret_cast<void*>(address), 4096, &info), UCS_OK);
    ucs_memory_type_t type = UCS_MEMORY_TYPE_LAST;
    EXPECT_EQ(uct_md_detect_memory_type(domain.md, reinterpret_cast<void*>(address + 12345), 8, &type),
              UCS_OK);
    EXPECT_EQ(type, UCS_MEMORY_TYPE_GAUDI);
    EXPECT_EQ(ucs_memtype_cache_lookup(reinterpret_cast<void*>(address), 4096, &info), UCS_OK);
    EXPECT_EQ(info.type, UCS_MEMORY_TYPE_GAUDI); // from now on without a question
    uct_md_mem_attr_v2_t attr{};
    attr.field_mask = dmabuf;
    ASSERT_EQ(uct_md_mem_query_v2(domain.md, reinterpret_cast<void*>(address + 65536), 4096, &attr), UCS_OK);
    EXPECT_GE(attr.dmabuf_fd, 0);
    ::close(attr.dmabuf_fd);
    {
        // Its queues are its own: it copies itself, or a NIC does.
        copier copies(domain);
        auto out = numbered(100000, 4);
        std::vector<std::byte> back(out.size());
        const auto put = uct_ep_put_short(copies.ep, out.data(), 100000, address + 4096, UCT_INVALID_RKEY);
        const auto get = uct_ep_get_short(copies.ep, back.data(), 100000, address + 4096, UCT_INVALID_RKEY);
        EXPECT_EQ(put, UCS_OK);
        EXPECT_EQ(get, UCS_OK);
        EXPECT_EQ(out, back);
    }
    release();
}

// In a lab of Gaudi3, which have no queues for users.
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

} // namespace
