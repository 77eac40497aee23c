// SPDX-License-Identifier: BSD-3-Clause
#include "tools/rdma/endpoint.hpp"

#include "tools/self.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <fmt/format.h>
#include <fstream>

namespace tools::rdma {
namespace {

constexpr std::size_t piece_bytes = 16 << 20;

outcome<gaudi::device_choice> device_choice_of(const std::string& text) {
    const auto choice = gaudi::parse_device_choice(text);
    if (!choice)
        return tl::unexpected(failure{
            usage, fmt::format("--device '{}': expected an index such as 0 or a bus id such as 0000:19:00.0",
                               text)});
    return *choice;
}

outcome<gaudi::nic_choice> nic_choice_of(const options& given) {
    gaudi::nic_choice choice;
    choice.name = given.nic;
    choice.gid_index = given.gid_index;
    if (const auto colon = given.nic.find(':'); colon != given.nic.npos) {
        choice.name = given.nic.substr(0, colon);
        const auto port = given.nic.substr(colon + 1);
        const auto* end = port.data() + port.size();
        if (const auto [rest, wrong] = std::from_chars(port.data(), end, choice.port);
            wrong != std::errc{} || rest != end || choice.port == 0 || choice.name.empty())
            return tl::unexpected(
                failure{usage, fmt::format("--ib-dev '{}': expected NAME or NAME:PORT, ports count from 1",
                                           given.nic)});
    }
    return choice;
}

// The first number after `name` in a file of the kernel's; nothing where there is none.
std::optional<std::uint64_t> number_in(const char* file, std::string_view name) {
    std::ifstream lines(file);
    for (std::string line; std::getline(lines, line);) {
        std::uint64_t value = 0;
        const auto digits = line.find_first_of("0123456789", name.size());
        if (line.starts_with(name) && digits != line.npos &&
            std::from_chars(line.data() + digits, line.data() + line.size(), value).ec == std::errc{})
            return value;
    }
    return std::nullopt;
}

// What this process can use before the kernel ends processes: of the machine, and of the container where it
// has a limit.
std::uint64_t memory_available() {
    constexpr std::string_view group = "/sys/fs/cgroup/memory.stat";
    const auto machine = number_in("/proc/meminfo", "MemAvailable:");
    const auto left = machine ? *machine << 10 : UINT64_MAX;
    const auto limit = number_in("/sys/fs/cgroup/memory.max", ""),
               used = number_in("/sys/fs/cgroup/memory.current", "");
    if (!limit || !used)
        return left;
    const auto cached = number_in(group.data(), "active_file ").value_or(0) +
                        number_in(group.data(), "inactive_file ").value_or(0);
    const auto held = *used - std::min(*used, cached);
    return std::min(left, *limit - std::min(*limit, held));
}

// Errors that mean "there is no Gaudi", as opposed to one that is busy or broken.
bool means_none(const gaudi::error& why) {
    using gaudi::errc;
    return why.code() == errc::library_missing || why.code() == errc::no_device;
}

} // namespace

failure failed(const gaudi::error& why, int status) {
    using gaudi::errc;
    if (why.code() == errc::zero_copy_impossible)
        status = no_zero_copy;
    else if (why.kind() == gaudi::error_kind::peer_gone && status == wrong)
        status = peer_lost;
    return {status, why.message()};
}

outcome<endpoint> endpoint::open(const options& given) {
    const auto device_choice = device_choice_of(given.device);
    if (!device_choice)
        return tl::unexpected(device_choice.error());
    auto nic_choice = nic_choice_of(given);
    if (!nic_choice)
        return tl::unexpected(nic_choice.error());
    endpoint made;
    const stopwatch opening;
    if (given.memory != "host") {
        auto opened = gaudi::open_device(*device_choice);
        if (opened)
            made.device = *opened;
        else if (given.memory == "gaudi" || !given.device.empty() || !given.require.empty() ||
                 !means_none(opened.error()))
            return tl::unexpected(failed(opened.error(), no_setup));
        else
            made.why_host = opened.error().message();
    }
    if (made.device)
        nic_choice->near_to = made.device->info();
    auto nic = gaudi::open_nic(*nic_choice);
    if (!nic)
        return tl::unexpected(failed(nic.error(), no_setup));
    made.nic = *nic;
    made.open_seconds = opening.seconds();
    made.verbs = gaudi::loaded_verbs().value_or("");
    if (const auto driver = gaudi::loaded_driver(); driver && made.device)
        made.hlthunk = driver->path;
    made.is_virtual = tools::is_virtual(made.verbs) || (made.device && tools::is_virtual(made.hlthunk));
    return made;
}

std::string endpoint::device_text() const {
    if (!device)
        return why_host.empty() ? "host memory"
                                : fmt::format("HOST MEMORY, because there is no Gaudi: {}", why_host);
    const auto info = device->info();
    return fmt::format("{}: {} {}, {}", info.index, info.generation ? gaudi::name_of(*info.generation) : "?",
                       info.product, info.bus_id);
}

std::string endpoint::nic_text() const {
    const auto& info = nic->info();
    return fmt::format("{} port {}: {} {:.0f} Gbit/s, GID {}; chosen: {}", info.name, info.port,
                       info.link_layer == gaudi::link_layer::ethernet ? "RoCE" : "InfiniBand", info.gbps,
                       nic->gid_text(), nic->why_chosen());
}

json endpoint::to_json() const {
    const auto& info = nic->info();
    json made = {{"virtual", is_virtual},
                 {"verbs", verbs},
                 {"device", nullptr},
                 {"why_host", why_host},
                 {"nic",
                  {{"name", info.name},
                   {"port", info.port},
                   {"link_layer", info.link_layer == gaudi::link_layer::ethernet ? "ethernet" : "infiniband"},
                   {"gbps", info.gbps},
                   {"gid", nic->gid_text()},
                   {"dmabuf", info.dmabuf},
                   {"why_chosen", nic->why_chosen()},
                   {"distance", gaudi::name_of(info.distance)}}}};
    if (device) {
        const auto described = device->info();
        made["device"] = {
            {"index", described.index}, {"product", described.product}, {"bus_id", described.bus_id}};
    }
    return made;
}

outcome<buffer> buffer::make(const endpoint& home, std::uint64_t size, const options& given) {
    buffer made;
    made.size_ = size;
    made.nic_ = home.nic;
    if (!home.device) {
        const stopwatch allocating;
        // The kernel would grant more than there is, and end a process when it is used.
        const auto available = memory_available();
        if (size > available)
            return tl::unexpected(
                failure{no_setup, fmt::format("--size {}: {} MiB of memory are available on this host or in "
                                              "this container; use a smaller size",
                                              size, available >> 20)});
        made.host_.resize(size);
        made.allocate_seconds = allocating.seconds();
        const stopwatch registering;
        auto region = home.nic->region(made.host_);
        if (!region)
            return tl::unexpected(failed(region.error(), no_setup));
        made.register_seconds = registering.seconds();
        made.region_ = *region;
        return made;
    }
    made.device_ = home.device;
    const stopwatch allocating;
    auto memory = home.device->heap().allocate(size);
    if (!memory)
        return tl::unexpected(failed(memory.error(), no_setup));
    made.memory_ = std::move(*memory);
    made.allocate_seconds = allocating.seconds();
    made.copies_.emplace();
    if (given.policy() != gaudi::path_policy::staged_only) {
        const stopwatch exporting;
        (void)made.memory_.dmabuf(); // region() below reports a failure
        made.export_seconds = exporting.seconds();
    }
    const stopwatch registering;
    auto region = home.nic->region(*home.device, made.memory_, given.policy());
    if (!region)
        return tl::unexpected(failed(region.error(), no_setup));
    made.register_seconds = registering.seconds();
    made.region_ = *region;
    made.host_.resize(std::min<std::uint64_t>(size, piece_bytes));
    return made;
}

std::string buffer::path_text() const {
    switch (region_.path()) {
    case gaudi::memory_path::zero_copy:
        return "zero-copy: the NIC reads and writes Gaudi memory through its DMA-BUF";
    case gaudi::memory_path::staged:
        return fmt::format("STAGED through host memory: {}", region_.reason());
    default:
        return "host memory, read and written by the NIC directly";
    }
}

json buffer::to_json() const {
    return {{"bytes", size_}, {"path", gaudi::name_of(region_.path())}, {"reason", region_.reason()}};
}

outcome<void> buffer::fill(const pattern& with) {
    return go_through(with, action::fill);
}

outcome<void> buffer::check(const pattern& against) {
    return go_through(against, action::check);
}

outcome<void> buffer::check_and_double(const pattern& against) {
    return go_through(against, action::check_and_double);
}

outcome<void> buffer::finish(gaudi::result<gaudi::copy_ticket> started) {
    const auto done = started ? started->wait() : tl::unexpected(started.error());
    if (!done)
        return tl::unexpected(failed(done.error(), wrong));
    return {};
}

outcome<std::uint64_t> buffer::first_word() {
    std::uint64_t word = 0;
    if (!copies_) {
        std::memcpy(&word, host_.data(), sizeof(word));
        return word;
    }
    const auto bytes = std::as_writable_bytes(std::span(&word, 1));
    return finish(copies_->copy(bytes, gaudi::place(memory_.address(), bytes.size()))).map([&] {
        return word;
    });
}

outcome<void> buffer::go_through(const pattern& what, action doing) {
    const auto step = copies_ ? host_.size() : std::max<std::size_t>(size_, 1);
    for (std::uint64_t offset = 0; offset < size_; offset += step) {
        const auto bytes = std::min<std::uint64_t>(step, size_ - offset);
        const auto piece = std::span(host_).first(bytes);
        const gaudi::place there(memory_ ? memory_.address() + offset : gaudi::device_address(), bytes);
        if (copies_ && doing != action::fill)
            if (auto read = finish(copies_->copy(piece, there)); !read)
                return read;
        if (doing == action::fill)
            what.fill(piece, offset);
        else if (const auto found = what.check(piece, offset))
            return tl::unexpected(failure{wrong, found->text()});
        if (doing == action::check_and_double)
            double_elements(piece);
        if (copies_ && doing != action::check)
            if (auto written = finish(copies_->copy(there, piece)); !written)
                return written;
    }
    return {};
}

} // namespace tools::rdma
