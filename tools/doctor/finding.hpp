// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

// What one check of `gaudi-direct doctor` observed.
namespace tools::doctor {

// In this order, the last one the worst.
enum class verdict { good, unknown, warning, broken };
[[nodiscard]] std::string_view name_of(verdict value);

struct finding {
    std::string check;   // a stable name, such as "driver.kind"
    std::string subject; // what it is about: "gaudi 0", "mlx5_0:1"; empty: the machine
    verdict result = verdict::good;
    std::string observed;
    std::string remedy; // empty for good ones
};

// The findings of a run, in the order in which the checks depend on each other.
class report {
public:
    void good(std::string check, std::string subject, std::string observed) {
        add({std::move(check), std::move(subject), verdict::good, std::move(observed), {}});
    }
    void unknown(std::string check, std::string subject, std::string observed, std::string remedy) {
        add({std::move(check), std::move(subject), verdict::unknown, std::move(observed), std::move(remedy)});
    }
    void warning(std::string check, std::string subject, std::string observed, std::string remedy) {
        add({std::move(check), std::move(subject), verdict::warning, std::move(observed), std::move(remedy)});
    }
    void broken(std::string check, std::string subject, std::string observed, std::string remedy) {
        add({std::move(check), std::move(subject), verdict::broken, std::move(observed), std::move(remedy)});
    }
    void add(finding entry) {
        if (announce_)
            announce_(entry);
        findings_.push_back(std::move(entry));
    }
    // Called for each finding as it is made.
    void announce(std::function<void(const finding&)> to) { announce_ = std::move(to); }

    [[nodiscard]] const std::vector<finding>& findings() const { return findings_; }
    [[nodiscard]] verdict worst() const;
    // The first broken one of this machine itself: settings of other programs and other machines decide
    // nothing here. nullptr: none is.
    [[nodiscard]] const finding* first_broken_here() const;

private:
    std::vector<finding> findings_;
    std::function<void(const finding&)> announce_;
};

} // namespace tools::doctor
