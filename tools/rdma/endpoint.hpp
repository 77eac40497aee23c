// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/gaudi.hpp>

#include "tools/rdma/options.hpp"
#include "tools/rdma/pattern.hpp"

#include <chrono>
#include <nlohmann/json.hpp>

namespace tools::rdma {

using json = nlohmann::ordered_json;

// The seconds since its construction.
class stopwatch {
public:
    [[nodiscard]] double seconds() const {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
    }

private:
    std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

// A failure with its exit status.
struct failure {
    int status;
    std::string text;
};
template <typename T>
using outcome = tl::expected<T, failure>;
// Converts an error of the library to a failure of the program.
[[nodiscard]] failure failed(const gaudi::error& why, int status);

// What a program opens before it connects: a nic, and a device if it is to use one.
struct endpoint {
    std::shared_ptr<gaudi::device> device; // none: host memory
    std::shared_ptr<gaudi::nic> nic;
    std::string why_host; // for --memory auto without a Gaudi
    std::string verbs, hlthunk;
    bool is_virtual = false;
    double open_seconds = 0;

    static outcome<endpoint> open(const options& options);
    [[nodiscard]] std::string device_text() const;
    [[nodiscard]] std::string nic_text() const;
    [[nodiscard]] json to_json() const;
};

// A buffer of one session, in device or host memory, and what it cost.
class buffer {
public:
    static outcome<buffer> make(const endpoint& home, std::uint64_t size, const options& options);

    [[nodiscard]] const gaudi::local_region& region() const { return region_; }
    [[nodiscard]] std::string path_text() const;
    [[nodiscard]] json to_json() const;
    // Device memory is filled through host memory, piece by piece.
    outcome<void> fill(const pattern& with);
    // A wrong byte is a failure with its offset.
    outcome<void> check(const pattern& against);
    // The first 8 bytes as a number.
    outcome<std::uint64_t> first_word();
    // Checks, then doubles every element.
    outcome<void> check_and_double(const pattern& against);

    double allocate_seconds = 0, export_seconds = 0, register_seconds = 0;

private:
    enum class action { fill, check, check_and_double };
    outcome<void> go_through(const pattern& what, action doing);
    static outcome<void> finish(gaudi::result<gaudi::copy_ticket> started);

    std::shared_ptr<gaudi::device> device_;
    std::shared_ptr<gaudi::nic> nic_;
    std::optional<gaudi::copier> copies_; // for device memory
    gaudi::device_buffer memory_;
    std::vector<std::byte> host_; // the buffer itself, or a piece of it in transit
    gaudi::local_region region_;
    std::uint64_t size_ = 0;
};

} // namespace tools::rdma
