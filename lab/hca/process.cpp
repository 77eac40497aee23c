// SPDX-License-Identifier: BSD-3-Clause
#include "lab/hca/process.hpp"

#include "lab/dmabuf.h"
#include "lab/hca/devices.hpp"
#include "lab/hca/housekeeping.hpp"
#include "lab/hca/wire.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace lab::hca {
namespace {

thread_local bool is_guard = false;

// The addresses on which the Ethernet nics listen.
std::set<std::uint32_t> ethernet_addresses(const std::vector<device*>& hcas) {
    std::set<std::uint32_t> addresses;
    for (const auto* hca : hcas)
        if (hca->description.link == link_layer::ethernet)
            addresses.insert(ipv4_of(hca->gids[0][0]));
    return addresses;
}

} // namespace

peer::peer(std::shared_ptr<segment> memory, std::filesystem::path folder)
    : memory_(std::move(memory)), folder_(std::move(folder)) {}

peer::~peer() {
    for (const auto& [index, fd] : channels_)
        ::close(fd);
}

bool peer::signal(std::uint32_t channel, std::uint64_t event) {
    const std::lock_guard guard(mutex_);
    auto entry = channels_.find(channel);
    struct stat status {};
    if (entry != channels_.end() && (::fstat(entry->second, &status) != 0 || status.st_nlink == 0)) {
        ::close(entry->second); // that channel was destroyed; a new one may have its number
        channels_.erase(entry);
        entry = channels_.end();
    }
    if (entry == channels_.end()) {
        const auto path = folder_ / (std::to_string(memory_->slot()) + ".channel" + std::to_string(channel));
        // Opened for reading too: writing to a pipe without a reader would send SIGPIPE to this program.
        const int fd = ::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0)
            return false;
        entry = channels_.emplace(channel, fd).first;
    }
    return ::write(entry->second, &event, sizeof(event)) == sizeof(event);
}

process::process(folder lab, port_states ports, std::shared_ptr<segment> own, std::unique_ptr<wire> network)
    : qps(max_qps), cqs(max_cqs), srqs(max_srqs), ports_reported(ports.seen()), lab_(std::move(lab)),
      ports_(std::move(ports)), own_(std::move(own)),
      self_(std::make_shared<peer>(own_, lab_.path() / "hca")), network_(std::move(network)) {}

tl::expected<std::shared_ptr<process>, int> process::join() {
    const std::lock_guard guard(joining_);
    if (auto there = joined_.lock(); there && there->present())
        return there;
    static const bool watching = ::pthread_atfork(nullptr, nullptr, after_fork) == 0;
    (void)watching;
    auto entered = folder::enter(selected_name(), std::nullopt);
    auto ports = entered.and_then([](const folder& lab) { return port_states::open(lab.path()); });
    if (!ports) {
        std::fprintf(stderr, "gaudi-lab: %s\n", ports.error().text.c_str());
        return tl::unexpected(ENODEV);
    }
    // A slot is a file and, with Ethernet, a TCP port, which another user's lab may have in use.
    const auto hcas = list_devices();
    if (!hcas)
        return tl::unexpected(hcas.error());
    const auto addresses = ethernet_addresses(*hcas);
    std::unique_ptr<wire> network;
    int error = 0;
    auto memory = segment::make(entered->path() / "hca", [&](std::uint32_t slot) {
        if (addresses.empty())
            return true;
        auto listening = wire::listen(addresses, slot);
        if (!listening) {
            error = listening.error();
            return false;
        }
        network = std::move(*listening);
        return true;
    });
    if (!memory) {
        if (error == EADDRNOTAVAIL)
            for (const auto* hca : *hcas)
                if (hca->description.link == link_layer::ethernet)
                    std::fprintf(stderr,
                                 "gaudi-lab: %s of lab '%s' cannot listen on %u.%u.%u.%u: is it an address "
                                 "of this host? It "
                                 "is `address` in the lab description\n",
                                 hca->seen.name, selected_name().c_str(), hca->gids[0][0][12],
                                 hca->gids[0][0][13], hca->gids[0][0][14], hca->gids[0][0][15]);
        return tl::unexpected(memory.error() == EAGAIN && error != 0 ? error : memory.error());
    }
    std::shared_ptr<process> instance(
        new process(std::move(*entered), std::move(*ports), *memory, std::move(network)));
    for (const auto* hca : *hcas)
        for (unsigned port = 0; port < hca->description.ports; ++port)
            for (const auto& gid : hca->gids[port]) {
                instance->gids_.emplace_back();
                std::memcpy(instance->gids_.back().data(), gid, 16);
            }
    shared_lock::self = instance->own_->party();
    shared_lock::is_dead = party_is_dead;
    current_ = instance.get();
    try {
        instance->guard_ = signal_free_thread([self = instance.get()] { self->guard(); });
    } catch (const std::system_error&) {
        return tl::unexpected(EAGAIN);
    }
    while (!instance->guarding_.load())
        ::sched_yield(); // until the guard thread holds head.life
    if (instance->network_)
        instance->network_->start(*instance);
    joined_ = instance;
    return instance;
}

