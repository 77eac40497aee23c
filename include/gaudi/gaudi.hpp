// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#if __cplusplus < 201709L
#error "gaudi-direct needs C++20: compile with -std=c++20"
#endif

/// \file
/// Includes the whole library: devices, memory, DMA-BUF export, copies, NICs, connections, IPC.
#include <gaudi/address.hpp>
#include <gaudi/address_map.hpp>
#include <gaudi/connection.hpp>
#include <gaudi/connection_pool.hpp>
#include <gaudi/copier.hpp>
#include <gaudi/copy_engine.hpp>
#include <gaudi/device.hpp>
#include <gaudi/device_heap.hpp>
#include <gaudi/device_info.hpp>
#include <gaudi/dmabuf.hpp>
#include <gaudi/error.hpp>
#include <gaudi/ipc.hpp>
#include <gaudi/memory_observer.hpp>
#include <gaudi/memory_path.hpp>
#include <gaudi/nic.hpp>
#include <gaudi/nic_distance.hpp>
#include <gaudi/region.hpp>
#include <gaudi/statistics.hpp>
#include <gaudi/version.hpp>
#include <gaudi/wait.hpp>
