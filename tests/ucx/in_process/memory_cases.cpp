// SPDX-License-Identifier: BSD-3-Clause
// The memory domain gaudi_copy, call by call: allocations, queries, keys. Runs in the lab, under either UCX.
#include "tests/ucx/in_process/uct_case.hpp"

#include <gaudi/device.hpp>

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

using namespace testing_ucx;

constexpr uint64_t type_and_place = UCT_MD_MEM_ATTR_V2_FIELD_MEM_TYPE | UCT_MD_MEM_ATTR_V2_FIELD_SYS_DEV |
                                    UCT_MD_MEM_ATTR_V2_FIELD_BASE_ADDRESS |
                                    UCT_MD_MEM_ATTR_V2_FIELD_ALLOC_LENGTH |
                                    UCT_MD_MEM_ATTR_V2_FIELD_MEM_FLAGS;

TEST_F(uct_case, a_device_opens_with_the_first_allocation) {
    const auto open = [] { return gaudi::find_open_device(0) || gaudi::find_open_device(1); };
    const copier copies(domain);
    EXPECT_FALSE(open());
    {
        const allocated memory(domain, 4096);
        EXPECT_TRUE(open());
    }
    EXPECT_TRUE(open()) << "it stays open with its domain";
}

TEST_F(uct_case, allocated_memory_is_known_in_all_its_parts) {
    const allocated memory(domain, 1 << 20);
    EXPECT_EQ(memory.memory.mem_type, UCS_MEMORY_TYPE_GAUDI);
    for (const uint64_t into : {0ULL, 1ULL, 4096ULL, (1ULL << 20) - 1}) {
        const auto attr = query(memory.number() + into, 1, type_and_place);
        EXPECT_EQ(attr.mem_type, UCS_MEMORY_TYPE_GAUDI);
        EXPECT_EQ(attr.sys_dev != UCS_SYS_DEVICE_ID_UNKNOWN, first_gaudi_is_in_sysfs());
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
    EXPECT_NE(one.dmabuf_fd, two.dmabuf_fd); // each caller closes its own
    EXPECT_EQ(two.dmabuf_offset - one.dmabuf_offset, second.number() + 8192 - first.number());
    EXPECT_NE(::fcntl(one.dmabuf_fd, F_GETFD) & FD_CLOEXEC, 0);
    ::close(one.dmabuf_fd);
    ::close(two.dmabuf_fd);
}

TEST_F(uct_case, small_memory_may_be_asked_for_by_its_page) {
    const allocated opens_the_device(domain, 100);
    auto& heap = gaudi::find_open_device(0)->heap();
    const auto one = gaudi::expect(heap.allocate(100)), two = gaudi::expect(heap.allocate(100));
    ASSERT_EQ(one.address().value() / 4096, two.address().value() / 4096) << "they share a page";
    const auto page = one.address().value() / 4096 * 4096;
    const auto attr = query(page, 4096, dmabuf);
    EXPECT_GE(attr.dmabuf_fd, 0);
    ::close(attr.dmabuf_fd);
    const auto memh = registered(page, 4096);
    // The key of the page opens the allocations that exist at registration.
    const own_key key(domain, packed(memh));
    copier copies(domain);
    uint64_t word = 7, back = 0;
    for (const auto* each : {&one, &two}) {
        const auto at = each->address().value() + 92;
        EXPECT_EQ(uct_ep_put_short(copies.ep, &word, 8, at, key.rkey()), UCS_OK);
        EXPECT_EQ(uct_ep_get_short(copies.ep, &back, 8, at, key.rkey()), UCS_OK);
        EXPECT_EQ(back, word++);
    }
    const auto three = gaudi::expect(heap.allocate(100));
    ASSERT_EQ(three.address().value() / 4096, page / 4096);
    EXPECT_EQ(uct_ep_put_short(copies.ep, &word, 8, three.address().value(), key.rkey()),
              UCS_ERR_INVALID_PARAM);
    uct_md_mem_dereg(domain.md, memh);
}

// UCX registers whole pages with the NIC, so its allocations share no page.
TEST_F(uct_case, memory_that_ucx_allocates_shares_no_page) {
    const allocated one(domain, 100), two(domain, 100);
    for (const auto* each : {&one, &two}) {
        EXPECT_EQ(each->number() % 4096, 0U);
        const auto attr = query(each->number() + 5, 1, type_and_place);
        EXPECT_EQ(attr.base_address, each->memory.address);
        EXPECT_EQ(attr.alloc_length, 100U) << "the range of the allocation, not of the chunk";
    }
    EXPECT_NE(one.number(), two.number());
}

TEST_F(uct_case, host_memory_is_not_detected_as_gaudi) {
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
        (void)query(gone, 4096, type_and_place); // as UCX does before it uses memory
        const auto attr = query(gone, 4096, dmabuf);
        ::close(attr.dmabuf_fd);
    }
    query(gone, 4096, dmabuf, UCS_ERR_INVALID_ADDR);
    (void)registered(gone, 4096, UCS_ERR_INVALID_ADDR);
    ucs_memory_info_t info{};
    EXPECT_EQ(ucs_memtype_cache_lookup(reinterpret_cast<void*>(gone), 8, &info), UCS_OK);
    EXPECT_EQ(info.type, UCS_MEMORY_TYPE_GAUDI); // still not accessible to the CPU
}

