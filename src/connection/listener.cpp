// SPDX-License-Identifier: BSD-3-Clause
#include <gaudi/connection.hpp>

#include "src/connection/connection_core.hpp"
#include "src/error/try.hpp"
#include "src/os/deadline.hpp"
#include "src/os/internals.hpp"

#include <utility>

namespace gaudi {

result<listener> listener::open(std::uint16_t port, const std::string& address) {
    GAUDI_TRY(auto opened, listen_on(address, port));
    return listener(socket{opened.fd.release(), opened.port});
}

void listener::socket::close() noexcept {
    unique_fd{fd};
}

result<pending_connection> listener::next(std::chrono::milliseconds limit) const {
    GAUDI_TRY(auto joined, accept_from(socket_->fd, deadline_after(limit)));
    return internals::wrap<pending_connection>(std::make_unique<stream>(std::move(joined)));
}

result<connection> listener::accept(const std::shared_ptr<nic>& nic, std::chrono::milliseconds limit,
                                    const connection_options& options) const {
    // The two limits differ: `limit` waits for any peer, the handshake has the options' own deadline.
    GAUDI_TRY(auto pending, next(limit));
    return pending.handshake(nic, options);
}

pending_connection::pending_connection(std::unique_ptr<stream> joined)
    : joined_(std::move(joined)), peer_(joined_->peer()) {}
pending_connection::pending_connection(pending_connection&&) noexcept = default;
pending_connection& pending_connection::operator=(pending_connection&&) noexcept = default;
pending_connection::~pending_connection() = default;

const std::string& pending_connection::peer() const {
    return peer_;
}

result<connection> pending_connection::handshake(const std::shared_ptr<nic>& nic,
                                                 const connection_options& options) {
    GAUDI_TRY(auto link,
              connection_link::establish(nic, std::move(*joined_), connection_link::role::server, options,
                                         std::chrono::steady_clock::now() + options.deadline));
    return internals::wrap<connection>(new connection_core(std::move(link)));
}

} // namespace gaudi
