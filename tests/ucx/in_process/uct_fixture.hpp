// SPDX-License-Identifier: BSD-3-Clause
// UCT from the user's side: components, memory domains, a worker, an interface connected to itself.
#pragma once

#include "ucx/abi/uct_private.h"

#include <cstring>
#include <stdexcept>
#include <string>
#include <ucs/async/async_fwd.h>
#include <vector>

extern "C" {
// Functions of UCT for which UCX installs no header.
ucs_status_t uct_md_mem_query_v2(uct_md_h md, const void* address, size_t length, uct_md_mem_attr_v2_t* attr);
ucs_status_t uct_md_mem_reg_v2(uct_md_h md, void* address, size_t length,
                               const uct_md_mem_reg_params_t* params, uct_mem_h* memh_p);
ucs_status_t uct_md_mem_dereg_v2(uct_md_h md, const uct_md_mem_dereg_params_t* params);
int uct_iface_is_reachable_v2(const uct_iface_h iface, const uct_iface_is_reachable_params_t* params);
ucs_status_t uct_md_mem_attach(uct_md_h md, const void* mkey_buffer, uct_md_mem_attach_params_t* params,
                               uct_mem_h* memh_p);
ucs_status_t uct_md_mkey_pack_v2(uct_md_h md, uct_mem_h memh, void* address, size_t length,
                                 const uct_md_mkey_pack_params_t* params, void* buffer);
ucs_status_t uct_rkey_compare(uct_component_h component, uct_rkey_t rkey1, uct_rkey_t rkey2,
                              const uct_rkey_compare_params_t* params, int* result);
}

namespace testing_ucx {

inline void check(ucs_status_t status, const char* what) {
    if (status != UCS_OK)
        throw std::runtime_error(std::string(what) + ": " + ucs_status_string(status));
}

inline uct_component_h find_component(const std::string& name) {
    uct_component_h *all = nullptr, found = nullptr;
    unsigned count = 0;
    check(uct_query_components(&all, &count), "uct_query_components");
    for (unsigned i = 0; i < count; ++i) {
        uct_component_attr_t attr{};
        attr.field_mask = UCT_COMPONENT_ATTR_FIELD_NAME;
        check(uct_component_query(all[i], &attr), "uct_component_query");
        if (name == attr.name)
            found = all[i];
    }
    uct_release_component_list(all);
    return found;
}

class memory_domain {
public:
    memory_domain(const std::string& component_name, const std::string& md_name) {
        component = find_component(component_name);
        if (component == nullptr)
            throw std::runtime_error("no component " + component_name);
        uct_md_config_t* config = nullptr;
        check(uct_md_config_read(component, nullptr, nullptr, &config), "uct_md_config_read");
        const auto status = uct_md_open(component, md_name.c_str(), config, &md);
        uct_config_release(config);
        check(status, "uct_md_open");
    }
    ~memory_domain() { uct_md_close(md); }
    memory_domain(const memory_domain&) = delete;
    memory_domain& operator=(const memory_domain&) = delete;

    uct_component_h component = nullptr;
    uct_md_h md = nullptr;
};

class worker {
public:
    worker() {
        check(ucs_async_context_create(UCS_ASYNC_MODE_THREAD_SPINLOCK, &async_), "ucs_async_context_create");
        check(uct_worker_create(async_, UCS_THREAD_MODE_SINGLE, &handle), "uct_worker_create");
    }
    ~worker() {
        uct_worker_destroy(handle);
        ucs_async_context_destroy(async_);
    }
    worker(const worker&) = delete;
    worker& operator=(const worker&) = delete;

