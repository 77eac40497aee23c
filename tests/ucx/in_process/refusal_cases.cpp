// SPDX-License-Identifier: BSD-3-Clause
// What gaudi_copy refuses, call by call: the status, one line in the log, and no leak. Runs in the lab, under
// either UCX.
#include "abi/hlthunk.h"
#include "tests/ucx/in_process/uct_case.hpp"

#include <gaudi/device.hpp>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <dlfcn.h>
#include <filesystem>
#include <fmt/format.h>
#include <optional>
#include <string_view>
#include <sys/mman.h>
#include <unistd.h>

namespace {

using namespace testing_ucx;

// Descriptors and device memory of this process.
struct belongings {
    std::size_t descriptors = 0;
    gaudi::heap_statistics heap;

    static belongings now() {
        belongings found;
        const std::filesystem::directory_iterator all("/proc/self/fd");
        found.descriptors = static_cast<std::size_t>(std::distance(begin(all), end(all)));
        found.heap = gaudi::process_statistics().heaps;
        return found;
    }
    bool operator==(const belongings& other) const {
        return descriptors == other.descriptors && heap.buffers == other.heap.buffers &&
               heap.buffer_bytes == other.heap.buffer_bytes;
    }
};

std::size_t count_of(std::string_view part, const std::string& text) {
    std::size_t count = 0;
    for (auto at = text.find(part); at != text.npos; at = text.find(part, at + 1))
        ++count;
    return count;
}

// Expects a call to fail. The first call may set things up; the second must leak nothing.
template <typename F>
void expect_refused(F&& call, ucs_status_t expected, std::string_view said) {
    (void)call();
    const auto before = belongings::now();
    ::testing::internal::CaptureStdout(); // where UCX logs to
    const auto status = call();
    const auto log = ::testing::internal::GetCapturedStdout();
    EXPECT_EQ(status, expected) << ucs_status_string(status);
    EXPECT_EQ(belongings::now(), before) << "something was left";
    EXPECT_EQ(count_of(" GAUDI ", log), said.empty() ? 0U : 1U) << log;
    EXPECT_NE(log.find(said), log.npos) << log;
}

// A function of hl-thunk itself, as other code in the process would call it.
void* hlthunk(const char* function) {
    void* const library = ::dlopen(std::getenv("GAUDI_DIRECT_HLTHUNK"), RTLD_NOW | RTLD_NOLOAD);
    void* const found = library != nullptr ? ::dlsym(library, function) : nullptr;
    if (found == nullptr)
        throw std::runtime_error(function);
    return found;
}

class uct_refusal : public uct_case {
protected:
    // Calls the domain directly: UCX merges the statuses of all methods that it tries.
    ucs_status_t allocate(const memory_domain& from, std::size_t length, unsigned flags,
                          ucs_memory_type_t type = UCS_MEMORY_TYPE_GAUDI, void* address = nullptr) {
        uct_mem_h memh = nullptr;
        const auto status =
            from.md->ops->mem_alloc(from.md, &length, &address, type, UCS_SYS_DEVICE_ID_UNKNOWN,
                                    UCT_MD_MEM_ACCESS_ALL | flags, "test", &memh);
        if (status == UCS_OK) {
            EXPECT_EQ(from.md->ops->mem_free(from.md, memh), UCS_OK);
        }
        return status;
    }
};

TEST_F(uct_refusal, allocations) {
    EXPECT_EQ(allocate(domain, 4096, 0), UCS_OK);
    expect_refused([&] { return allocate(domain, 1ULL << 40, 0); }, UCS_ERR_NO_MEMORY,
                   "buffer of 1099511627776 bytes");
    expect_refused([&] { return allocate(domain, 1ULL << 40, UCT_MD_MEM_FLAG_HIDE_ERRORS); },
                   UCS_ERR_NO_MEMORY, "");
    expect_refused(
        [&] {
            return allocate(domain, 4096, UCT_MD_MEM_FLAG_FIXED, UCS_MEMORY_TYPE_GAUDI,
                            reinterpret_cast<void*>(0x1001500000000000));
        },
        UCS_ERR_UNSUPPORTED, "4096 bytes of Gaudi memory at the fixed address 0x1001500000000000");
    expect_refused([&] { return allocate(domain, 4096, 0, UCS_MEMORY_TYPE_CUDA); }, UCS_ERR_UNSUPPORTED, "");
    expect_refused([&] { return allocate(domain, 0, 0); }, UCS_ERR_INVALID_PARAM, "0 bytes");
}

// torch.Tensor.data_ptr() of a tensor on a Gaudi. UCX takes it for host memory, and would crash on it.
TEST_F(uct_refusal, a_handle_of_pytorch_is_no_address_and_said_once) {
    const auto detected = [&](std::uint64_t address) {
        ucs_memory_type_t type = UCS_MEMORY_TYPE_LAST;
        return uct_md_detect_memory_type(domain.md, reinterpret_cast<void*>(address), 8, &type);
    };
    ::testing::internal::CaptureStdout(); // where UCX logs to
    for (const auto handle : {0x4000000100000000U, 0x8000040000000000U, 0x4000000100000000U})
        EXPECT_EQ(detected(handle), UCS_ERR_INVALID_ADDR) << std::hex << handle;
    EXPECT_EQ(detected(0x7fff00000000U), UCS_ERR_INVALID_ADDR) << "host memory";
    const auto log = ::testing::internal::GetCapturedStdout();
    EXPECT_EQ(count_of(" GAUDI ", log), 1U) << log;
    EXPECT_NE(log.find("experimental._data_ptr(tensor)"), log.npos) << log;
}

// These flags concern host memory; device memory is never paged, and its allocation does not block.
TEST_F(uct_refusal, flags_without_a_meaning_for_device_memory_are_none) {
    for (const unsigned flags : {UCT_MD_MEM_FLAG_NONBLOCK, UCT_MD_MEM_FLAG_LOCK})
        EXPECT_EQ(allocate(domain, 4096, flags), UCS_OK) << flags;
}

TEST_F(uct_refusal, devices) {
    const auto with = [&](const char* value) {
        const setting device("UCX_GAUDI_COPY_DEVICE", value);
        const memory_domain chosen("gaudi_copy", "gaudi_copy");
        return allocate(chosen, 4096, 0);
    };
    expect_refused([&] { return with("9"); }, UCS_ERR_NO_DEVICE, "(UCX_GAUDI_COPY_DEVICE=9): ");
    expect_refused([&] { return with("9"); }, UCS_ERR_NO_DEVICE, "index 9; there are: 0 (");
    expect_refused([&] { return with("0000:ff:00.0"); }, UCS_ERR_NO_DEVICE, "bus id 0000:ff:00.0");
    // Other code holds the device: hl-thunk opens a device only once.
    const auto busy = [&] { return with("1"); };
    EXPECT_EQ(busy(), UCS_OK);
    const auto open = reinterpret_cast<int (*)(int, const char*)>(hlthunk("hlthunk_open"));
    const auto close = reinterpret_cast<int (*)(int)>(hlthunk("hlthunk_close"));
    const int fd = open(HLTHUNK_DEVICE_DONT_CARE, "0000:1a:00.0");
    ASSERT_GE(fd, 0);
    expect_refused(busy, UCS_ERR_BUSY, "hlthunk_open of 0000:1a:00.0");
    EXPECT_EQ(close(fd), 0);
    EXPECT_EQ(busy(), UCS_OK);
}

TEST_F(uct_refusal, settings) {
    const auto open_with = [](const char* name, const char* value) {
        return [=] {
            const setting wrong(name, value);
            const auto component = find_component("gaudi_copy");
            uct_md_config_t* config = nullptr;
            check(uct_md_config_read(component, nullptr, nullptr, &config), "uct_md_config_read");
            uct_md_h md = nullptr;
            const auto status = uct_md_open(component, "gaudi_copy", config, &md);
            uct_config_release(config);
            return status;
        };
    };
    expect_refused(open_with("UCX_GAUDI_COPY_QUEUES", "9"), UCS_ERR_INVALID_PARAM,
                   "UCX_GAUDI_COPY_QUEUES=9: use 1 to 4");
    expect_refused(open_with("UCX_GAUDI_COPY_DEVICE", "first"), UCS_ERR_INVALID_PARAM,
                   "UCX_GAUDI_COPY_DEVICE=first: use auto");
    expect_refused(open_with("UCX_GAUDI_COPY_HEAP_CHUNK", "0"), UCS_ERR_INVALID_PARAM,
                   "UCX_GAUDI_COPY_HEAP_CHUNK=0: use 1 to");
    expect_refused(open_with("UCX_GAUDI_COPY_LOG_LEVEL", "loud"), UCS_ERR_INVALID_PARAM,
                   "UCX_GAUDI_COPY_LOG_LEVEL=loud: use a level");
    expect_refused(open_with("UCX_GAUDI_COPY_NIC_MAX", "2m"), UCS_ERR_INVALID_PARAM,
                   "UCX_GAUDI_COPY_NIC_MAX=2097152: use 0 to 1048576");
}

TEST_F(uct_refusal, ranges) {
    const allocated one(domain, 1 << 20), two(domain, 1 << 20);
    const auto low = std::min(one.number(), two.number());
    ASSERT_EQ(std::max(one.number(), two.number()) - low, 1U << 20);
    const auto over_both = [&](uint64_t mask) {
        uct_md_mem_attr_v2_t attr{};
        attr.field_mask = mask;
        return uct_md_mem_query_v2(domain.md, reinterpret_cast<void*>(low), 2 << 20, &attr);
    };
    expect_refused([&] { return over_both(dmabuf); }, UCS_ERR_INVALID_ADDR, "");
    expect_refused(
        [&] {
            uct_md_mem_reg_params_t params{};
            uct_mem_h memh = nullptr;
            return uct_md_mem_reg_v2(domain.md, reinterpret_cast<void*>(low), 2 << 20, &params, &memh);
        },
        UCS_ERR_INVALID_ADDR, "a range that ends outside its allocation");
    // A query of the memory type still succeeds: UCX queries before it knows the length, and gets the base
    // and length of the allocation.
    uct_md_mem_attr_v2_t attr{};
    attr.field_mask = UCT_MD_MEM_ATTR_V2_FIELD_MEM_TYPE | UCT_MD_MEM_ATTR_V2_FIELD_BASE_ADDRESS |
                      UCT_MD_MEM_ATTR_V2_FIELD_ALLOC_LENGTH;
    EXPECT_EQ(uct_md_mem_query_v2(domain.md, reinterpret_cast<void*>(low), 2 << 20, &attr), UCS_OK);
    EXPECT_EQ(attr.mem_type, UCS_MEMORY_TYPE_GAUDI);
    EXPECT_EQ(attr.base_address, reinterpret_cast<void*>(low));
    EXPECT_EQ(attr.alloc_length, 1U << 20);
    ucs_memory_type_t type = UCS_MEMORY_TYPE_LAST;
    EXPECT_EQ(uct_md_detect_memory_type(domain.md, reinterpret_cast<void*>(low), 2 << 20, &type), UCS_OK);
    EXPECT_EQ(type, UCS_MEMORY_TYPE_GAUDI);
}

TEST_F(uct_refusal, a_registration_that_passes_the_end_of_all_addresses) {
    expect_refused(
        [&] {
            uct_md_mem_reg_params_t params{};
            uct_mem_h memh = nullptr;
            return uct_md_mem_reg_v2(domain.md, reinterpret_cast<void*>(4096), SIZE_MAX, &params, &memh);
        },
        UCS_ERR_INVALID_PARAM, "bytes at 0x1000: they pass the end of all addresses");
}

TEST_F(uct_refusal, keys) {
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
        expect_refused(
            [&] {
                uct_rkey_bundle_t bundle{};
                return uct_rkey_unpack(domain.component, &bad, &bundle);
            },
            UCS_ERR_INVALID_PARAM, "expected");
    const auto attach = [&](const memory_key& key, std::size_t length) {
        return [&, length, key] {
            uct_md_mem_attach_params_t params{};
            params.field_mask = UCT_MD_MEM_ATTACH_FIELD_MKEY_SIZE;
            params.mkey_size = length;
            uct_mem_h memh = nullptr;
            const auto status = uct_md_mem_attach(domain.md, &key, &params, &memh);
            if (status == UCS_OK)
                uct_md_mem_dereg(domain.md, memh);
            return status;
        };
    };
    expect_refused(attach(good, 16), UCS_ERR_INVALID_PARAM, "a key of 16 bytes; keys of Gaudi memory have");
    expect_refused(attach(flipped, sizeof(good)), UCS_ERR_INVALID_PARAM, "a corrupted key");
    auto foreign = good;
    foreign.process ^= 1;
    foreign.seal();
    expect_refused(attach(foreign, sizeof(good)), UCS_ERR_UNREACHABLE, "cannot be attached here");
    memory_key freed;
    {
        const allocated goes(domain, 65536);
        freed = packed(goes.memory.memh);
        EXPECT_EQ(attach(freed, sizeof(freed))(), UCS_OK);
    }
    expect_refused(attach(freed, sizeof(freed)), UCS_ERR_INVALID_PARAM, "the memory was freed");
    const allocated reused(domain, 65536);
    ASSERT_EQ(reused.number(), freed.base);
    expect_refused(attach(freed, sizeof(freed)), UCS_ERR_INVALID_PARAM, "the memory was freed");
    // A valid key, for the wrong address.
    copier copies(domain);
    const own_key key(domain, memory), foreign_key(domain, foreign);
    uint64_t word = 1;
    expect_refused([&] { return uct_ep_put_short(copies.ep, &word, 8, memory.number(), foreign_key.rkey()); },
                   UCS_ERR_INVALID_PARAM, "the key is another process's");
    expect_refused([&] { return uct_ep_put_short(copies.ep, &word, 8, memory.number() + 65532, key.rkey()); },
                   UCS_ERR_INVALID_PARAM, "the key does not reach there");
}

TEST_F(uct_refusal, keys_of_memory_that_was_freed) {
    copier copies(domain);
    const allocated stays(domain, 4096);
    std::optional<allocated> goes(std::in_place, domain, 65536);
    const auto where = goes->number();
    const own_key key(domain, *goes);
    goes.reset();
    uint64_t word = 1;
    const auto put = [&] { return uct_ep_put_short(copies.ep, &word, 8, where, key.rkey()); };
    expect_refused(put, UCS_ERR_INVALID_PARAM, "the memory was freed (");
    const allocated again(domain, 65536);
    ASSERT_EQ(again.number(), where);
    expect_refused(put, UCS_ERR_INVALID_PARAM, "the memory was freed and belongs to another allocation");
}

TEST_F(uct_refusal, copies) {
    copier copies(domain);
    uint64_t gone = 0, word = 1;
    const allocated stays(domain, 4096);
    gone = allocated(domain, 65536).number();
    const auto put_short = [&] { return uct_ep_put_short(copies.ep, &word, 8, gone, UCT_INVALID_RKEY); };
    expect_refused(put_short, UCS_ERR_INVALID_ADDR, "no live allocation at this address");
    expect_refused([&] { return uct_ep_get_short(copies.ep, &word, 8, gone, UCT_INVALID_RKEY); },
                   UCS_ERR_INVALID_ADDR, "no live allocation at this address");
    expect_refused(
        [&] { return uct_ep_put_short(copies.ep, &word, 8, stays.number() + 4092, UCT_INVALID_RKEY); },
        UCS_ERR_INVALID_ADDR, "a range that ends outside its allocation");
    expect_refused(
        [&] {
            return uct_ep_get_bcopy(
                copies.ep, [](void*, const void*, size_t) {}, nullptr, 32769, stays.number(),
                UCT_INVALID_RKEY, nullptr);
        },
        UCS_ERR_INVALID_PARAM, "");
}

// ---- the driver refuses to export, by a fault script ----

class uct_no_export : public uct_refusal {};

TEST_F(uct_no_export, is_an_error_where_it_must_work) {
    const setting must("UCX_GAUDI_COPY_DMABUF", "yes");
    const memory_domain strict("gaudi_copy", "gaudi_copy");
    expect_refused([&] { return allocate(strict, 4096, 0); }, UCS_ERR_UNSUPPORTED,
                   "UCX_GAUDI_COPY_DMABUF=yes: the driver does not export the memory as a DMA-BUF");
}

TEST_F(uct_no_export, is_no_error_otherwise_and_warned_of_once) {
    const allocated memory(domain, 1 << 20);
    uct_md_mem_attr_v2_t attr{};
    const auto ask = [&] {
        attr = {};
        attr.field_mask = dmabuf;
        return uct_md_mem_query_v2(domain.md, memory.memory.address, 1 << 20, &attr);
    };
    ::testing::internal::CaptureStdout();
    EXPECT_EQ(ask(), UCS_OK);
    const auto log = ::testing::internal::GetCapturedStdout();
    EXPECT_EQ(count_of(" GAUDI ", log), 1U) << log;
    EXPECT_NE(log.find("no DMA-BUF, so that no NIC reaches this memory"), log.npos) << log;
    EXPECT_EQ(attr.dmabuf_fd, UCT_DMABUF_FD_INVALID);
    expect_refused(ask, UCS_OK, ""); // the second time without a log line
    EXPECT_EQ(attr.dmabuf_fd, UCT_DMABUF_FD_INVALID);
}

// On a machine with a GPU, UCX may stage through memory that no CPU and no Gaudi reaches, and does not check
// the status of the copy: the process ends with the reason. Host memory is still copied.
TEST(uct_gpu, memory_of_a_gpu_ends_the_process_that_would_stage_through_it) {
    for (const char* name : {"gaudi_cpy", "gaudi_dma"}) {
        SCOPED_TRACE(name);
        const auto put = [&] {
            memory_domain domain("gaudi_copy", "gaudi_copy");
            copier copies(domain, name, name == std::string_view("gaudi_cpy") ? "gaudi_copy" : name);
            allocated memory(domain, 1 << 20);
            std::vector<char> host(1 << 20);
            const auto by = [&](void* from) {
                return complete(copies, true, from, 1 << 20, memory.number());
            };
            if (by(host.data()) != UCS_OK)
                std::_Exit(3);
            void* const gpu = ::mmap(nullptr, 1 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            ucs_memtype_cache_update(gpu, 1 << 20, UCS_MEMORY_TYPE_CUDA, UCS_SYS_DEVICE_ID_UNKNOWN, 0);
            (void)by(gpu);
        };
        EXPECT_EXIT(put(), ::testing::KilledBySignal(SIGABRT),
                    "through memory of a GPU at 0x[0-9a-f]+, which this transport cannot reach; set "
                    "UCX_RNDV_FRAG_MEM_TYPES=host");
    }
}

} // namespace
