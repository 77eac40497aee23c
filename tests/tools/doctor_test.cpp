// SPDX-License-Identifier: BSD-3-Clause
// gaudi-direct doctor: each verdict, provoked in the lab or by the files that describe its machine.
#include "tests/support/child.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/soon_true.hpp"
#include "tests/support/test_lab.hpp"

#include <cstring>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <nlohmann/json.hpp>

namespace {

using namespace testing_support;
using json = nlohmann::json;
namespace fs = std::filesystem;

class doctor_test : public test_lab {
protected:
    // The environment of a program that runs in this lab, in which nothing is wrong.
    program_result doctor(std::vector<std::string> arguments, std::vector<std::string> environment = {},
                          std::vector<std::string> before = {}) {
        std::vector<std::string> command = {GAUDI_DIRECT_TOOL, "lab", "run", "--lab", "default", "--"};
        command.insert(command.end(), before.begin(), before.end());
        command.insert(command.end(), {GAUDI_DIRECT_TOOL, "doctor"});
        command.insert(command.end(), arguments.begin(), arguments.end());
        const std::string plugin = fs::path(GAUDI_DIRECT_TOOL).parent_path().parent_path() / "lib" / "ucx";
        environment.insert(environment.begin(), {"GAUDI_DIRECT_HLTHUNK", "UCX_PLUGIN_PATH=" + plugin});
        return run_program(command, environment);
    }
    json report(std::vector<std::string> environment = {}, std::vector<std::string> before = {}) {
        return json::parse(
            doctor({"--json", "--no-probe"}, std::move(environment), std::move(before)).output);
    }
    json probed() { return json::parse(doctor({"--json"}).output); }

