// SPDX-License-Identifier: BSD-3-Clause
// The few functions of fmt 9 that are not inline, compiled once for the virtual libraries, which must not
// depend on libfmt.so. Header-only use would compile them into every source: half of the build time.
#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
namespace detail {
template void vformat_to<char>(buffer<char>&, string_view, basic_format_args<FMT_BUFFER_CONTEXT(char)>,
                               locale_ref);
template auto thousands_sep_impl<char>(locale_ref) -> thousands_sep_result<char>;
template auto decimal_point_impl<char>(locale_ref) -> char;
template void buffer<char>::append(const char*, const char*);
} // namespace detail
FMT_END_NAMESPACE
