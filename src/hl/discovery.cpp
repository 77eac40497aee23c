// SPDX-License-Identifier: BSD-3-Clause
// Which devices there are, and opening one. Everything is asked on the control node, which any number of
// processes may open; the compute node allows one context (gotcha 1).
#include "src/hl/discovery.hpp"

#include "src/error/try.hpp"
#include "src/os/machine_files.hpp"
#include "src/os/system_error.hpp"
#include "src/os/topology.hpp"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <thread>
#include <unistd.h>

namespace gaudi {
namespace {

constexpr int max_minor = 256;

// A lab's description has precedence: sysfs describes the machine that the lab runs on.
std::optional<int> numa_node_of(const std::string& bus_id, const std::optional<topology>& described) {
    if (const auto node = described ? described->numa_node(bus_id) : std::nullopt)
        return node;
    std::ifstream file(machine_path(fmt::format("/sys/bus/pci/devices/{}/numa_node", bus_id)));
    int node = -1;
    if (!(file >> node) || node < 0)
        return std::nullopt;
    return node;
}

std::string bus_id_in_sysfs(unsigned index) {
    for (const auto& path : {fmt::format("/sys/class/accel/accel{}/device/pci_addr", index),
                             fmt::format("/sys/class/accel/accel{}/pci_addr", index),
                             fmt::format("/sys/class/habanalabs/hl{}/pci_addr", index)}) {
        std::ifstream file(machine_path(path));
        std::string text;
        if (file >> text)
            return text;
    }
    return {};
}

std::string status_text(int status) {
    constexpr std::string_view names[] = {"operational", "in reset",    "malfunction",
                                          "needs reset", "in creation", "in reset after release"};
    return status >= 0 && static_cast<std::size_t>(status) < std::size(names)
               ? std::string(names[status])
               : fmt::format("unknown ({})", status);
}

std::optional<device_info> inspect(const hlthunk_api& api, int control, unsigned index,
                                   const std::optional<topology>& described) {
    hlthunk_hw_ip_info hw{};
    if (api.get_hw_ip_info(control, &hw) != 0)
        return std::nullopt;
    device_info info;
    info.index = index;
    info.generation = generation_of(api.get_device_name_from_fd(control));
    info.product.assign(reinterpret_cast<const char*>(hw.card_name),
                        ::strnlen(reinterpret_cast<const char*>(hw.card_name), sizeof(hw.card_name)));
    info.bus_id = bus_id_of(api, control);
    if (info.bus_id.empty()) // some versions of hl-thunk return it only for the compute node
        info.bus_id = bus_id_in_sysfs(index);
    info.module_id = hw.module_id;
    info.numa_node = numa_node_of(info.bus_id, described);
    info.memory_total = hw.dram_size;
    info.allocation_page = hw.device_mem_alloc_default_page_size;
    hlthunk_dram_usage_info usage{};
    if (api.get_dram_usage(control, &usage) == 0)
        info.memory_free = usage.dram_free_mem;
    // Works while the device is in reset, when other queries return EBUSY.
    const int status = api.get_device_status_info(control);
    info.operational = status == HL_DEVICE_STATUS_OPERATIONAL;
    info.status = status_text(status);
    if (!info.generation)
        info.status += ", of a generation that this library does not know";
    return info;
}

std::string link_of(const std::string& path) {
    std::error_code failure;
    return std::filesystem::read_symlink(path, failure).string();
}

// The compute node is in the same folder as the control node: accel_controlD3 -> accel3, hl_controlD3 -> hl3.
std::string compute_node_of(std::string control) {
    if (const auto at = control.rfind("_controlD"); at != control.npos)
        control.erase(at, std::strlen("_controlD"));
    return control;
}

std::string command_of(const std::string& process) {
    std::ifstream file("/proc/" + process + "/comm");
    std::string name;
    std::getline(file, name);
    return name;
}

// The entries of a folder that may disappear meanwhile, such as that of a process that ends.
std::vector<std::filesystem::path> entries_of(const std::filesystem::path& folder) {
    std::vector<std::filesystem::path> all;
    std::error_code failure;
    for (std::filesystem::directory_iterator entry(folder, failure), end; !failure && entry != end;
         entry.increment(failure))
        all.push_back(entry->path());
    return all;
}

bool has_open(const std::string& process, const std::string& node) {
    const auto descriptors = entries_of("/proc/" + process + "/fd");
    return std::any_of(descriptors.begin(), descriptors.end(),
                       [&](const auto& entry) { return link_of(entry) == node; });
}

std::string named(const std::vector<device_holder>& holders) {
    std::string text;
    for (const auto& holder : holders)
        text += fmt::format("{}process {} ({})", text.empty() ? "" : ", ", holder.process, holder.command);
    // /proc hides other users' descriptors, and a DMA-BUF or memory region that keeps a context is no open
    // node.
    return text.empty() ? "by a process that cannot be seen from here, or by a DMA-BUF or memory region that "
                          "is still alive"
                        : "by " + text;
}

result<void> check_generation(const device_info& info) {
    if (!info.generation)
        return tl::unexpected(
            error(errc::generation_unknown,
                  fmt::format("device {} ({}), product '{}'", info.index, info.bus_id, info.product)));
    return {};
}

result<device_identity> identify(const hlthunk_api& api, int fd, const device_info& info) {
    device_identity identity;
    identity.index = info.index;
    identity.generation = *info.generation;
    identity.bus_id = info.bus_id;
    if (const int rc = api.get_hw_ip_info(fd, &identity.hw); rc != 0)
        return tl::unexpected(
            error(errc::open_failed, fmt::format("hlthunk_get_hw_ip_info of {}", info.bus_id), -rc));
    return identity;
}

} // namespace

std::string bus_id_of(const hlthunk_api& api, int fd) {
    char text[16] = {};
    if (api.get_pci_bus_id_from_fd(fd, text, 13) != 0)
        return {};
    return text;
}

result<std::vector<device_info>> discover(const hlthunk_api& api) {
    std::vector<device_info> devices;
    int left = api.get_device_count != nullptr ? api.get_device_count(HLTHUNK_DEVICE_DONT_CARE) : max_minor;
    if (left < 0)
        left = max_minor; // the count is not known: try every minor
    const auto described = topology::described();
    // Minors may have gaps: the count says when all devices were seen.
    for (int minor = 0; minor < max_minor && left > 0; ++minor) {
        const int control = api.open_control(minor, nullptr);
        // Every further minor would fail alike, and the process would seem to have no devices.
        if (control == -EMFILE || control == -ENFILE)
            return tl::unexpected(error(errc::descriptors_exhausted,
                                        fmt::format("hlthunk_open_control of device {}", minor), -control));
        if (control == -EPERM) { // the device exists but is disabled: not even its control node opens
            device_info disabled;
            disabled.index = static_cast<unsigned>(minor);
            disabled.bus_id = bus_id_in_sysfs(disabled.index);
            disabled.operational = false;
            disabled.status = "disabled by the driver";
            devices.push_back(std::move(disabled));
        }
        if (control < 0)
            continue;
        --left;
        auto info = inspect(api, control, static_cast<unsigned>(minor), described);
        api.close(control);
        if (info && !info->bus_id.empty())
            devices.push_back(std::move(*info));
    }
    return devices;
}

std::vector<device_holder> find_holders(const hlthunk_api& api, unsigned index) {
    std::vector<device_holder> holders;
    const int control = api.open_control(static_cast<int>(index), nullptr);
    if (control < 0)
        return holders;
    const auto node = compute_node_of(link_of(fmt::format("/proc/self/fd/{}", control)));
    api.close(control);
    for (const auto& entry : entries_of("/proc")) {
        const auto process = entry.filename().string();
        if (process.find_first_not_of("0123456789") == process.npos && has_open(process, node))
            holders.push_back({std::stoi(process), command_of(process)});
    }
    return holders;
}

std::uint64_t node_of_device(const hlthunk_api& api, const device_info& info) {
    const int control = api.open_control(static_cast<int>(info.index), nullptr);
    if (control < 0)
        return 0;
    const auto node = compute_node_of(link_of(fmt::format("/proc/self/fd/{}", control)));
    api.close(control);
    struct stat status {};
    return ::stat(node.c_str(), &status) == 0 ? hl_device::node_of(status, info.bus_id) : 0;
}

result<std::shared_ptr<hl_device>> open_for_compute(const std::shared_ptr<const hlthunk_api>& api,
                                                    const device_info& info) {
    if (info.bus_id.empty())
        return tl::unexpected(
            error(errc::device_broken, fmt::format("device {}: {}", info.index, info.status)));
    GAUDI_CHECK(check_generation(info));
    using clock = std::chrono::steady_clock;
    const auto begin = clock::now();
    const auto deadline = begin + std::chrono::seconds(2);
    auto pause = std::chrono::milliseconds(1);
    for (;;) {
        // By bus id: without one, hl-thunk reports failures differently (gotcha 2).
        const int fd = api->open(HLTHUNK_DEVICE_DONT_CARE, info.bus_id.c_str());
        if (fd >= 0) {
            auto identity = identify(*api, fd, info);
            if (!identity) {
                api->close(fd);
                return tl::unexpected(identity.error());
            }
            return std::make_shared<hl_device>(api, fd, context_owner::this_process, std::move(*identity));
        }
        // hlthunk_open() may return -1 instead of -errno; errno is set in both cases.
        const int reason = errno;
        const auto what = fmt::format("hlthunk_open of {} (index {})", info.bus_id, info.index);
        // Gaudi2 resets after the last close, and answers EAGAIN meanwhile (gotcha 1).
        if (reason == EAGAIN && clock::now() < deadline) {
            std::this_thread::sleep_for(pause);
            pause = std::min(pause * 2, std::chrono::milliseconds(50));
            continue;
        }
        // A second open fails in the same process too: the registry hands out the one that exists.
        if (reason == EBUSY || reason == EAGAIN)
            return tl::unexpected(
                error(errc::device_busy,
                      fmt::format("{}: held {}", what, named(find_holders(*api, info.index))), reason));
        return tl::unexpected(
            error(reason == EPERM ? errc::device_broken : code_of(reason, errc::open_failed), what, reason));
    }
}

result<std::shared_ptr<hl_device>> attach(const std::shared_ptr<const hlthunk_api>& api, int fd,
                                          const device_info& info, context_owner owner) {
    GAUDI_CHECK(check_generation(info));
    GAUDI_TRY(auto identity, identify(*api, fd, info));
    return std::make_shared<hl_device>(api, fd, owner, std::move(identity));
}

} // namespace gaudi
