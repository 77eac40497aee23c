// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/device.hpp>

#include "tests/ucx/in_process/uct_fixture.hpp"
#include "ucx/base/key.hpp"

#include <cstdlib>
#include <fstream>
#include <functional>
#include <gtest/gtest.h>
#include <map>
#include <optional>
#include <set>
#include <unistd.h>

namespace testing_ucx {

using gaudi_ucx::memory_key;

// Sets an environment variable of UCX for the object's lifetime.
class setting {
public:
    setting(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
    ~setting() { ::unsetenv(name_); }
    setting(const setting&) = delete;
    setting& operator=(const setting&) = delete;

private:
    const char* name_;
};

inline std::shared_ptr<gaudi::device> device_at(uint64_t address) {
    return gaudi::find_open_device(gaudi::known_memory().device_of(gaudi::device_address(address)).value());
}
// The engine that copies from and to this address.
inline gaudi::copy_engine engine_at(uint64_t address) {
    return gaudi::expect(device_at(address)->copies());
}

// The queues whose byte counts grew during a copy.
inline std::set<std::uint32_t> queues_used(uint64_t address, const std::function<void()>& copy) {
    auto engine = engine_at(address);
    std::map<std::uint32_t, std::uint64_t> before;
    for (const auto& queue : engine.queues())
        before[queue.queue] = queue.bytes;
    copy();
    std::set<std::uint32_t> used;
    for (const auto& queue : engine.queues())
        if (queue.bytes > before[queue.queue])
            used.insert(queue.queue);
    return used;
}

inline memory_key key_of(const memory_domain& domain, uct_mem_h memh) {
    memory_key key;
    uct_md_mkey_pack_params_t params{};
    check(uct_md_mkey_pack_v2(domain.md, memh, nullptr, 0, &params, &key), "uct_md_mkey_pack_v2");
    return key;
}

// Whether sysfs has the lab's first Gaudi: only then does the plugin report it to UCX as a system device.
inline bool first_gaudi_is_in_sysfs() {
    std::ifstream vendor("/sys/bus/pci/devices/0000:19:00.0/vendor");
    std::string text;
    return vendor >> text && text == "0x1da3";
}

// An unpacked key to memory of this process.
class own_key {
public:
    own_key(const memory_domain& domain, const allocated& memory)
        : own_key(domain, key_of(domain, memory.memory.memh)) {}
    own_key(const memory_domain& domain, const memory_key& key) : component_(domain.component) {
        check(uct_rkey_unpack(component_, &key, &bundle_), "uct_rkey_unpack");
    }
    ~own_key() { uct_rkey_release(component_, &bundle_); }
    own_key(const own_key&) = delete;
    own_key& operator=(const own_key&) = delete;
    [[nodiscard]] uct_rkey_t rkey() const { return bundle_.rkey; }

private:
    uct_component_h component_;
    uct_rkey_bundle_t bundle_{};
};

constexpr uint64_t dmabuf = UCT_MD_MEM_ATTR_V2_FIELD_DMABUF_FD | UCT_MD_MEM_ATTR_V2_FIELD_DMABUF_OFFSET;

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
    memory_key packed(uct_mem_h memh) { return key_of(domain, memh); }
    std::optional<uct_rkey_bundle_t> unpacked(const memory_key& key) {
        uct_rkey_bundle_t bundle{};
        if (uct_rkey_unpack(domain.component, &key, &bundle) != UCS_OK)
            return std::nullopt;
        return bundle;
    }
};

// Starts a zcopy and progresses it until it completes.
inline ucs_status_t complete(copier& copies, bool put, void* local, std::size_t length, uint64_t remote,
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

} // namespace testing_ucx