TEST_F(uct_case, memory_of_the_library_is_the_same_memory) {
    const auto device = gaudi::expect(gaudi::open_device());
    const auto buffer = gaudi::expect(device->heap().allocate(65536));
    ucs_memory_info_t info{};
    const auto cached = [&] {
        EXPECT_EQ(ucs_memtype_cache_lookup(reinterpret_cast<void*>(buffer.address().value()), 65536, &info),
                  UCS_OK);
        return info.type;
    };
    EXPECT_NE(cached(), UCS_MEMORY_TYPE_HOST); // UCX queries the plugin for memory not in its cache
    const auto attr = query(buffer.address().value() + 100, 8, type_and_place);
    EXPECT_EQ(cached(), UCS_MEMORY_TYPE_GAUDI) << "and once only";
    EXPECT_EQ(attr.base_address, reinterpret_cast<void*>(buffer.address().value()));
    EXPECT_EQ(attr.alloc_length, 65536U);
    EXPECT_EQ(attr.sys_dev, info.sys_dev);
}

// Records the free events that UCM sends to registration caches.
class announced_frees {
public:
    announced_frees() {
        const auto set = reinterpret_cast<decltype(&ucm_set_event_handler)>(
            ::dlsym(RTLD_DEFAULT, "ucm_set_event_handler"));
        if (set == nullptr)
            ADD_FAILURE() << "no ucm_set_event_handler";
        else
            EXPECT_EQ(set(UCM_EVENT_MEM_TYPE_FREE | UCM_EVENT_FLAG_NO_INSTALL, 1000, on_free, this), UCS_OK);
    }
    ~announced_frees() {
        if (const auto unset = reinterpret_cast<decltype(&ucm_unset_event_handler)>(
                ::dlsym(RTLD_DEFAULT, "ucm_unset_event_handler")))
            unset(UCM_EVENT_MEM_TYPE_FREE, on_free, this);
    }
    announced_frees(const announced_frees&) = delete;
    announced_frees& operator=(const announced_frees&) = delete;

    struct free {
        uint64_t address;
        std::size_t length;
        ucs_memory_type_t type;
        bool operator==(const free&) const = default;
    };
    std::vector<free> all;

private:
    static void on_free(ucm_event_type_t, ucm_event_t* event, void* self) {
        static_cast<announced_frees*>(self)->all.push_back(
            {reinterpret_cast<uint64_t>(event->mem_type.address), event->mem_type.size,
             event->mem_type.mem_type});
    }
};

