// SPDX-License-Identifier: BSD-3-Clause
// The public class and its tickets only count references to the core: a ticket may outlive its connection.
#include <gaudi/connection.hpp>

#include "src/connection/connection_core.hpp"
#include "src/error/try.hpp"
#include "src/os/internals.hpp"

#include <utility>

namespace gaudi {

transfer::transfer(connection_core* core, std::uint32_t slot) : operation_({core, slot}) {
    core->retain();
}

void transfer::operation::close() noexcept {
    // Before the reference: the core may be deleted with it.
    core->drop(slot);
    core->release();
}

bool transfer::done() {
    return !operation_ || operation_->core->done(operation_->slot);
}

result<completion> transfer::wait(std::chrono::milliseconds limit) {
    if (!operation_)
        return completion{};
    return operation_->core->wait(operation_->slot, limit);
}

void connection::open_connection::close() noexcept {
    // The tickets that are left still find the core, with every operation finished.
    core->close();
    core->release();
}

namespace {

result<transfer> begin(connection_core* core, const transfer_request& wanted) {
    GAUDI_TRY(const auto slot, core->start(wanted));
    return internals::wrap<transfer>(core, slot);
}

} // namespace

result<transfer> connection::send(const local_region& from, std::optional<std::uint32_t> immediate) {
    return begin(core(), {.kind = transfer_kind::send, .local = &from, .immediate = immediate});
}

result<transfer> connection::receive(const local_region& into) {
    return begin(core(), {.kind = transfer_kind::receive, .local = &into});
}

result<transfer> connection::write(const local_region& from, const remote_region& to) {
    return begin(core(), {.kind = transfer_kind::write, .local = &from, .remote = &to});
}

result<transfer> connection::write_with_immediate(const local_region& from, const remote_region& to,
                                                  std::uint32_t immediate) {
    return begin(core(),
                 {.kind = transfer_kind::write, .local = &from, .remote = &to, .immediate = immediate});
}

result<transfer> connection::read(const local_region& into, const remote_region& from) {
    return begin(core(), {.kind = transfer_kind::read, .local = &into, .remote = &from});
}

result<transfer> connection::fetch_add(const remote_region& where, std::uint64_t add) {
    return begin(core(), {.kind = transfer_kind::fetch_add, .remote = &where, .operand = add});
}

result<transfer> connection::compare_swap(const remote_region& where, std::uint64_t expected,
                                          std::uint64_t desired) {
    return begin(
        core(),
        {.kind = transfer_kind::compare_swap, .remote = &where, .operand = desired, .compare = expected});
}

bool connection::atomics() const {
    return core()->link().atomics;
}

std::size_t connection::poll() {
    return core()->progress();
}

result<int> connection::event_fd() {
    return core()->event_fd();
}

bool connection::arm() {
    return core()->arm();
}

result<void> connection::send_note(std::span<const std::byte> note) {
    return core()->send_frame(frame_kind::note, note);
}

result<std::vector<std::byte>> connection::receive_note(std::chrono::milliseconds limit) {
    return core()->receive_frame(frame_kind::note, limit);
}

result<void> connection::offer(const local_region& region, remote_access rights) {
    GAUDI_TRY(const auto remote, core()->offer(region, rights));
    return core()->send_frame(frame_kind::offer, remote.encode());
}

void connection::withdraw(const local_region& region) {
    core()->withdraw(region);
}

result<remote_region> connection::take_offer(std::chrono::milliseconds limit) {
    GAUDI_TRY(const auto body, core()->receive_frame(frame_kind::offer, limit));
    return remote_region::decode(body);
}

void connection::close() {
    if (open_)
        core()->close();
}

bool connection::alive() const {
    return open_ && core()->alive();
}

const connection_traffic& connection::statistics() const {
    return core()->operations().traffic();
}

const std::string& connection::why_staged() const {
    return core()->operations().why_staged();
}

const std::string& connection::peer() const {
    return core()->peer();
}

result<connection> connect(const std::shared_ptr<nic>& nic, const std::string& peer,
                           const connection_options& options) {
    const auto deadline = std::chrono::steady_clock::now() + options.deadline;
    GAUDI_TRY(auto joined, stream::connect(peer, default_port, deadline));
    GAUDI_TRY(auto link, connection_link::establish(nic, std::move(joined), connection_link::role::client,
                                                    options, deadline));
    return internals::wrap<connection>(new connection_core(std::move(link)));
}

} // namespace gaudi
