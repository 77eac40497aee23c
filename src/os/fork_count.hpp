// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace gaudi {

// How often fork lies between this process and the first that asked: objects of a driver are of no use to a
// child, and a child must notice without a system call.
[[nodiscard]] unsigned fork_count();

} // namespace gaudi
