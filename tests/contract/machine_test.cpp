// SPDX-License-Identifier: BSD-3-Clause
#include "tests/contract/machine_test.hpp"

#include "lab/world/folder.hpp"
#include "tests/support/own_process.hpp"

#include <algorithm>
#include <cstdlib>
#include <dlfcn.h>
#include <fmt/format.h>
#include <map>
#include <thread>
#include <unistd.h>

namespace testing_support {
namespace {

namespace fs = std::filesystem;

// A device that was just closed stays busy until the driver has cleaned it.
gaudi::result<std::shared_ptr<gaudi::device>> open_when_clean(unsigned index) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    for (;;) {
        auto opened = gaudi::open_device(gaudi::by_index{index});
        if (opened || opened.error().kind() != gaudi::error_kind::busy ||
            std::chrono::steady_clock::now() > deadline)
            return opened;
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
}

// The devices of the machine that this run uses, kept open.
std::map<unsigned, std::shared_ptr<gaudi::device>>& held() {
    static std::map<unsigned, std::shared_ptr<gaudi::device>> devices;
    return devices;
}

// Chosen once: those that work and that no process holds when the run begins.
const std::vector<gaudi::device_info>& free_devices(std::string& why_none) {
    static std::string reason = "there is no Gaudi";
    static const auto found = [] {
        std::vector<gaudi::device_info> usable;
        auto all = gaudi::list_devices();
        if (!all) {
            reason = all.error().message();
            return usable;
        }
        for (auto& info : *all)
            if (const auto holders = gaudi::holders_of(info); !holders.empty())
                reason = fmt::format("gaudi {} is in use by process {} ({})", info.index, holders[0].process,
                                     holders[0].command);
            else if (!info.operational)
                reason = fmt::format("gaudi {}: {}", info.index, info.status);
            else if (auto opened = open_when_clean(info.index)) {
                held()[info.index] = std::move(*opened);
                usable.push_back(std::move(info));
            } else
                reason = opened.error().message();
        return usable;
    }();
    why_none = reason;
    return found;
}

void leave_lab(const fs::path& library) {
    if (void* loaded = ::dlopen(library.c_str(), RTLD_LAZY | RTLD_NOLOAD); loaded != nullptr) {
        if (auto* const leave = reinterpret_cast<void (*)()>(::dlsym(loaded, "gaudi_lab_leave")))
            leave();
        ::dlclose(loaded);
    }
}

fs::path virtual_gaudi() {
    return parts_folder() / "lab" / "libhl-thunk.so";
}

} // namespace

fs::path parts_folder() {
    return fs::read_symlink("/proc/self/exe").parent_path().parent_path();
}

bool machine_test::in_lab() {
    const char* chosen = std::getenv("GAUDI_TESTS_ON");
    return chosen == nullptr || std::string_view(chosen) != "machine";
}

machine_test::machine_test() {
    if (!in_lab())
        return;
    char pattern[] = "/dev/shm/gaudi-test-XXXXXX";
    root_ = ::mkdtemp(pattern);
    ::setenv("GAUDI_LAB_ROOT", root_.c_str(), 1);
    ::setenv("GAUDI_DIRECT_HLTHUNK", virtual_gaudi().c_str(), 1);
    ::setenv("GAUDI_DIRECT_VERBS", (parts_folder() / "lab" / "libvhca.so").c_str(), 1);
    for (const char* variable : {"GAUDI_LAB", "GAUDI_LAB_FAULTS", "HLS_MODULE_ID", "HABANA_VISIBLE_DEVICES",
                                 "HABANA_VISIBLE_MODULES"})
        ::unsetenv(variable);
    descriptors_ = open_descriptors();
}

machine_test::~machine_test() {
    if (in_lab())
        fs::remove_all(root_);
}

void machine_test::TearDown() {
    if (!in_lab())
        return;
    leave_lab(virtual_gaudi());
    EXPECT_EQ(open_descriptors(), descriptors_) << "the test left descriptors open";
}

void machine_test::make_lab(unsigned devices, unsigned nics) {
    leave_lab(virtual_gaudi());
    const auto parsed = lab::parse_description(
        fmt::format("gaudis = {}\nhcas = {}\ndmabuf_import = yes\n", devices, nics), "description");
    ASSERT_TRUE(parsed) << parsed.error().text;
    const auto entered = lab::folder::enter("default", *parsed);
    ASSERT_TRUE(entered) << entered.error().text;
    devices_ = gaudi::expect(gaudi::list_devices());
}

void machine_test::need(unsigned devices, unsigned nics, unsigned better) {
    if (in_lab())
        return make_lab(std::max(devices, better), nics);
    std::string why_none;
    devices_ = free_devices(why_none);
    if (devices_.size() < devices)
        return skip(devices == 1 ? why_none
                                 : fmt::format("{} free Gaudis are needed, there are {}; {}", devices,
                                               devices_.size(), why_none));
    if (nics == 0)
        return;
    const auto all = gaudi::list_nics();
    if (!all)
        skip(all.error());
    else if (std::ranges::none_of(*all, [&](const auto& nic) {
                 return devices == 0 ? nic.active && !nic.of_gaudi : nic.moves_device_memory();
             }))
        skip(devices == 0 ? "no NIC has an active port" : "no NIC with an active port registers DMA-BUFs");
}

void machine_test::skip(const std::string& reason) {
    if (in_lab())
        FAIL() << "in a lab: " << reason;
    GTEST_SKIP() << reason;
}

// Without addresses and sizes, so that the reasons of many tests are one reason.
void machine_test::skip(const gaudi::error& reason) {
    RecordProperty("observed", reason.observed());
    if (in_lab())
        return skip(reason.message());
    skip(fmt::format("{}; {}", gaudi::describe(reason.code()).meaning, reason.remedy()));
}

std::shared_ptr<gaudi::device> machine_test::device_for_test(unsigned number) {
    const auto index = devices_.at(number % devices_.size()).index;
    if (in_lab())
        return gaudi::expect(gaudi::open_device(gaudi::by_index{index}));
    auto& device = held()[index];
    if (!device || device->lost())
        device = gaudi::expect(open_when_clean(index));
    return device;
}

unsigned machine_test::index_for_others(unsigned number) {
    const auto index = devices_.at(number % devices_.size()).index;
    held().erase(index);
    return index;
}

void machine_test::close_devices() {
    held().clear();
}

std::shared_ptr<gaudi::nic> machine_test::nic_for_test() {
    gaudi::nic_choice choice;
    if (!devices_.empty()) {
        choice.near_to = devices_.front();
        const auto nics = gaudi::expect(gaudi::list_nics());
        choice.needs_dmabuf = std::ranges::any_of(nics, &gaudi::nic_info::moves_device_memory);
    }
    return gaudi::expect(gaudi::open_nic(choice));
}

std::string machine_test::ucx_devices() const {
    std::string names;
    for (const auto& nic : gaudi::expect(gaudi::list_nics()))
        if (nic.active && !nic.of_gaudi)
            names += fmt::format("{}{}:{}", names.empty() ? "" : ",", nic.name, nic.port);
    return names;
}

} // namespace testing_support
