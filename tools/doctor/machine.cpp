// SPDX-License-Identifier: BSD-3-Clause
// Kernel, driver, limits: what files and the process's own limits say.
#include "tools/doctor/checks.hpp"
#include "tools/self.hpp"

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

namespace tools::doctor {
namespace {

constexpr const char* platform_page = "see the platform's documentation (docs/hardware.md)";

// A word of the kernel's command line, such as "iommu=pt"; nullopt: the line cannot be read.
std::optional<bool> booted_with(std::string_view word) {
    const auto line = read_line("/proc/cmdline");
    if (!line)
        return std::nullopt;
    return (" " + *line + " ").find(fmt::format(" {} ", word)) != std::string::npos;
}

// The value of an option of the kernel's configuration; nullopt: it is not readable. Empty: not set.
std::optional<std::string> kernel_option(const std::string& release, const std::string& name) {
    std::ifstream file(machine_path("/boot/config-" + release));
    if (!file)
        return std::nullopt;
    for (std::string line; std::getline(file, line);)
        if (line.starts_with(name + "="))
            return line.substr(name.size() + 1);
    return std::string();
}

void check_option(report& into, const gaudi::kernel_driver& driver, const std::string& check,
                  const std::string& name, bool needed, const std::string& what_for) {
    const auto value = kernel_option(driver.kernel, name);
    if (!value)
        into.unknown(check, "", fmt::format("/boot/config-{} cannot be read", driver.kernel),
                     fmt::format("{} must be set: {}", name, what_for));
    else if (!value->empty())
        into.good(check, "", fmt::format("{}={}", name, *value));
    else if (needed)
        into.broken(check, "", name + " is not set", fmt::format("use a kernel with it: {}", what_for));
    else
        into.warning(check, "", name + " is not set", what_for);
}

// CAP_IPC_LOCK, which root has and containers often take away.
bool may_lock_memory() {
    constexpr unsigned ipc_lock = 14;
    std::ifstream file("/proc/self/status");
    for (std::string line; std::getline(file, line);)
        if (line.starts_with("CapEff:"))
            return (std::strtoull(line.c_str() + 7, nullptr, 16) >> ipc_lock & 1U) != 0;
    return false;
}

void check_limit(report& into, const std::string& check, int resource, rlim_t least, const std::string& unit,
                 const std::string& remedy) {
    rlimit limit{};
    ::getrlimit(static_cast<__rlimit_resource_t>(resource), &limit);
    const bool none = limit.rlim_cur == RLIM_INFINITY;
    const auto shown = none ? std::string("unlimited") : fmt::format("{} {}", limit.rlim_cur, unit);
    if (none || limit.rlim_cur >= least)
        into.good(check, "", shown);
    else
        into.warning(check, "", fmt::format("{}, less than {} {}", shown, least, unit), remedy);
}

// How many contexts and objects of a NIC the process's control group may have. The file is in the group's own
// folder, or where a container shows its group as the root.
void check_rdma_limits(report& into) {
    std::string group;
    std::ifstream groups(machine_path("/proc/self/cgroup"));
    for (std::string line; std::getline(groups, line);)
        if (line.starts_with("0::") || line.find(":rdma:") != line.npos)
            group = line.substr(line.rfind(':') + 1);
    for (const auto& folder :
         {"/sys/fs/cgroup" + group, "/sys/fs/cgroup/rdma" + group, std::string("/sys/fs/cgroup")}) {
        std::ifstream file(machine_path(folder + "/rdma.max"));
        if (!file)
            continue;
        for (std::string line; std::getline(file, line);) {
            const auto limit = [&](const std::string& name) -> std::uint64_t {
                const auto at = line.find(name + "=");
                const auto value = at == line.npos ? "max" : line.substr(at + name.size() + 1);
                return value.starts_with("max") ? UINT64_MAX : std::strtoull(value.c_str(), nullptr, 10);
            };
            const auto nic = line.substr(0, line.find(' '));
            const auto handles = limit("hca_handle"), objects = limit("hca_object");
            if (handles == 0 || objects == 0)
                into.broken("limits.rdma", nic, "the container may open no NIC: " + line,
                            "raise rdma.max of its control group");
            else if (handles < 8 ||
                     objects < 1000) // a UCX worker alone has a context and some dozens of objects
                into.warning("limits.rdma", nic, "the container may have few objects of the NIC: " + line,
                             "raise rdma.max of its control group");
            else
                into.good("limits.rdma", nic, line);
        }
        return;
    }
}

} // namespace

std::string machine_path(std::string_view absolute) {
    const char* root = std::getenv("GAUDI_DIRECT_FSROOT");
    return std::string(root != nullptr ? root : "").append(absolute);
}

std::optional<std::string> read_line(std::string_view absolute) {
    std::ifstream file(machine_path(absolute));
    std::string line;
    if (!std::getline(file, line))
        return std::nullopt;
    return line;
}

void check_kernel(report& into, const gaudi::kernel_driver& driver) {
    if (driver.kernel.empty())
        into.unknown("kernel.release", "", "/proc/sys/kernel/osrelease cannot be read",
                     "run doctor where /proc is mounted");
    else
        into.good("kernel.release", "", fmt::format("Linux {}", driver.kernel));
    const bool upstream = driver.provided_by == gaudi::kernel_driver::provider::upstream;
    check_option(into, driver, "kernel.user_mem", "CONFIG_INFINIBAND_USER_MEM", true,
                 "NICs register memory of programs by it");
    check_option(into, driver, "kernel.p2pdma", "CONFIG_PCI_P2PDMA", upstream,
                 upstream ? "upstream's driver refuses every registration without it"
                          : "the vendor's driver works without it, upstream's does not");
    const auto translated = booted_with("intel_iommu=on"), passed = booted_with("iommu=pt");
    if (!passed)
        into.unknown("kernel.iommu", "", "/proc/cmdline cannot be read", platform_page);
    else if (*translated && !*passed)
        into.warning("kernel.iommu", "", "intel_iommu=on without iommu=pt",
                     "boot with iommu=pt: addresses of other devices are translated otherwise");
    else
        into.good("kernel.iommu", "", *passed ? "iommu=pt" : "not switched on by the kernel's command line");
}

void check_driver(report& into, const gaudi::kernel_driver& driver, bool works) {
    using provider = gaudi::kernel_driver::provider;
    if (driver.provided_by == provider::unknown && works)
        into.unknown(
            "driver.loaded", "", "/sys/module/habanalabs is hidden, the driver works",
            "if it is Linux's own before 6.7, exports begin at the wrong place: show /sys to the container");
    else if (driver.provided_by == provider::unknown)
        into.broken("driver.loaded", "", "/sys/module/habanalabs does not exist",
                    "load the driver: modprobe habanalabs (package habanalabs-dkms of the vendor)");
    else if (driver.provided_by == provider::vendor)
        into.good("driver.loaded", "", fmt::format("the vendor's, version {}", driver.version));
    else if (driver.exports_whole_only())
        into.warning(
            "driver.loaded", "",
            fmt::format("Linux's own, of {}: it exports nothing but whole allocations", driver.kernel),
            "use Linux 6.7 or newer, or the vendor's driver; memory cannot be given to other "
            "processes page by page");
    else
        into.good("driver.loaded", "",
                  fmt::format("Linux's own, of {}: no Gaudi3, no DMA-BUF import", driver.kernel));
}

void check_limits(report& into) {
    if (may_lock_memory())
        into.good("limits.memlock", "", "not limited: the process has CAP_IPC_LOCK");
    else
        check_limit(into, "limits.memlock", RLIMIT_MEMLOCK, 1ULL << 30, "bytes",
                    "ulimit -l unlimited: host memory that a NIC registers counts; Gaudi memory does not");
    check_limit(into, "limits.nofile", RLIMIT_NOFILE, 4096, "descriptors",
                "ulimit -n 65536: each DMA-BUF, NIC and connection has descriptors");
    struct statvfs shm {};
    if (::statvfs("/dev/shm", &shm) != 0)
        into.warning("limits.shm", "", "/dev/shm is missing",
                     "mount it: UCX and MPI use it between processes");
    else if (const auto bytes = std::uint64_t{shm.f_blocks} * shm.f_frsize; bytes < 1ULL << 30)
        into.warning("limits.shm", "", fmt::format("/dev/shm has {}", human_bytes(bytes)),
                     "give the container more: --shm-size=8g");
    else
        into.good("limits.shm", "", fmt::format("/dev/shm has {}", human_bytes(bytes)));
    check_rdma_limits(into);
}

} // namespace tools::doctor