TEST_F(uct_case, a_free_is_announced_to_ucm_once_with_address_and_length) {
    const allocated stays(domain, 4096); // the device stays open
    announced_frees frees;
    announced_frees::free expected{0, 0, UCS_MEMORY_TYPE_GAUDI};
    {
        const allocated of_ucx(domain, 100000);
        expected.address = of_ucx.number();
        expected.length = of_ucx.memory.length;
        EXPECT_TRUE(frees.all.empty());
    }
    EXPECT_GE(expected.length, 100000U);
    EXPECT_EQ(frees.all, std::vector{expected});
    frees.all.clear();
    {
        const auto device = gaudi::expect(gaudi::open_device());
        const auto of_library = gaudi::expect(device->heap().allocate(70001));
        expected.address = of_library.address().value();
        expected.length = of_library.size();
        EXPECT_TRUE(frees.all.empty());
    }
    EXPECT_GE(expected.length, 70001U);
    EXPECT_EQ(frees.all, std::vector{expected});
}

TEST_F(uct_case, a_full_device_says_so) {
    const allocated most(domain, 60ULL << 30);
    try {
        const allocated more(domain, 60ULL << 30);
        FAIL() << "more memory than there is";
    } catch (const std::exception& why) {
        EXPECT_STREQ(why.what(), "uct_mem_alloc: Out of memory");
    }
    const allocated rest(domain, 1 << 20); // nothing leaked
}

TEST_F(uct_case, a_child_of_fork_gets_errors_and_leaves_the_parent_alone) {
    copier copies(domain);
    const allocated memory(domain, 65536);
    uint64_t word = 5, found = 0;
    ucs_memory_type_t type = UCS_MEMORY_TYPE_LAST;
    ASSERT_EQ(uct_ep_put_short(copies.ep, &word, 8, memory.number(), UCT_INVALID_RKEY), UCS_OK);
    const auto child = ::fork();
    if (child == 0) {
        // The child must not use the parent's device: no crash, no copy, and the parent's stays open.
        uint64_t other = 6;
        std::vector<std::byte> large(100000);
        uct_md_mem_attr_v2_t attr{};
        attr.field_mask = dmabuf;
        uct_mem_h memh = nullptr;
        std::size_t length = 4096;
        void* address = nullptr;
        const auto alloc = [&] {
            return domain.md->ops->mem_alloc(domain.md, &length, &address, UCS_MEMORY_TYPE_GAUDI,
                                             UCS_SYS_DEVICE_ID_UNKNOWN, UCT_MD_MEM_ACCESS_ALL, "child",
                                             &memh);
        };
        const ucs_status_t all[] = {uct_ep_put_short(copies.ep, &other, 8, memory.number(), UCT_INVALID_RKEY),
                                    uct_ep_get_short(copies.ep, &other, 8, memory.number(), UCT_INVALID_RKEY),
                                    complete(copies, true, large.data(), 65536, memory.number()),
                                    uct_md_mem_query_v2(domain.md, memory.memory.address, 4096, &attr),
                                    uct_md_detect_memory_type(domain.md, memory.memory.address, 8, &type),
                                    alloc()};
        int wrong = 0;
        for (const auto status : all)
            wrong = wrong * 2 + (status < 0 ? 0 : 1);
        uct_allocated_memory_t gone = memory.memory;
        uct_mem_free(&gone);
        ::_exit(wrong);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    ASSERT_EQ(uct_ep_get_short(copies.ep, &found, 8, memory.number(), UCT_INVALID_RKEY), UCS_OK);
    EXPECT_EQ(found, word);
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
    const allocated another(domain, 65536);
    auto different = unpacked(packed(another.memory.memh));
    ASSERT_TRUE(different);
    int reverse = 0;
    EXPECT_EQ(uct_rkey_compare(domain.component, one->rkey, different->rkey, &none, &order), UCS_OK);
    EXPECT_EQ(uct_rkey_compare(domain.component, different->rkey, one->rkey, &none, &reverse), UCS_OK);
    EXPECT_NE(order, 0);
    EXPECT_NE(order < 0, reverse < 0);
    uct_rkey_release(domain.component, &*different);
    uct_rkey_release(domain.component, &*one);
    uct_rkey_release(domain.component, &*two);
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
    ASSERT_EQ(second.number(), where); // the same address, another allocation
    EXPECT_EQ(uct_ep_put_short(copies.ep, &word, 8, where, key->rkey), UCS_ERR_INVALID_PARAM);
    uct_rkey_release(domain.component, &*key);
}

} // namespace