    uct_worker_h handle = nullptr;

private:
    ucs_async_context_t* async_ = nullptr;
};

inline uct_iface_h open_interface(const memory_domain& domain, const worker& on, const char* transport,
                                  const char* device, uct_error_handler_t on_error = nullptr,
                                  void* on_error_arg = nullptr) {
    uct_iface_config_t* config = nullptr;
    check(uct_md_iface_config_read(domain.md, transport, nullptr, nullptr, &config),
          "uct_md_iface_config_read");
    uct_iface_params_t params{};
    params.field_mask = UCT_IFACE_PARAM_FIELD_OPEN_MODE | UCT_IFACE_PARAM_FIELD_DEVICE;
    params.open_mode = UCT_IFACE_OPEN_MODE_DEVICE;
    params.mode.device.tl_name = transport;
    params.mode.device.dev_name = device;
    if (on_error != nullptr) {
        params.field_mask |= UCT_IFACE_PARAM_FIELD_ERR_HANDLER | UCT_IFACE_PARAM_FIELD_ERR_HANDLER_ARG;
        params.err_handler = on_error;
        params.err_handler_arg = on_error_arg;
    }
    uct_iface_h made = nullptr;
    const auto status = uct_iface_open(domain.md, on.handle, &params, config, &made);
    uct_config_release(config);
    check(status, "uct_iface_open");
    uct_iface_progress_enable(made, UCT_PROGRESS_SEND | UCT_PROGRESS_RECV);
    return made;
}

inline std::vector<std::byte> numbered(std::size_t size, unsigned seed) {
    std::vector<std::byte> bytes(size);
    for (std::size_t i = 0; i < size; ++i)
        bytes[i] = static_cast<std::byte>(i * 7 + i / 251 + seed);
    return bytes;
}

struct finished {
    uct_completion_t comp{};
    int times = 0;
    finished() {
        comp.func = [](uct_completion_t* self) { ++reinterpret_cast<finished*>(self)->times; };
        comp.count = 1;
        comp.status = UCS_OK;
    }
};

// An interface of a transport, with an endpoint to itself.
class copier {
public:
    explicit copier(const memory_domain& domain, const char* transport = "gaudi_cpy",
                    const char* device = "gaudi_copy") {
        iface = open_interface(domain, worker_, transport, device);
        uint64_t address = 0;
        check(uct_iface_get_address(iface, reinterpret_cast<uct_iface_addr_t*>(&address)),
              "uct_iface_get_address");
        uct_ep_params_t params{};
        params.field_mask = UCT_EP_PARAM_FIELD_IFACE | UCT_EP_PARAM_FIELD_IFACE_ADDR;
        params.iface = iface;
        params.iface_addr = reinterpret_cast<uct_iface_addr_t*>(&address);
        check(uct_ep_create(&params, &ep), "uct_ep_create");
    }
    ~copier() {
        uct_ep_destroy(ep);
        uct_iface_close(iface);
    }
    copier(const copier&) = delete;
    copier& operator=(const copier&) = delete;

    unsigned progress() { return uct_worker_progress(worker_.handle); }

private:
    worker worker_;

public:
    uct_iface_h iface = nullptr;
    uct_ep_h ep = nullptr;
};

// Memory from a domain's own allocator.
class allocated {
public:
    allocated(const memory_domain& domain, std::size_t length) {
        const uct_alloc_method_t methods[] = {UCT_ALLOC_METHOD_MD};
        uct_mem_alloc_params_t params{};
        params.field_mask = UCT_MEM_ALLOC_PARAM_FIELD_FLAGS | UCT_MEM_ALLOC_PARAM_FIELD_MDS |
                            UCT_MEM_ALLOC_PARAM_FIELD_MEM_TYPE | UCT_MEM_ALLOC_PARAM_FIELD_NAME;
        params.flags = UCT_MD_MEM_ACCESS_ALL;
        params.mem_type = UCS_MEMORY_TYPE_GAUDI;
        uct_md_h mds[] = {domain.md};
        params.mds.mds = mds;
        params.mds.count = 1;
        params.name = "test";
        check(uct_mem_alloc(length, methods, 1, &params, &memory), "uct_mem_alloc");
    }
    ~allocated() { uct_mem_free(&memory); }
    allocated(const allocated&) = delete;
    allocated& operator=(const allocated&) = delete;

    [[nodiscard]] uint64_t number() const { return reinterpret_cast<uint64_t>(memory.address); }
    uct_allocated_memory_t memory{};
};

} // namespace testing_ucx