namespace {

// GAUDI_LAB_HCA_REPORT=FILE: what this process moved, one line of JSON for each nic that moved anything.
// Written when the process closes its last device, or exits with one open.
void report(const segment& own, unsigned hcas) {
    const char* path = std::getenv("GAUDI_LAB_HCA_REPORT");
    if (path == nullptr || *path == 0)
        return;
    std::string text;
    for (unsigned i = 0; i < hcas; ++i) {
        traffic_counters sum{};
        sum.add(own->head.counted[i]);
        for (std::uint32_t number = 0; number < own->head.qps_used;
             ++number) // queue pairs that were not destroyed
            if (const auto& qp = own->qps[number]; qp.in_use != 0 && qp.device == i)
                sum.add(qp.counted);
        if (sum.messages == 0 && sum.errors == 0)
            continue;
        text += R"({"process":)" + std::to_string(own->head.process) + R"(,"device":"vhca)" +
                std::to_string(i) + '"';
        for (const auto& entry : traffic_counters::all())
            text += std::string(",\"") + entry.name + "\":" + std::to_string((sum.*entry.counter).load());
        text += "}\n";
    }
    if (text.empty())
        return;
    const int fd = ::open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0 || ::write(fd, text.data(), text.size()) < 0)
        std::fprintf(stderr, "gaudi-lab: GAUDI_LAB_HCA_REPORT=%s cannot be written: %s\n", path,
                     ::strerrorname_np(errno));
    if (fd >= 0)
        ::close(fd);
}

__attribute__((destructor)) void report_leftovers() {
    process::report_left();
}

} // namespace

void process::report_left() {
    if (auto* left = current_.load();
        left != nullptr && left->own_->is_local() && !std::exchange(left->reported_, true))
        report(*left->own_, static_cast<unsigned>(left->lab_.contents().hcas.size()));
}

process::~process() {
    if (!present() && own_->is_local() == false)
        return;
    if (network_)
        network_->stop();
    ending_ = true;
    ring();
    if (guard_.joinable())
        guard_.join();
    if (present())
        current_ = nullptr;
    if (!std::exchange(reported_, true))
        report(*own_, static_cast<unsigned>(lab_.contents().hcas.size()));
    for (const auto& slot : hbm_)
        if (const auto* view = slot.load(); view != nullptr) {
            ::munmap(view->base, view->file_size);
            ::close(view->fd);
            delete view;
        }
}

void process::after_fork() {
    // A forked child has its parent's objects but no slot in the lab, so it starts without any. The parent's
    // objects stay mapped and unused.
    if (auto* parents = current_.exchange(nullptr); parents != nullptr) {
        parents->own_->disown();
        if (parents->guard_.joinable()) // that thread does not exist here: leak its handle
            (void)new (std::nothrow) std::thread(std::move(parents->guard_));
        if (parents->network_)
            parents->network_->abandon();
        (void)parents->network_.release();
    }
    new (&joining_) std::mutex;
    new (&joined_) std::weak_ptr<process>;
    shared_lock::self = 0;
}

bool process::is_local(const std::uint8_t* gid) const {
    return std::any_of(gids_.begin(), gids_.end(),
                       [gid](const auto& each) { return std::memcmp(each.data(), gid, 16) == 0; });
}

