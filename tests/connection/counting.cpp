// SPDX-License-Identifier: BSD-3-Clause
// Counts allocations, lock acquisitions and bytes that the CPU copies. The program is linked with --wrap, so
// that calls from its own objects are counted and calls from the lab's libraries are not.
#include "tests/connection/counting.hpp"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <pthread.h>

namespace testing_support {

std::atomic<std::uint64_t> allocations{0}, locks{0}, copied_bytes{0};

counts counts_now() {
    return {allocations, locks, copied_bytes};
}

} // namespace testing_support

extern "C" {
int __real_pthread_mutex_lock(pthread_mutex_t* mutex);
int __wrap_pthread_mutex_lock(pthread_mutex_t* mutex) {
    testing_support::locks.fetch_add(1, std::memory_order_relaxed);
    return __real_pthread_mutex_lock(mutex);
}
void* __real_memcpy(void* to, const void* from, std::size_t bytes);
void* __wrap_memcpy(void* to, const void* from, std::size_t bytes) {
    testing_support::copied_bytes.fetch_add(bytes, std::memory_order_relaxed);
    return __real_memcpy(to, from, bytes);
}
void* __real_memmove(void* to, const void* from, std::size_t bytes);
void* __wrap_memmove(void* to, const void* from, std::size_t bytes) {
    testing_support::copied_bytes.fetch_add(bytes, std::memory_order_relaxed);
    return __real_memmove(to, from, bytes);
}
}

void* operator new(std::size_t bytes) {
    testing_support::allocations.fetch_add(1, std::memory_order_relaxed);
    if (void* made = std::malloc(bytes != 0 ? bytes : 1))
        return made;
    throw std::bad_alloc();
}
void operator delete(void* gone) noexcept {
    std::free(gone);
}
void operator delete(void* gone, std::size_t) noexcept {
    std::free(gone);
}
