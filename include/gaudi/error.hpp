// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#if __cplusplus < 201709L
#error "gaudi-direct needs C++20: compile with -std=c++20"
#endif

#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <type_traits>
#include <utility>
#include <vector>

namespace gaudi {

/// What the caller should do about an error.
enum class error_kind {
    unsupported,   ///< this machine, driver or device cannot do it: use an alternative
    not_permitted, ///< the rights are missing
    busy,          ///< another user holds it: try again later, or choose another
    exhausted,     ///< no room left: free something
    invalid,       ///< the request is not valid: fix the caller
    peer_gone,     ///< the peer is no longer there
    device_lost    ///< the device failed or was reset: close and open it again
};

/// Every error that a user can meet. Each has one row in the catalogue: kind, meaning, remedy.
enum class errc {
    library_missing,
    library_unusable,
    symbol_missing,
    no_device,
    device_unknown,
    device_hidden,
    selection_malformed,
    setting_malformed,
    device_busy,
    device_broken,
    open_failed,
    generation_unknown,
    size_zero,
    size_beyond_memory,
    alignment_invalid,
    memory_exhausted,
    map_failed,
    host_range_invalid,
    not_allocated,
    pytorch_handle,
    wrong_device,
    range_leaves_allocation,
    ranges_overlap,
    address_collision,
    export_refused,
    export_offset_ignored,
    import_unsupported,
    import_refused,
    copies_absent,
    copy_refused,
    copy_timeout,
    device_lost,
    verbs_missing,
    no_nic,
    nic_unknown,
    nic_open_failed,
    nic_of_gaudi,
    port_down,
    gid_invalid,
    dmabuf_unsupported,
    registration_refused,
    registrations_exhausted,
    zero_copy_impossible,
    remote_staged,
    rights_invalid,
    host_unknown,
    connection_refused,
    address_in_use,
    handshake_timeout,
    handshake_refused,
    version_mismatch,
    protocol_violated,
    peer_gone,
    connection_broken,
    message_too_long,
    length_mismatch,
    remote_access,
    atomics_absent,
    too_many_operations,
    wait_timeout,
    handle_invalid,
    handle_stale,
    other_host,
    peer_refused,
    not_granted,
    no_path,
    peer_silent,
    lease_revoked,
    leased,
    leases_exhausted,
    forked,
    descriptors_exhausted,
    system_call_failed,
};

/// One row of the catalogue.
struct error_description {
    errc code;
    std::string_view name;
    error_kind kind;
    std::string_view meaning;
    std::string_view remedy;
};

/// The catalogue, in the order of the codes. Documentation and tools are generated from it.
[[nodiscard]] const std::vector<error_description>& error_catalogue();
/// The row of an error.
[[nodiscard]] const error_description& describe(errc code);
/// The kind in words.
[[nodiscard]] std::string_view name_of(error_kind kind);

/// A failure as a value: what was observed, in which call, with the decisive numbers.
class [[nodiscard]] error {
public:
    /// `observed`: the call and the numbers that decide. `system_error`: an errno value, or 0.
    error(errc code, std::string observed, int system_error = 0)
        : code_(code), system_error_(system_error), observed_(std::move(observed)) {}

    /// Which error it is.
    [[nodiscard]] errc code() const { return code_; }
    /// What the caller should do about it.
    [[nodiscard]] error_kind kind() const { return describe(code_).kind; }
    /// The errno that caused it, or 0.
    [[nodiscard]] int system_error() const { return system_error_; }
    /// What was observed, with the decisive numbers.
    [[nodiscard]] const std::string& observed() const { return observed_; }
    /// The remedy that the catalogue names.
    [[nodiscard]] std::string_view remedy() const { return describe(code_).remedy; }
    /// One line: name, observation, errno, remedy.
    [[nodiscard]] std::string message() const;

private:
    errc code_;
    int system_error_;
    std::string observed_;
};

/// A value, or the error that explains why there is none.
template <typename T>
using result = tl::expected<T, error>;

/// The limit of a wait that ends only with the operation. An operation whose device or peer is lost ends too.
constexpr std::chrono::milliseconds no_limit = std::chrono::milliseconds::max();

/// An error as an exception. what() is its message.
class failure : public std::runtime_error {
public:
    /// Wraps the error; its message is composed now.
    explicit failure(error why)
        : std::runtime_error(why.message()), why_(std::make_shared<const error>(std::move(why))) {}

    /// The error. It lives as long as the exception or a copy of it.
    [[nodiscard]] const error& why() const noexcept { return *why_; }
    /// The code of the error.
    [[nodiscard]] errc code() const noexcept { return why_->code(); }
    /// The kind of the error.
    [[nodiscard]] error_kind kind() const { return why_->kind(); }

private:
    std::shared_ptr<const error> why_; // shared: copies of an exception must not throw
};

/// For programs that cannot continue without the value: returns it, or throws gaudi::failure.
template <typename T>
T expect(result<T> outcome) {
    if (!outcome)
        throw failure(std::move(outcome).error());
    if constexpr (!std::is_void_v<T>)
        return std::move(*outcome);
}

} // namespace gaudi