std::shared_ptr<peer> process::find_peer(std::uint32_t slot, int* error) {
    if (slot == own_->slot())
        return self_;
    const std::lock_guard guard(peers_mutex_);
    if (const auto existing = peers_.find(slot); existing != peers_.end())
        if (auto there = existing->second.lock(); there && there->memory().alive())
            return there;
    auto opened = segment::open(hca_folder(), slot);
    if (!opened) {
        if (error != nullptr)
            *error = opened.error();
        return nullptr;
    }
    auto opened_peer = std::make_shared<peer>(*opened, hca_folder());
    peers_[slot] = opened_peer;
    constexpr std::size_t kept = 64;
    if (recent_.size() >= kept)
        recent_.erase(recent_.begin());
    recent_.push_back(opened_peer);
    return opened_peer;
}

const hbm_view* process::hbm(std::uint32_t gaudi, std::uint64_t size) {
    if (gaudi >= hbm_.size())
        return nullptr;
    if (const auto* view = hbm_[gaudi].load(std::memory_order_acquire); view != nullptr)
        return view;
    const std::lock_guard guard(hbm_mutex_);
    if (const auto* view = hbm_[gaudi].load(); view != nullptr)
        return view;
    const int fd = ::open((lab_.device_folder(gaudi) / "hbm").c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return nullptr;
    struct stat status {};
    const auto file_size = gaudi_lab_hbm_file_size(size);
    if (::fstat(fd, &status) == 0 && static_cast<std::uint64_t>(status.st_size) == file_size)
        if (void* at = ::mmap(nullptr, file_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
            at != MAP_FAILED) {
            ::madvise(at, file_size, MADV_DONTDUMP);
            const auto* view = new hbm_view{fd, static_cast<unsigned char*>(at), size, file_size};
            hbm_[gaudi].store(view, std::memory_order_release);
            return view;
        }
    ::close(fd);
    return nullptr;
}

process::hbm_place process::place_of(const std::byte* bytes) const {
    for (std::uint32_t gaudi = 0; gaudi < hbm_.size(); ++gaudi)
        if (const auto* view = hbm_[gaudi].load(std::memory_order_acquire); view != nullptr) {
            const auto* const begin = reinterpret_cast<const std::byte*>(view->base);
            if (bytes >= begin && bytes < begin + view->size)
                return {gaudi, view->size, static_cast<std::uint64_t>(bytes - begin)};
        }
    return {};
}

bool process::party_is_dead(party holder) {
    const auto slot = holder & (max_slots - 1);
    auto* here = current_.load();
    if (here == nullptr || holder == shared_lock::self)
        return false;
    int error = 0;
    const auto peer = here->find_peer(slot, &error);
    if (!peer)
        return error == ENOENT; // a process that cannot be checked counts as alive
    return peer->memory().party() != holder || !peer->memory().alive();
}

void process::run_at(std::uint64_t when_ns) {
    auto seen = run_at_ns_.load();
    while (when_ns < seen)
        if (run_at_ns_.compare_exchange_weak(seen, when_ns)) {
            if (!is_guard)
                ring();
            return;
        }
}

void process::guard() {
    ::pthread_setname_np(::pthread_self(), "vhca-guard");
    auto& head = own_->operator->()->head;
    is_guard = true;
    ::pthread_mutex_lock(&head.life);
    guarding_ = true;
    while (!ending_) {
        const auto seen = head.doorbell.load(std::memory_order_acquire);
        run_at_ns_ = UINT64_MAX;
        const auto next = keep_house(*this);
        auto limit = run_at_ns_.load();
        while (next < limit && !run_at_ns_.compare_exchange_weak(limit, next)) {
        }
        limit = run_at_ns_.load();
        const auto now = now_ns();
        constexpr std::uint64_t long_time = 3600ULL * 1000000000;
        if (ending_ || limit <= now)
            continue;
        futex_wait(head.doorbell, seen, limit == UINT64_MAX ? long_time : limit - now);
    }
    ::pthread_mutex_unlock(&head.life);
}

} // namespace lab::hca
