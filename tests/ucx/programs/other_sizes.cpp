// SPDX-License-Identifier: BSD-3-Clause
// Preloaded: enlarges the interface class of the running UCX by one word.
#include "ucx/abi/uct_private.h"

#include <cstdint>
#include <sys/mman.h>
#include <unistd.h>

namespace {

__attribute__((constructor)) void grow() {
    auto& size = uct_base_iface_t_class.size;
    const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    const auto address = reinterpret_cast<std::uintptr_t>(&size);
    if (::mprotect(reinterpret_cast<void*>(address & ~(page - 1)), address % page + sizeof(size),
                   PROT_READ | PROT_WRITE) == 0)
        size += sizeof(void*);
}

} // namespace
