// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace gaudi {

// The number of forks between the first process that called this function and the calling one. Driver objects
// must not be used in a child, and the child must detect that without a system call.
[[nodiscard]] unsigned fork_count();

} // namespace gaudi
