// SPDX-License-Identifier: BSD-3-Clause
// How ucx_perftest allocates, copies and fills memory of one type, as the tool lays it out. The test of the
// ABI compares it with the tool's DWARF.
#pragma once

#include <uct/api/uct.h>

extern "C" {

struct ucx_perf_allocator {
    ucs_memory_type_t mem_type;
    ucs_status_t (*init)(void* perf);
    ucs_status_t (*uct_alloc)(const void* perf, size_t length, unsigned flags,
                              uct_allocated_memory_t* memory);
    void (*uct_free)(const void* perf, uct_allocated_memory_t* memory);
    void (*memcpy)(void* to, ucs_memory_type_t to_type, const void* from, ucs_memory_type_t from_type,
                   size_t count);
    void* (*memset)(void* to, int value, size_t count);
};

} // extern "C"
