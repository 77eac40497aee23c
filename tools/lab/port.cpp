// SPDX-License-Identifier: BSD-3-Clause
#include "tools/lab/lab.hpp"

#include "lab/hca/segment.hpp"
#include "lab/world/ports.hpp"

#include <fmt/format.h>

namespace tools {

namespace fs = std::filesystem;

int lab_port(const std::string& name, const std::string& port, bool up) {
    if (auto valid = lab::check_name(name); !valid)
        return complain(valid.error());
    const auto top = lab::root();
    if (!top)
        return complain(top.error(), failed);
    if (!fs::exists(*top / name / "description"))
        return complain(no_such_lab(name), failed);
    const auto entered = lab::folder::enter(name, std::nullopt);
    if (!entered)
        return complain(entered.error(), failed);
    const auto links = lab::port_states::open(entered->path());
    if (!links)
        return complain(links.error(), failed);
    std::string port_names;
    bool matched = false;
    const auto& hcas = entered->contents().hcas;
    for (unsigned i = 0; i < hcas.size(); ++i)
        for (unsigned number = 1; number <= hcas[i].ports; ++number) {
            const auto hca = entered->contents().name_of_hca(i), one = fmt::format("{}/{}", hca, number);
            port_names += (port_names.empty() ? "" : ", ") + one;
            if (port != hca && port != one)
                continue;
            links->set(i, number, up);
            matched = true;
        }
    if (!matched)
        return complain(
            {fmt::format("lab '{}' has no port '{}'; it has {}; a NIC's name alone is all of its ports", name,
                         port, port_names.empty() ? "no NIC" : port_names)});
    lab::hca::ring_all(entered->path() / "hca");
    return ok;
}

} // namespace tools
