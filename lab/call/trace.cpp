// SPDX-License-Identifier: BSD-3-Clause
#include "lab/call/trace.hpp"

#include "lab/world/text.hpp"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fmt/format.h>
#include <thread>
#include <unistd.h>
#include <utility>

namespace lab {
namespace {

// GAUDI_LAB_FAULTS holds a script, or @FILE names one. A script that does not parse must not silently mean
// "no faults".
std::vector<fault_rule> faults_of_environment() {
    const char* text = std::getenv("GAUDI_LAB_FAULTS");
    if (text == nullptr || *text == '\0')
        return {};
    result<std::vector<fault_rule>> rules;
    if (*text == '@') {
        const auto file = read_text_file(text + 1);
        rules = file ? parse_faults(*file, text + 1) : tl::unexpected(file.error());
    } else
        rules = parse_faults(text, "GAUDI_LAB_FAULTS");
    if (!rules) {
        std::fprintf(stderr, "gaudi-lab: %s\n", rules.error().text.c_str());
        std::_Exit(2);
    }
    return *rules;
}

std::FILE* open_trace() {
    const char* target = std::getenv("GAUDI_LAB_TRACE");
    if (target == nullptr || *target == '\0' || std::strcmp(target, "0") == 0)
        return nullptr;
    if (std::strcmp(target, "1") == 0)
        return stderr;
    std::FILE* file = std::fopen(target, "ae");
    if (file == nullptr)
        std::fprintf(stderr, "gaudi-lab: GAUDI_LAB_TRACE=%s: %s; tracing to standard error\n", target,
                     std::strerror(errno));
    return file != nullptr ? file : stderr;
}

std::FILE* trace_file() {
    static std::FILE* const file = open_trace();
    return file;
}

} // namespace

fault_injector& faults() {
    static auto* injector = [] {
        auto* made = new fault_injector;
        made->arm(faults_of_environment());
        return made;
    }();
    return *injector;
}

int arm_faults(const char* script) {
    auto rules = parse_faults(script, "script");
    if (!rules) {
        std::fprintf(stderr, "gaudi-lab: %s\n", rules.error().text.c_str());
        return -EINVAL;
    }
    faults().arm(std::move(*rules));
    return 0;
}

int carry_out(const fault& chosen) {
    switch (chosen.action) {
    case fault_action::fail:
        return chosen.error_number;
    case fault_action::delay:
        std::this_thread::sleep_for(chosen.pause);
        break;
    case fault_action::die:
        ::kill(::getpid(), SIGKILL);
        break;
    case fault_action::short_result:
    case fault_action::reset:
        break;
    }
    return 0;
}

bool tracing() {
    return trace_file() != nullptr;
}

void trace(const char* name, const std::string& arguments, const std::string& outcome,
           std::uint64_t nanoseconds) {
    const auto line =
        fmt::format("[{}] {}({}) = {} {} us\n", ::getpid(), name, arguments, outcome, nanoseconds / 1000);
    std::fwrite(line.data(), 1, line.size(), trace_file());
    std::fflush(trace_file());
}

std::string shown(std::uint64_t value) {
    return value < 10 ? fmt::format("{}", value) : fmt::format("{:#x}", value);
}

std::string shown(std::int64_t value) {
    if (value < 0 && value > -4096)
        if (const char* name = strerrorname_np(static_cast<int>(-value)); name != nullptr)
            return fmt::format("{} {}", value, name);
    return fmt::format("{}", value);
}

std::string shown_errno(int error) {
    const char* name = strerrorname_np(error);
    return name != nullptr ? fmt::format(" {}", name) : "";
}

std::string shown(const char* text) {
    return text == nullptr ? "NULL" : fmt::format("\"{}\"", text);
}

std::string shown(const void* pointer) {
    return pointer == nullptr ? "NULL" : fmt::format("{}", pointer);
}

} // namespace lab