    // The finding of a check, about a subject where there are several.
    static json finding(const json& report, const std::string& check, const std::string& subject = "") {
        for (const auto& entry : report["findings"])
            if (entry["check"] == check && (subject.empty() || entry["subject"] == subject))
                return entry;
        ADD_FAILURE() << "no " << check << " in " << report.dump(1);
        return {{"verdict", ""}, {"observed", ""}, {"remedy", ""}};
    }
    static void expect(const json& report, const std::string& check, const std::string& verdict,
                       const std::string& observed, const std::string& remedy = "") {
        const auto entry = finding(report, check);
        EXPECT_EQ(entry["verdict"], verdict) << entry.dump();
        EXPECT_HAS(entry["observed"].get<std::string>(), observed);
        EXPECT_HAS(entry["remedy"].get<std::string>(), remedy);
        if (verdict != "good") {
            EXPECT_NE(entry["remedy"], "") << check;
        }
    }
    // A file of the lab's machine.
    void write(const std::string& path, std::string_view text) const {
        fs::create_directories((lab() / path).parent_path());
        std::ofstream(lab() / path) << text << "\n";
    }
    void remove(const std::string& path) const { fs::remove_all(lab() / path); }
    static constexpr const char* pci = "sys/devices/pci0000:19/0000:19:00.0/";
};

// With the plugin, which the thread sanitizer's build does not have.
// labels: no_tsan
TEST_F(doctor_test, all_is_well) {
    describe("gaudis = 2\nhcas = 1");
    const auto shown = doctor({"-v"});
    EXPECT_HAS(shown.output, "virtual hardware\nthis is the lab: everything below is about virtual devices");
    EXPECT_HAS(shown.output,
               "zero-copy: yes: bytes went from HBM over a NIC into HBM, and every one was right\n");
    EXPECT_NE(shown.status, 1) << shown.output;
    const auto all = probed();
    EXPECT_EQ(all["zero_copy"]["possible"], true);
    for (const auto* check :
         {"kernel.release",     "kernel.user_mem", "kernel.p2pdma",   "kernel.iommu",    "driver.loaded",
          "library.hlthunk",    "library.verbs",   "device.status",   "device.node",     "device.bar",
          "device.link",        "device.iommu",    "device.firmware", "nic.port",        "nic.dmabuf",
          "topology.nic",       "ucx.plugin",      "ucx.transports",  "ucx.net_devices", "probe.export",
          "probe.registration", "probe.transfer"})
        expect(all, check, "good", "");
    EXPECT_HAS(finding(all, "probe.transfer", "gaudi 1 over vhca0:1")["observed"].get<std::string>(),
               "4 MiB from HBM to HBM, every byte right");
    expect(all, "probe.staged", "good", "staged through host memory ");
}

TEST_F(doctor_test, gaudi3_is_probed_by_the_nic_alone) {
    describe("gaudis = 1\nhcas = 1\ngeneration = gaudi3");
    expect(probed(), "probe.transfer", "good", "written and read by the NIC, the device has no engine");
}

TEST_F(doctor_test, the_kernel) {
    describe("gaudis = 1");
    write("boot/config-6.12.0-lab", "CONFIG_EMPTY=y");
    write("proc/cmdline", "root=/dev/sda intel_iommu=on");
    auto seen = report();
    expect(seen, "kernel.user_mem", "broken", "is not set", "use a kernel with it");
    expect(seen, "kernel.p2pdma", "warning", "is not set", "the vendor's driver works without it");
    expect(seen, "kernel.iommu", "warning", "intel_iommu=on without iommu=pt", "boot with iommu=pt");
    remove("boot");
    remove("proc");
    seen = report();
    for (const auto* check : {"kernel.release", "kernel.user_mem", "kernel.p2pdma", "kernel.iommu"})
        expect(seen, check, "unknown", "cannot be read");
}

TEST_F(doctor_test, the_driver) {
    describe("gaudis = 1\ndriver = upstream-6.6");
    expect(report(), "driver.loaded", "warning", "of 6.6.0-lab: it exports nothing but whole allocations",
           "use Linux 6.7 or newer");
    describe("gaudis = 1\ndriver = upstream");
    write("boot/config-6.12.0-lab", "CONFIG_INFINIBAND_USER_MEM=y");
    auto seen = report();
    expect(seen, "driver.loaded", "good", "no Gaudi3, no DMA-BUF import");
    expect(seen, "kernel.p2pdma", "broken", "is not set", "refuses every registration without it");
    remove("sys/module");
    expect(report(), "driver.loaded", "unknown", "is hidden, the driver works", "show /sys");
    describe("gaudis = 0");
    remove("sys/module");
    expect(report(), "driver.loaded", "broken", "does not exist", "modprobe habanalabs");
}

TEST_F(doctor_test, a_device) {
    describe("gaudis = 1");
    write(std::string(pci) + "current_link_width", "8");
    write(std::string(pci) + "iommu_group/type", "DMA-FQ");
    write(std::string(pci) + "fw_os_ver", "hl-gaudi2-1.20.0-fw-54");
    remove("dev/accel");
    auto seen = report();
    expect(seen, "device.link", "warning", "runs at 32.0 GT/s PCIe x8, it can do 32.0 GT/s PCIe x16",
           "reseat");
    expect(seen, "device.iommu", "warning", "type DMA-FQ", "iommu=pt");
    expect(seen, "device.firmware", "warning", "firmware hl-gaudi2-1.20.0-fw-54, driver 1.24.1-lab",
           "one release");
    expect(seen, "device.node", "broken", "/dev/accel/accel0 does not exist", "--device=/dev/accel/accel0");
    remove(std::string(pci) + "resource");
    remove(std::string(pci) + "max_link_speed");
    seen = report();
    expect(seen, "device.bar", "unknown", "cannot be read");
    remove(std::string(pci) + "iommu_group");
    remove(std::string(pci) + "fw_os_ver");
    seen = report();
    expect(seen, "device.iommu", "unknown", "cannot be read");
    expect(seen, "device.firmware", "unknown", "cannot be read");
    expect(report(), "device.link", "unknown", "cannot be read");
}

TEST_F(doctor_test, a_device_without_the_full_bar) {
    describe("gaudis = 1\nsmall_bar = yes");
    const auto seen = probed();
    expect(seen, "device.bar", "broken", "its largest window has 256.00 MiB, its memory", "large BARs");
    expect(seen, "probe.export", "broken", "hlthunk_device_mapped_memory_export_dmabuf_fd", "full BAR");
    EXPECT_EQ(seen["zero_copy"]["possible"], false);
    EXPECT_HAS(seen["zero_copy"]["answer"].get<std::string>(), "no, because gaudi 0: its largest window");
    EXPECT_EQ(doctor({}).status, 1);
}

TEST_F(doctor_test, a_device_that_the_driver_has_disabled) {
    describe("gaudis = 1\nbroken = yes");
    expect(report(), "device.status", "broken", "the driver says", "hl-smi");
}

TEST_F(doctor_test, nothing_there) {
    describe("gaudis = 0\nhcas = 0");
    const auto seen = report();
    expect(seen, "device.list", "broken", "there is no Gaudi", "HABANA_VISIBLE_DEVICES");
    expect(seen, "nic.list", "broken", "there is no RDMA NIC", "/dev/infiniband");
    // Without drivers, and never in the lab on its own.
    const auto bare = run_program({GAUDI_DIRECT_TOOL, "doctor", "--json"},
                                  {"GAUDI_DIRECT_HLTHUNK=/nonexistent", "GAUDI_DIRECT_VERBS=/nonexistent"});
    EXPECT_EQ(bare.status, 1);
    const auto without = json::parse(bare.output);
    EXPECT_EQ(without["kind"], "none");
    expect(without, "library.hlthunk", "broken", "/nonexistent");
    expect(without, "library.verbs", "broken", "/nonexistent");
    expect(without, "device.list", "broken", "");
    const auto shown = run_program({GAUDI_DIRECT_TOOL, "doctor"}, {"GAUDI_DIRECT_HLTHUNK=/nonexistent"});
    EXPECT_HAS(shown.output, "no hardware\n");
    EXPECT_HAS(shown.output, "without hardware, try: gaudi-direct lab run -- gaudi-direct doctor\n");
}

TEST_F(doctor_test, nics) {
    describe("gaudis = 1\nhcas = 3\n[hca 0]\nport_up = no\n[hca 1]\ndmabuf = no\n[hca 2]\nof_gaudi = 0");
    const auto seen = report();
    EXPECT_EQ(finding(seen, "nic.port", "vhca0:1")["verdict"], "warning");
    EXPECT_EQ(finding(seen, "nic.dmabuf", "vhca1:1")["verdict"], "warning");
    expect(seen, "nic.of_gaudi", "good", "never opened here");
    expect(seen, "topology.nic", "broken", "no NIC here moves its memory", "registers DMA-BUFs");
    expect(seen, "ucx.net_devices", "warning", "UCX_NET_DEVICES is not set", "doctor --env");
    expect(report({"UCX_NET_DEVICES=all"}), "ucx.net_devices", "warning", "= all", "start HCCL first");
    expect(report({"UCX_NET_DEVICES=^hbl_0:1"}), "ucx.net_devices", "good", "^hbl_0:1");
    expect(report({"UCX_NET_DEVICES=hbl_0:1"}), "ucx.net_devices", "broken", "hbl_0:1", "leave out");
    const auto answer = probed()["zero_copy"]["answer"].get<std::string>();
    EXPECT_HAS(answer, "no, because gaudi 0: no NIC here moves its memory");
    EXPECT_FALSE(fs::exists(lab() / "hbl_0.opens")) << "a Gaudi's own ports were opened";
}

TEST_F(doctor_test, a_nic_that_the_container_hides) {
    describe("gaudis = 1\nhcas = 2\n[hca 1]\nhidden = yes");
    const auto seen = probed();
    expect(seen, "nic.open", "warning", "cannot be opened: ", "--device=/dev/infiniband");
    EXPECT_HAS(seen["zero_copy"]["answer"].get<std::string>(), "yes: bytes went");
}

TEST_F(doctor_test, a_nic_on_another_numa_node) {
    describe("gaudis = 1\nhcas = 1\n[hca 0]\nnuma_node = 1\npci_switch = 0\n[gaudi 0]\npci_switch = 0");
    expect(report(), "topology.nic", "warning", "vhca0:1", "under the Gaudi's PCI switch");
}

TEST_F(doctor_test, limits) {
    describe("gaudis = 1");
    const auto seen =
        report({}, {"setpriv", "--bounding-set", "-ipc_lock", "prlimit", "--memlock=65536", "--nofile=512"});
    expect(seen, "limits.memlock", "warning", "65536 bytes, less than", "ulimit -l unlimited");
    expect(seen, "limits.nofile", "warning", "512 descriptors", "ulimit -n 65536");
    expect(report({}, {"prlimit", "--nofile=8192:8192"}), "limits.nofile", "good", "8192");
    write("sys/fs/cgroup/rdma.max", "vhca0 hca_handle=0 hca_object=max");
    expect(report(), "limits.rdma", "broken", "the container may open no NIC", "rdma.max");
    write("proc/self/cgroup", "0::/a/pod");
    write("sys/fs/cgroup/a/pod/rdma.max", "vhca0 hca_handle=2 hca_object=100");
    expect(report(), "limits.rdma", "warning", "few objects of the NIC: vhca0 hca_handle=2", "rdma.max");
    write("sys/fs/cgroup/a/pod/rdma.max", "vhca0 hca_handle=max hca_object=max");
    expect(report(), "limits.rdma", "good", "hca_handle=max");
}

TEST_F(doctor_test, a_container_with_little_shared_memory) {
    describe("gaudis = 1");
    // The lab itself lies in /dev/shm.
    const std::string script =
        fmt::format("mkdir {0}/kept && mount --bind {0} {0}/kept && "
                    "mount --move {0}/kept /mnt && mount -t tmpfs -o size=64m none /dev/shm && "
                    "mkdir -m 700 {0} && mount --bind /mnt {0} && exec \"$@\"",
                    root().string());
    const auto shown = doctor({"--json", "--no-probe"}, {}, {"unshare", "-m", "sh", "-c", script, "sh"});
    if (!shown.output.starts_with("{"))
        GTEST_SKIP() << "mounting is not permitted here: " << shown.output;
    expect(json::parse(shown.output), "limits.shm", "warning", "/dev/shm has 64.00 MiB", "--shm-size");
}

TEST_F(doctor_test, libraries) {
    describe("gaudis = 1");
    const auto bare = report({}, {"env", "GAUDI_DIRECT_HLTHUNK=" BARE_HLTHUNK});
    expect(bare, "library.hlthunk", "warning", " lacks ", "the driver's release");
    EXPECT_EQ(finding(report(), "library.synapse")["verdict"], "unknown");
    const auto folder = root() / "vendor";
    fs::create_directory(folder);
    std::ofstream(folder / "libSynapse.so") << "";
    const auto path = {std::string("env"), "LD_LIBRARY_PATH=" + folder.string()};
    expect(report({}, path), "library.synapse", "warning", "but no libscal.so", "LD_LIBRARY_PATH");
    std::ofstream(folder / "libscal.so") << "";
    expect(report({}, path), "library.synapse", "warning", "has none of SCAL's functions",
           "install SynapseAI whole");
    const auto whole = fs::path(LAB_VHCA).parent_path() / "synapse";
    expect(report({}, {"env", "LD_LIBRARY_PATH=" + whole.string()}), "library.synapse", "good",
           fmt::format("{} is asked where its pool is", (whole / "libscal.so").string()));
    const auto info = run_program({GAUDI_DIRECT_TOOL, "lab", "run", "--lab", "default", "--synapse", "--",
                                   GAUDI_DIRECT_TOOL, "info", "--no-probe"},
                                  {"GAUDI_DIRECT_HLTHUNK"});
    EXPECT_HAS(info.output, "SynapseAI's memory: ");
    EXPECT_HAS(info.output, "libscal.so is asked where its pool is\n");
}

TEST_F(doctor_test, settings) {
    describe("gaudis = 1");
    auto seen = report({"UCX_TLS=rc,tcp", "PT_ENABLE_MEMORY_DEFRAGMENTATION=0", "HABANA_VISIBLE_DEVICES=0"});
    expect(seen, "ucx.transports", "warning", "UCX_TLS=rc,tcp leaves Gaudi memory out", "rc,tcp,gaudi_cpy");
    expect(seen, "pytorch.defragmentation", "good", "does not move");
    expect(seen, "synapse.visible", "good", "HABANA_VISIBLE_DEVICES=0");
    seen = report({"UCX_TLS=rc,gaudi_cpy", "UCX_PLUGIN_PATH=/nonexistent"});
    expect(seen, "ucx.transports", "good", "rc,gaudi_cpy");
    expect(report({"UCX_TLS=^gaudi_cpy,gaudi_dma"}), "ucx.transports", "warning", "leaves Gaudi memory out");
    expect(report({"UCX_TLS=rc,gaudi"}), "ucx.transports", "warning", "leaves Gaudi memory out");
    expect(report({"UCX_TLS=rc,gaudi_dma"}), "ucx.transports", "good", "gaudi_dma");
    expect(seen, "ucx.plugin", "warning", "UCX_PLUGIN_PATH=/nonexistent has no libuct_gaudi.so",
           "doctor --env");
    expect(seen, "pytorch.defragmentation", "unknown", "may move", "_data_ptr");
    seen = report({"UCX_PLUGIN_PATH"});
    expect(seen, "ucx.plugin", "warning", "is not set", "doctor --env");
    EXPECT_EQ(doctor({"--no-probe"}, {"UCX_TLS=rc"}).status, 3) << "warnings";
}

// What only a transfer shows.
TEST_F(doctor_test, pcie_that_carries_nothing) {
    describe("gaudis = 1\nhcas = 1\npeer_to_peer = no");
    auto seen = probed();
    expect(seen, "probe.registration", "good", "");
    expect(seen, "probe.transfer", "broken", "4194304 of 4194304 bytes are wrong, the first at 0", "ACS");
    EXPECT_HAS(seen["zero_copy"]["answer"].get<std::string>(),
               "no, because gaudi 0 over vhca0:1: 4194304 of");
    describe("gaudis = 1\nhcas = 1\npeer_to_peer = no\ndriver = upstream");
    seen = probed();
    expect(seen, "probe.registration", "broken", "ibv_reg_dmabuf_mr", "ACS");
    EXPECT_EQ(seen["zero_copy"]["possible"], false);
}

TEST_F(doctor_test, a_device_that_another_process_has) {
    describe("gaudis = 1\nhcas = 1");
    const auto held = root() / "held", end = root() / "end";
    running_program holder(
        {GAUDI_DIRECT_TOOL, "lab", "run", "--lab", "default", "--", DEVICE_HOLDER, held, end},
        {"GAUDI_DIRECT_HLTHUNK"});
    ASSERT_TRUE(soon_true([&] { return fs::exists(held); })) << holder.output();
    const auto seen = probed();
    expect(seen, "probe.device", "unknown", "has it open", "when the device is free");
    EXPECT_EQ(seen["zero_copy"]["answer"], "not known: no device was free to try it");
    EXPECT_HAS(doctor({"--no-probe"}).output, "zero-copy: not known: nothing was tried (--no-probe)\n");
    std::ofstream(end) << "";
    EXPECT_EQ(holder.wait().status, 0);
}

// labels: no_tsan
TEST_F(doctor_test, prints_the_environment) {
    describe("gaudis = 2\nhcas = 3\n[hca 2]\nof_gaudi = 0");
    const auto shown = doctor({"--env"});
    EXPECT_EQ(shown.status, 0) << shown.output;
    EXPECT_HAS(shown.output, "export UCX_PLUGIN_PATH=");
    EXPECT_HAS(shown.output, "export UCX_NET_DEVICES=vhca0:1,vhca1:1\n");
    EXPECT_HAS(shown.output, "# the worker of module 0 (0000:19:00.0): UCX_NET_DEVICES=vhca0:1\n");
    EXPECT_HAS(shown.output, "# the worker of module 1 (0000:1a:00.0): UCX_NET_DEVICES=vhca1:1\n");
    const auto address = [&](const std::string& nic) {
        return fs::canonical(lab() / "sys/class/infiniband" / nic / "device").filename().string();
    };
    EXPECT_HAS(shown.output, fmt::format("export VLLM_GPU_NIC_PCIE_MAPPING=0000:19:00.0={},0000:1a:00.0={}\n"
                                         "export VLLM_NIC_SELECTION_VARS=UCX_NET_DEVICES:1\n",
                                         address("vhca0"), address("vhca1")));
}

TEST_F(doctor_test, the_ucx_that_the_loader_finds) {
    describe("gaudis = 1");
    const auto folder = root() / "ucx";
    const auto with = [&](const std::string& version) {
        return report({"FAKE_UCX=" + version, "LD_LIBRARY_PATH=" + folder.string()});
    };
    expect(with(""), "ucx.version", "unknown", "no libucp.so.0 where the loader looks", "LD_LIBRARY_PATH");
    fs::create_directories(folder);
    for (const auto* name : {"libucp.so.0", "libuct.so.0"})
        fs::copy_file(FAKE_UCX, folder / name);
    expect(with("1.20.1"), "ucx.version", "broken", "UCX 1.20.1 of " + folder.string(),
           "use UCX 1.22 or newer");
    expect(with("1.21.0"), "ucx.version", "warning", "UCX 1.21.0 of", "use UCX 1.22 or newer");
    const auto seen = with("1.23.0");
    expect(seen, "ucx.version", "good", "UCX 1.23.0 of");
    expect(seen, "ucx.loads_plugin", "warning", "UCX has no memory domain gaudi_copy", "see ucx.plugin");
    std::ofstream(folder / "libucp.so.0") << "no library";
    expect(with("1.23.0"), "ucx.version", "warning", "cannot be loaded", "ldd ");
}

TEST_F(doctor_test, packages_of_the_python_that_the_shell_finds) {
    describe("gaudis = 1");
    const auto folder = root() / "python";
    const auto package = [&](const std::string& version) {
        fs::remove_all(folder);
        const auto info = folder / fmt::format("nixl_cu12-{}.dist-info", version);
        fs::create_directories(info);
        std::ofstream(info / "METADATA")
            << "Metadata-Version: 2.1\nName: nixl-cu12\nVersion: " << version << "\n";
        std::ofstream(info / "RECORD") << "nixl_cu12.libs/libucp-1.so.0.0.0,,\n";
        return report({"PYTHONPATH=" + folder.string()});
    };
    expect(package("1.4.1"), "python.packages", "good",
           fmt::format("nixl-cu12 1.4.1 with a UCX in {}", (folder / "nixl_cu12.libs").string()));
    expect(package("1.3.2"), "python.packages", "warning", "nixl-cu12 1.3.2", "use nixl-cu12 1.4.1 or newer");
    fs::create_directories(root() / "none");
    expect(report({}, {"env", "PATH=" + (root() / "none").string()}), "python.packages", "unknown",
           "python3 has none of NIXL, PyTorch, vLLM and MPI", "activate their environment");
}

TEST_F(doctor_test, a_driver_that_hangs_or_crashes_is_a_finding) {
    describe("gaudis = 1\nhcas = 1");
    const auto with = [&](const std::string& script) {
        return doctor({"--timeout", "1"}, {"GAUDI_LAB_FAULTS=" + script});
    };
    const auto hangs = with("hlthunk_wait_for_cs 1 delay 60s");
    EXPECT_EQ(hangs.status, 1);
    EXPECT_HAS(hangs.output, "doctor.time              no answer for 1 s after probe.");
    EXPECT_HAS(hangs.output, "zero-copy: no, because no answer for 1 s after probe.");
    EXPECT_HAS(with("hlthunk_open 1 delay 60s").output, "no answer for 1 s after synapse.visible");
    EXPECT_HAS(with("hlthunk_wait_for_cs 1 die").output, "signal 9 ended the checks after probe.");
}

TEST_F(doctor_test, what_the_probe_meets) {
    describe("gaudis = 1\nhcas = 1");
    const auto with = [&](const std::string& script) {
        return json::parse(doctor({"--json"}, {"GAUDI_LAB_FAULTS=" + script}).output);
    };
    expect(with("hlthunk_open every errno EIO"), "probe.device", "broken", "hlthunk_open of 0000:19:00.0",
           "");
    expect(with("hlthunk_device_memory_alloc every errno ENOMEM"), "probe.memory", "broken", "", "");
    expect(with("ibv_create_qp every errno ENOMEM"), "probe.connection", "broken", "ibv_create_qp", "");
}

// Root may open everything: these run without the capabilities for that.
TEST_F(doctor_test, a_node_that_may_not_be_opened) {
    describe("gaudis = 1");
    const auto node = lab() / "dev/accel/accel0";
    fs::permissions(node, fs::perms::none);
    const auto seen = report({}, {"setpriv", "--bounding-set=-dac_override,-dac_read_search",
                                  "--inh-caps=-dac_override,-dac_read_search"});
    fs::permissions(node, fs::perms::owner_read | fs::perms::owner_write);
    expect(seen, "device.node", "broken", "/dev/accel/accel0 may not be opened by this user",
           "add the user to the group that owns it");
    expect(report(), "device.node", "good", "/dev/accel/accel0");
}

TEST_F(doctor_test, a_device_of_unknown_generation) {
    describe("gaudis = 1");
    const auto seen = report({"GAUDI_LAB_FAULTS=hlthunk_get_device_name_from_fd every errno EINVAL"});
    expect(seen, "device.generation", "broken", "the driver does not say which generation it is",
           "use a newer hl-thunk");
    EXPECT_HAS(finding(seen, "device.status")["observed"].get<std::string>(), "unknown generation");
}

// The Gaudi and the NIC get a place below a switch: a root port, its upstream port, a downstream port for
// each.
TEST_F(doctor_test, acs_of_the_bridges_between_them) {
    describe("gaudis = 1\nhcas = 1");
    expect(report(), "topology.acs", "good", "no bridge between them is seen");
    const auto sys = lab() / "sys";
    const std::string above = "devices/pci0000:10/0000:10:01.0/0000:11:00.0/";
    const auto put_below = [&](const std::string& port, const std::string& device) {
        const auto link = sys / "bus/pci/devices" / device;
        const auto from = fs::canonical(link), to = sys / (above + port) / device;
        fs::create_directories(to.parent_path());
        fs::rename(from, to);
        fs::remove(link);
        fs::create_symlink(to, link);
    };
    put_below("0000:12:00.0", "0000:19:00.0");
    put_below("0000:12:01.0", "0000:60:00.0");
    fs::remove(sys / "class/infiniband/vhca0");
    fs::create_symlink(sys / (above + "0000:12:01.0/0000:60:00.0/infiniband/vhca0"),
                       sys / "class/infiniband/vhca0");
    // The capability is the second one of a port, behind another.
    const auto give_registers = [&](const std::string& path, unsigned control, std::size_t size = 4096) {
        std::string config(size, '\0');
        if (size > 0x150) {
            const std::uint32_t first = 0x14010001, acs = 0x0001000d, registers = control << 16;
            std::memcpy(&config[0x100], &first, 4);
            std::memcpy(&config[0x140], &acs, 4);
            std::memcpy(&config[0x144], &registers, 4);
        }
        std::ofstream(sys / path / "config", std::ios::binary) << config;
        const auto link = sys / "bus/pci/devices" / fs::path(path).filename();
        fs::remove(link);
        fs::create_symlink(sys / path, link);
    };
    give_registers(above + "0000:12:00.0", 0);
    give_registers(above + "0000:12:01.0", 0x13); // no redirection
    expect(report(), "topology.acs", "good", "no redirection at 0000:12:00.0, 0000:12:01.0");
    give_registers(above + "0000:12:01.0", 0x1d);
    expect(report(), "topology.acs", "warning", "ACS redirects requests between devices at 0000:12:01.0",
           "setpci -s 0000:12:01.0 ECAP_ACS+6.w=0000");
    give_registers(above + "0000:12:01.0", 0, 64);
    expect(report(), "topology.acs", "unknown", "the registers of 0000:12:01.0 are hidden",
           "run doctor as root");
}

} // namespace
