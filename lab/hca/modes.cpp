// SPDX-License-Identifier: BSD-3-Clause
#include "lab/hca/modes.hpp"

#include "lab/hca/process.hpp"
#include "lab/world/text.hpp"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <random>
#include <string_view>

namespace lab::hca {
namespace {

struct mode {
    bool deferred = false;
    std::uint64_t delay_ns = 0, posted_ns = 0;
    std::uint64_t rnr_every = 0, error_every = 0;
};

std::optional<std::uint64_t> parse_time(std::string_view text) {
    std::uint64_t unit = 0;
    if (text.ends_with("us"))
        unit = 1000;
    else if (text.ends_with("ms"))
        unit = 1000000;
    else
        return std::nullopt;
    const auto value = parse_unsigned(text.substr(0, text.size() - 2), 1000000);
    return value ? std::optional(*value * unit) : std::nullopt;
}

bool apply_word(mode& into, std::string_view word) {
    if (word == "deferred") {
        into.deferred = true;
        return true;
    }
    if (word.starts_with("delay="))
        if (const auto time = parse_time(word.substr(6))) {
            into.delay_ns = *time;
            return true;
        }
    if (word.starts_with("posted="))
        if (const auto time = parse_time(word.substr(7)); time && *time > 0) {
            into.posted_ns = *time;
            return true;
        }
    if (word.starts_with("rnr="))
        if (const auto every = parse_unsigned(word.substr(4), UINT32_MAX); every && *every > 0) {
            into.rnr_every = *every;
            return true;
        }
    if (word.starts_with("error="))
        if (const auto every = parse_unsigned(word.substr(6), UINT32_MAX); every && *every > 0) {
            into.error_every = *every;
            return true;
        }
    return false;
}

mode read_mode() {
    mode from_environment;
    const char* text = std::getenv("GAUDI_LAB_HCA_MODE");
    if (text == nullptr)
        return from_environment;
    std::string_view rest = text;
    while (!rest.empty()) {
        const auto word = rest.substr(0, rest.find(','));
        if (!apply_word(from_environment, trim(word))) {
            // An unknown mode must not silently mean the default.
            std::fprintf(stderr,
                         "gaudi-lab: GAUDI_LAB_HCA_MODE=%s: expected deferred, delay=TIME (50us, 2ms), "
                         "posted=TIME, rnr=N or error=N, separated by commas\n",
                         text);
            std::_Exit(2);
        }
        rest.remove_prefix(std::min(rest.size(), word.size() + 1));
    }
    return from_environment;
}

mode& chosen() {
    static mode made;
    return made;
}

bool& ucx_fence() {
    static bool chosen_so = false;
    return chosen_so;
}

bool read_quirks() {
    const char* text = std::getenv("GAUDI_LAB_HCA_QUIRKS");
    if (text == nullptr || *text == '\0')
        return false;
    if (std::strcmp(text, "ucx-fence") != 0) {
        std::fprintf(stderr, "gaudi-lab: GAUDI_LAB_HCA_QUIRKS=%s: expected ucx-fence\n", text);
        std::_Exit(2);
    }
    return true;
}

} // namespace

void decide_modes() {
    auto& how = chosen();
    how = read_mode();
    ucx_fence() = read_quirks();
    mode_is_set =
        how.deferred || how.delay_ns != 0 || how.posted_ns != 0 || how.rnr_every != 0 || how.error_every != 0;
}

std::uint64_t due_time_of_mode() {
    const auto& how = chosen();
    if (how.delay_ns != 0) {
        thread_local std::minstd_rand random(std::random_device{}());
        return now_ns() + random() % how.delay_ns;
    }
    return 0;
}

bool runs_later_by_mode() {
    return chosen().deferred || chosen().delay_ns != 0;
}

std::uint64_t posted_for_by_mode() {
    return chosen().posted_ns;
}

bool is_answered_ucx_fence(std::uint64_t address, std::uint32_t key, std::uint64_t length) {
    return address == 0 && key == 0xff && length == 8 && ucx_fence();
}

bool fails_by_mode() {
    const auto& how = chosen();
    static std::atomic<std::uint64_t> requests{0};
    return how.error_every != 0 && requests.fetch_add(1) % how.error_every == how.error_every - 1;
}

bool sends_away_by_mode() {
    return chosen().rnr_every != 0;
}

bool receiver_not_ready_by_mode() {
    const auto& how = chosen();
    static std::atomic<std::uint64_t> deliveries{0};
    return how.rnr_every != 0 && deliveries.fetch_add(1) % how.rnr_every == how.rnr_every - 1;
}

} // namespace lab::hca
