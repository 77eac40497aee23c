// SPDX-License-Identifier: BSD-3-Clause
#include "tools/rdma/endpoint.hpp"

#include "tools/self.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <fmt/format.h>
#include <fstream>
#include <mutex>

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

outcome<gaudi::nic_choice> nic_choice_of(const options& options) {
    gaudi::nic_choice choice;
    choice.name = options.nic;
    choice.gid_index = options.gid_index;
    if (const auto colon = options.nic.find(':'); colon != options.nic.npos) {
        choice.name = options.nic.substr(0, colon);
        const auto port = options.nic.substr(colon + 1);
        const auto* end = port.data() + port.size();
        if (const auto [rest, wrong] = std::from_chars(port.data(), end, choice.port);
            wrong != std::errc{} || rest != end || choice.port == 0 || choice.name.empty())
            return tl::unexpected(
                failure{usage, fmt::format("--ib-dev '{}': expected NAME or NAME:PORT, ports count from 1",
                                           options.nic)});
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

// Allocates and touches host memory. The kernel would grant more than there is, and end a process when it is
// used; so some is left to others, and one client of a server at a time checks and takes its part.
outcome<std::vector<std::byte>> allocate_host(std::uint64_t size) {
    static std::mutex one_at_a_time;
    const std::lock_guard guard(one_at_a_time);
    const auto total = number_in("/proc/meminfo", "MemTotal:").value_or(0) << 10;
    const auto reserve = std::min<std::uint64_t>(total / 16, 1 << 30), available = memory_available();
    const auto usable = available - std::min(available, reserve);
    if (size > usable)
        return tl::unexpected(
            failure{no_setup, fmt::format("--size {}: {} MiB of memory are available on this host or in "
                                          "this container, of which {} MiB are kept free; use a smaller size",
                                          size, available >> 20, reserve >> 20)});
    return std::vector<std::byte>(size);
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

outcome<endpoint> endpoint::open(const options& options) {
    const auto device_choice = device_choice_of(options.device);
    if (!device_choice)
        return tl::unexpected(device_choice.error());
    auto nic_choice = nic_choice_of(options);
    if (!nic_choice)
        return tl::unexpected(nic_choice.error());
    endpoint home;
    const stopwatch opening;
    if (options.memory != "host") {
        auto opened = gaudi::open_device(*device_choice);
        if (opened)
            home.device = *opened;
        else if (options.memory == "gaudi" || !options.device.empty() || !options.require.empty() ||
                 !means_none(opened.error()))
            return tl::unexpected(failed(opened.error(), no_setup));
        else
            home.why_host = opened.error().message();
    }
    if (home.device)
        nic_choice->near_to = home.device->info();
    auto nic = gaudi::open_nic(*nic_choice);
    if (!nic)
        return tl::unexpected(failed(nic.error(), no_setup));
    home.nic = *nic;
    home.open_seconds = opening.seconds();
    home.verbs = gaudi::loaded_verbs().value_or("");
    if (const auto driver = gaudi::loaded_driver(); driver && home.device)
        home.hlthunk = driver->path;
    home.is_virtual = tools::is_virtual(home.verbs) || (home.device && tools::is_virtual(home.hlthunk));
    return home;
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
    json report = {
        {"virtual", is_virtual},
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
        report["device"] = {
            {"index", described.index}, {"product", described.product}, {"bus_id", described.bus_id}};
    }
    return report;
}

outcome<buffer> buffer::make(const endpoint& home, std::uint64_t size, const options& options) {
    buffer result;
    result.size_ = size;
    result.nic_ = home.nic;
    if (!home.device) {
        const stopwatch allocating;
        auto allocated = allocate_host(size);
        if (!allocated)
            return tl::unexpected(allocated.error());
        result.host_ = std::move(*allocated);
        result.allocate_seconds = allocating.seconds();
        const stopwatch registering;
        auto region = home.nic->region(result.host_);
        if (!region)
            return tl::unexpected(failed(region.error(), no_setup));
        result.register_seconds = registering.seconds();
        result.region_ = *region;
        return result;
    }
    result.device_ = home.device;
    const stopwatch allocating;
    auto memory = home.device->heap().allocate(size);
    if (!memory)
        return tl::unexpected(failed(memory.error(), no_setup));
    result.memory_ = std::move(*memory);
    result.allocate_seconds = allocating.seconds();
    result.copies_.emplace();
    if (options.policy() != gaudi::path_policy::staged_only) {
        const stopwatch exporting;
        (void)result.memory_.dmabuf(); // region() below reports a failure
        result.export_seconds = exporting.seconds();
    }
    const stopwatch registering;
    auto region = home.nic->region(*home.device, result.memory_, options.policy());
    if (!region)
        return tl::unexpected(failed(region.error(), no_setup));
    result.register_seconds = registering.seconds();
    result.region_ = *region;
    result.host_.resize(std::min<std::uint64_t>(size, piece_bytes));
    return result;
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
        else if (const auto mismatch = what.check(piece, offset))
            return tl::unexpected(failure{wrong, mismatch->text()});
        if (doing == action::check_and_double)
            double_elements(piece);
        if (copies_ && doing != action::check)
            if (auto written = finish(copies_->copy(there, piece)); !written)
                return written;
    }
    return {};
}

} // namespace tools::rdma
