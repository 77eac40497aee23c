// SPDX-License-Identifier: BSD-3-Clause
#include "tools/commands.hpp"
#include "tools/self.hpp"

#include <gaudi/gaudi.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace tools {
namespace {

using json = nlohmann::ordered_json;

// A small buffer in the place that the user named: "host", or a device.
class named_place {
public:
    static gaudi::result<named_place> make(const std::string& name) {
        named_place named;
        if (name == "host") {
            named.host_.resize(bytes);
            named.title_ = "host memory";
            return named;
        }
        const auto choice = gaudi::parse_device_choice(name);
        if (!choice || name.empty() || name == "auto")
            return tl::unexpected(gaudi::error(
                gaudi::errc::setting_malformed,
                fmt::format("--paths {}: use host, an index, a PCI bus id or module:<id>", name)));
        auto opened = gaudi::open_device(*choice);
        if (!opened)
            return tl::unexpected(opened.error());
        auto memory = (*opened)->heap().allocate(bytes);
        if (!memory)
            return tl::unexpected(memory.error());
        named.title_ = fmt::format("gaudi {}", (*opened)->info().index);
        named.memory_ = std::move(*memory);
        return named;
    }
    [[nodiscard]] gaudi::place place() { return memory_ ? gaudi::place(memory_) : gaudi::place(host_); }
    [[nodiscard]] const std::string& title() const { return title_; }

private:
    static constexpr std::size_t bytes = 4096;
    std::string title_;
    std::vector<std::byte> host_;
    gaudi::device_buffer memory_; // keeps its device open
};

// A reason other than no_path is printed with the meaning of its error code.
std::string why_not(const gaudi::error& reason) {
    if (reason.code() == gaudi::errc::no_path)
        return reason.observed();
    return fmt::format("{} ({})", gaudi::describe(reason.code()).meaning, reason.observed());
}

json verdict_json(const gaudi::path_verdict& verdict) {
    return {{"path", gaudi::name_of(verdict.path)},
            {"viable", !verdict.why_not},
            {"zero_copy", gaudi::is_zero_copy(verdict.path)},
            {"why_not", verdict.why_not ? json(why_not(*verdict.why_not)) : json(nullptr)}};
}

} // namespace

int paths(const info_options& options) {
    auto from = named_place::make(options.places.at(0));
    auto to = from ? named_place::make(options.places.at(1)) : tl::unexpected(from.error());
    if (!to) {
        std::fflush(stdout); // keeps the order of earlier output and this message
        fmt::print(stderr, "gaudi-direct: {}\n", to.error().message());
        return to.error().code() == gaudi::errc::setting_malformed ? usage : failed;
    }
    const auto verdicts = gaudi::copier().paths(to->place(), from->place());
    bool first = true; // of the viable paths
    json report = {{"from", from->title()}, {"to", to->title()}, {"paths", json::array()}};
    if (!options.as_json)
        fmt::print("from {} to {}, in the order in which paths are tried\n", from->title(), to->title());
    for (const auto& verdict : verdicts) {
        const bool viable = !verdict.why_not;
        report["paths"].push_back(verdict_json(verdict));
        if (!options.as_json)
            fmt::print("  {:<27} {}\n", gaudi::name_of(verdict.path),
                       !viable ? fmt::format("no: {}", why_not(*verdict.why_not))
                               : fmt::format("viable{}{}",
                                             gaudi::is_zero_copy(verdict.path) ? "" : ", not zero-copy",
                                             first ? "; this one is used" : ""));
        first = first && !viable;
    }
    if (options.as_json)
        fmt::print("{}\n", report.dump(2));
    return first ? failed : ok;
}

} // namespace tools
