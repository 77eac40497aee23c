// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <ucp/api/ucp.h>

// A UCX that is loaded privately (RTLD_LOCAL), and the functions that tests need.
struct opened_ucx {
    const char* path;
    void* library;
    ucp_context_h context = nullptr;
    ucp_mem_h memory = nullptr;
    void* address = nullptr;

    explicit opened_ucx(const char* file) : path(file), library(::dlopen(file, RTLD_NOW | RTLD_LOCAL)) {
        if (library == nullptr)
            fail(::dlerror());
    }
    [[noreturn]] static void fail(const char* why) {
        std::fprintf(stderr, "%s\n", why);
        std::exit(1);
    }
    template <typename F>
    F* function(const char* name) const {
        auto* found = reinterpret_cast<F*>(::dlsym(library, name));
        if (found == nullptr)
            fail(::dlerror());
        return found;
    }
    void open() {
        ucp_params_t params{};
        params.field_mask = UCP_PARAM_FIELD_FEATURES;
        params.features = UCP_FEATURE_RMA;
        ucp_config_t* config = nullptr;
        if (function<decltype(ucp_config_read)>("ucp_config_read")(nullptr, nullptr, &config) != UCS_OK ||
            function<decltype(ucp_init_version)>("ucp_init_version")(UCP_API_MAJOR, UCP_API_MINOR, &params,
                                                                     config, &context) != UCS_OK)
            fail("no context");
        function<decltype(ucp_config_release)>("ucp_config_release")(config);
    }
    void allocate() {
        ucp_mem_map_params_t params{};
        params.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS |
                            UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE;
        params.length = 1 << 20;
        params.memory_type = UCS_MEMORY_TYPE_GAUDI;
        params.flags = UCP_MEM_MAP_ALLOCATE;
        if (function<decltype(ucp_mem_map)>("ucp_mem_map")(context, &params, &memory) != UCS_OK)
            fail("no memory");
        address = type_of(memory, nullptr);
    }
    // Registers memory that another UCX allocated, and checks its type.
    void expect_gaudi(void* theirs) {
        ucp_mem_map_params_t params{};
        params.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_ADDRESS;
        params.length = 1 << 20;
        params.address = theirs;
        ucp_mem_h seen = nullptr;
        if (function<decltype(ucp_mem_map)>("ucp_mem_map")(context, &params, &seen) != UCS_OK)
            fail("the other's memory cannot be registered");
        ucs_memory_type_t type = UCS_MEMORY_TYPE_LAST;
        type_of(seen, &type);
        if (type != UCS_MEMORY_TYPE_GAUDI)
            fail("the other's memory is taken for something else");
        function<decltype(ucp_mem_unmap)>("ucp_mem_unmap")(context, seen);
    }
    void close() {
        function<decltype(ucp_mem_unmap)>("ucp_mem_unmap")(context, memory);
        function<decltype(ucp_cleanup)>("ucp_cleanup")(context);
    }

private:
    void* type_of(ucp_mem_h handle, ucs_memory_type_t* type) const {
        ucp_mem_attr_t attr{};
        attr.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS | UCP_MEM_ATTR_FIELD_MEM_TYPE;
        if (function<decltype(ucp_mem_query)>("ucp_mem_query")(handle, &attr) != UCS_OK)
            fail("no attributes");
        if (type != nullptr)
            *type = attr.mem_type;
        return attr.address;
    }
};
