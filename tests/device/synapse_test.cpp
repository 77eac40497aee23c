// SPDX-License-Identifier: BSD-3-Clause
// Pitfall 36: SynapseAI in the same process holds the device and all of its memory.
#include <gaudi/gaudi.hpp>

#include "lab/dmabuf.h"
#include "tests/support/hlthunk_functions.h"
#include "tests/support/test_lab.hpp"

#include <dlfcn.h>

namespace {

using namespace gaudi;
using namespace testing_support;

class synapse_test : public test_lab {
protected:
    static constexpr std::uint64_t pool = 768ULL << 22;

    void SetUp() override {
        library_ = ::dlopen(FAKE_SYNAPSE, RTLD_NOW | RTLD_LOCAL);
        ASSERT_NE(library_, nullptr) << ::dlerror();
        const auto acquire =
            reinterpret_cast<int (*)(const char*, std::uint64_t)>(::dlsym(library_, "fake_synapse_acquire"));
        ASSERT_EQ(acquire("0000:1a:00.0", pool), 0);
    }
    void TearDown() override {
        reinterpret_cast<void (*)()>(::dlsym(library_, "fake_synapse_release"))();
        ::dlclose(library_);
        test_lab::TearDown();
    }
    // Where the fake's memory was mapped: it tells through the same call that the library uses.
    std::uint64_t pool_base() const {
        std::uint64_t info[64] = {};
        reinterpret_cast<int (*)(std::uint32_t, void*)>(::dlsym(library_, "synDeviceGetInfoV2"))(0, info);
        return info[8];
    }
    void* library_ = nullptr;
};

TEST_F(synapse_test, p36_attaches_to_its_descriptor_and_never_closes_it) {
    int fd = -1;
    {
        const auto opened = open_device(by_index{1});
        ASSERT_TRUE(opened) << opened.error().message();
        EXPECT_TRUE((*opened)->attached());
        fd = (*opened)->descriptor();
        EXPECT_EQ((*opened)->heap().allocate(4096).error().code(), errc::memory_exhausted);
        EXPECT_EQ((*opened)->copies().error().code(), errc::copies_absent);
        EXPECT_EQ(known_memory().device_of(device_address(pool_base() + 12345)), 1U);
    }
    EXPECT_NE(hlthunk_get_device_id_from_fd(fd), 0U) << "closed by us";
    const auto other = open_device(by_index{0});
    ASSERT_TRUE(other);
    EXPECT_FALSE((*other)->attached());
}

TEST_F(synapse_test, p36_exports_from_the_base_of_its_pool) {
    const auto opened = *open_device(by_index{1});
    const device_address found(pool_base());
    const auto window = opened->export_foreign(found + (768ULL << 20) + 4096 + 100, 5000);
    ASSERT_TRUE(window) << window.error().message();
    EXPECT_EQ(window->offset, 100U);
    EXPECT_EQ(window->iova, found + (768ULL << 20) + 4096 + 100);
    gaudi_lab_dmabuf head{};
    gaudi_lab_range ranges[4]{};
    char path[512];
    ASSERT_EQ(gaudi_lab_dmabuf_describe(window->fd, &head, ranges, 4, path, sizeof(path)), 0);
    EXPECT_EQ(head.size, 8192U);
    ::close(window->fd);
    EXPECT_EQ(opened->export_foreign(found + (pool - 10), 11).error().code(), errc::range_leaves_allocation);
    const auto own = *open_device(by_index{0});
    EXPECT_EQ(own->export_foreign(found, 10).error().code(), errc::not_allocated);
}

} // namespace
