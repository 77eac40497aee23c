// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "tools/doctor/finding.hpp"

#include <gaudi/device_info.hpp>

#include <cstdint>
#include <string>
#include <vector>

// Two doctors, one on each of two servers: do their NICs reach each other, and do bytes arrive?
namespace tools::doctor {

constexpr std::uint16_t default_doctor_port = 20010;

// Connects to the other one, at "host" or "host:port". `devices`: those whose memory may be used here.
void check_peer(report& into, const std::string& peer, const std::vector<gaudi::device_info>& devices);

// Is the other one: waits for one doctor, answers it until it leaves, and prints what happens. False: it
// cannot listen, or the peer left early.
[[nodiscard]] bool serve_peer(std::uint16_t port, const std::vector<gaudi::device_info>& devices);

} // namespace tools::doctor
