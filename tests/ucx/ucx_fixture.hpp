// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "tests/judges/two_programs.hpp"
#include "tests/support/expect_has.hpp"

#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>

namespace testing_support {

using json = nlohmann::json;

inline const std::string old_ucx = UCX_1_22, new_ucx = UCX_1_23;

inline std::string prefix_of(std::string_view version) {
    return version == "1.22" ? old_ucx : new_ucx;
}

class ucx_test : public judge {
protected:
    ucx_test() { shorten_ucx_timeouts(); }
    // Describes the lab. The default has two Gaudis and one NIC.
    void describe_lab(const std::string& text) {
        std::ofstream(root() / "ucx.lab") << text;
        described_ = true;
    }
    [[nodiscard]] std::vector<std::string> lab(const std::string& prefix, const std::string& command) {
        if (!described_)
            describe_lab("gaudis = 2\nhcas = 1\n");
        return in_lab(fmt::format("--config {} --ucx {}", (root() / "ucx.lab").string(), prefix), command);
    }
    program_result run(const std::string& prefix, const std::string& command,
                       std::vector<std::string> environment = {}, int limit = 60) {
        environment.emplace_back("GAUDI_DIRECT_HLTHUNK");
        return run_program(lab(prefix, command), environment, std::chrono::seconds(limit));
    }
    program_result peers(const std::string& prefix, const std::string& transports, const std::string& more,
                         std::vector<std::string> environment = {}, int limit = 60) {
        environment.push_back(fmt::format("UCX_TLS={},gaudi_cpy", transports));
        environment.push_back(devices_for(transports));
        return run(prefix, fmt::format("{} {}", UCP_PEERS, more), environment, limit);
    }
    // TCP stays on the loopback interface.
    static std::string devices_for(const std::string& transports) {
        const bool tcp = transports.find("tcp") != transports.npos,
                   nic = transports.find("_v") != transports.npos;
        return !tcp ? "UCX_NET_DEVICES=all" : nic ? "UCX_NET_DEVICES=lo,vhca0:1" : "UCX_NET_DEVICES=lo";
    }
    void expect_right(const program_result& result) {
        EXPECT_EQ(result.status, 0) << result.output;
        EXPECT_HAS(result.output, "active: ");
        EXPECT_HAS(result.output, "passive: ");
        EXPECT_HAS_NOT(result.output, "WARN");
        EXPECT_HAS_NOT(result.output, "ERROR");
    }

    // Sums of the virtual NIC's report and of the plugin's counters.
    struct path_counts {
        std::uint64_t bytes = 0, from_dmabuf = 0, to_dmabuf = 0, staged = 0, exports = 0, dma = 0;
    };
    // Each process writes its own log file, so that lines do not interleave.
    [[nodiscard]] std::vector<std::string> counting() {
        return {"UCX_GAUDI_COPY_STATISTICS=y", "UCX_GAUDI_IPC_STATISTICS=y",
                "GAUDI_LAB_HCA_REPORT=" + (root() / "report").string(),
                "UCX_LOG_FILE=" + (root() / "ucx.log.%p").string()};
    }
    // The contents of these files.
    [[nodiscard]] std::string logged() const {
        std::string all;
        for (const auto& each : std::filesystem::directory_iterator(root()))
            if (each.path().filename().string().starts_with("ucx.log.")) {
                std::ifstream log(each.path());
                all.append(std::istreambuf_iterator<char>(log), {});
            }
        return all;
    }
    void forget_counts() {
        for (const auto& file : std::filesystem::directory_iterator(root()))
            if (file.path().filename() == "report" || file.path().filename().string().starts_with("ucx.log."))
                std::filesystem::remove(file.path());
    }
    path_counts paths_of() {
        path_counts sum;
        std::ifstream file(root() / "report");
        for (std::string line; std::getline(file, line);) {
            const auto counted = json::parse(line);
            sum.bytes += counted["bytes"].get<std::uint64_t>();
            sum.from_dmabuf += counted["bytes_from_dmabuf"].get<std::uint64_t>();
            sum.to_dmabuf += counted["bytes_to_dmabuf"].get<std::uint64_t>();
        }
        const std::regex printed(
            R"((\d+) DMA-BUFs exported; staged (\d+) bytes by short, (\d+) by bcopy, (\d+) by zcopy.* (\d+) by gaudi_dma)");
        std::istringstream log(logged());
        std::smatch match;
        for (std::string line; std::getline(log, line);)
            if (std::regex_search(line, match, printed)) {
                sum.exports += std::stoull(match[1]);
                sum.staged += std::stoull(match[2]) + std::stoull(match[3]) + std::stoull(match[4]);
                sum.dma += std::stoull(match[5]);
            }
        return sum;
    }

    // Bytes by path of gaudi_ipc, summed over both processes, in the order of gaudi::copy_path.
    std::array<std::uint64_t, 7> ipc_bytes() {
        std::array<std::uint64_t, 7> sum{};
        const std::regex printed("by path: the CPU ([0-9]+), [^,]* ([0-9]+), [^,]* ([0-9]+), [^,]* "
                                 "([0-9]+), [^,]* ([0-9]+), [^,]* ([0-9]+), [^,]* ([0-9]+)");
        std::istringstream log(logged());
        std::smatch match;
        for (std::string line; std::getline(log, line);)
            if (std::regex_search(line, match, printed))
                for (std::size_t i = 0; i < sum.size(); ++i)
                    sum[i] += std::stoull(match[i + 1]);
        return sum;
    }

private:
    bool described_ = false;
};

// A part of a test's name: words of a command line without the names of options and variables that say
// nothing more than their values.
inline std::string name_of(const auto& info) {
    static const std::regex noise("--(sizes|operations|rounds|one-worker) ?|--(?=threads)|UCX_(GAUDI_)?"),
        others("[^A-Za-z0-9]+"), ends("^_|_$");
    const auto words = std::regex_replace(std::string(info), noise, " ");
    return std::regex_replace(std::regex_replace(words, others, "_"), ends, "");
}

// Runs under UCX 1.22 and 1.23.
class both_versions : public ucx_test, public ::testing::WithParamInterface<const char*> {
protected:
    [[nodiscard]] std::string prefix() const { return prefix_of(GetParam()); }
};

// A run of a program: UCX version, transports, arguments, environment.
struct path {
    const char* version;
    const char* transports;
    const char* more;
    const char* environment;
};

inline void PrintTo(const path& which, std::ostream* to) {
    *to << which.version << ' ' << which.transports << ' ' << which.more << ' ' << which.environment;
}

inline std::string name_of_path(const ::testing::TestParamInfo<path>& info) {
    return name_of(fmt::format("{} {} {} {}", info.param.version, info.param.transports, info.param.more,
                               info.param.environment));
}

} // namespace testing_support
