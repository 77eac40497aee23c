// SPDX-License-Identifier: BSD-3-Clause
// What this process holds: descriptors, mappings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

namespace testing_support {

[[nodiscard]] std::size_t open_descriptors();
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool under_a_sanitizer = true;
#else
constexpr bool under_a_sanitizer = false;
#endif

// Regions in /proc/self/maps; under a sanitizer, whose runtime maps memory too, only those of files that are
// neither programs nor libraries.
[[nodiscard]] std::size_t mapped_regions();
// How many regions each file has there, for a failure's message.
[[nodiscard]] std::string mappings_by_file();
[[nodiscard]] std::string text_of(const std::filesystem::path& file);
// Bytes that the files of a folder occupy, without holes.
[[nodiscard]] std::uint64_t stored_bytes(const std::filesystem::path& folder);

} // namespace testing_support
