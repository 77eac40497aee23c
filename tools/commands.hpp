// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tools {

// Each command as a function of its options; returns the exit status. The command line itself is in
// gaudi_direct.cpp.
struct info_options {
    bool as_json = false;
    bool no_lab = false;
    bool no_probe = false;
    std::vector<std::string> places; // from, to: print the paths between them instead
};
[[nodiscard]] int info(const info_options& options);
[[nodiscard]] int paths(const info_options& options);

[[nodiscard]] int topo(bool as_json);

struct doctor_options {
    bool as_json = false, as_environment = false, no_probe = false, verbose = false, serves = false;
    bool quiet = false;         // prints no finding
    unsigned seconds = 60;      // that a check may take
    std::string peer;           // HOST or HOST:PORT
    std::uint16_t port = 20010; // where `serves` listens
};
[[nodiscard]] int run_doctor(const doctor_options& options);

struct selftest_options {
    std::string report = "gaudi-direct-selftest.json", filter = "*";
    bool verbose = false;
};
[[nodiscard]] int run_selftest(const selftest_options& options);

struct measure_options {
    std::string device;
    bool as_json = false;
    bool as_environment = false;
};
[[nodiscard]] int measure(const measure_options& options);

struct lab_run_options {
    std::string name;
    std::optional<unsigned> gaudis, hcas;
    std::optional<std::string> generation;
    std::string config, faults, ucx;
    bool synapse = false;
    std::vector<std::string> command;
};
[[nodiscard]] int lab_run(const lab_run_options& options);
[[nodiscard]] int lab_list(bool as_json);
[[nodiscard]] int lab_show(const std::string& name, bool as_json);
// `port`: vhcaN for all of its ports, or vhcaN/P.
[[nodiscard]] int lab_port(const std::string& name, const std::string& port, bool up);
[[nodiscard]] int lab_clean(const std::string& name);
[[nodiscard]] std::string default_lab();

} // namespace tools
