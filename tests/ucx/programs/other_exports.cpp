// SPDX-License-Identifier: BSD-3-Clause
// Preloaded: gives a function that libuct exports another name of the same length, as RENAMED=OLD:NEW says,
// so that libuct seems to have a function that it did not have.
#include "ucx/abi/uct_private.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <link.h>
#include <string>
#include <sys/mman.h>
#include <unistd.h>

namespace {

// The dynamic strings of the library that contains `inside`.
char* strings_of(const void* inside, std::size_t& size) {
    Dl_info info{};
    link_map* map = nullptr;
    char* strings = nullptr;
    if (::dladdr1(inside, &info, reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP) == 0)
        return nullptr;
    for (const auto* entry = map->l_ld; entry->d_tag != DT_NULL; ++entry)
        if (entry->d_tag == DT_STRTAB)
            strings = reinterpret_cast<char*>(entry->d_un.d_ptr);
        else if (entry->d_tag == DT_STRSZ)
            size = entry->d_un.d_val;
    return strings;
}

__attribute__((constructor)) void rename_function() {
    const char* renamed = std::getenv("RENAMED");
    if (renamed == nullptr)
        return;
    const std::string both = renamed, from = both.substr(0, both.find(':')),
                      to = both.substr(from.size() + 1);
    std::size_t size = 0;
    char* const strings = strings_of(&uct_base_iface_t_class, size);
    if (strings == nullptr || from.size() != to.size())
        std::abort();
    for (char* name = strings; name < strings + size; name += std::strlen(name) + 1)
        if (name == from) {
            const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
            const auto address = reinterpret_cast<std::uintptr_t>(name);
            if (::mprotect(reinterpret_cast<void*>(address & ~(page - 1)), address % page + to.size(),
                           PROT_READ | PROT_WRITE) != 0)
                std::abort();
            std::memcpy(name, to.c_str(), to.size());
            return;
        }
    std::abort();
}

} // namespace
