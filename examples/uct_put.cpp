// SPDX-License-Identifier: BSD-3-Clause
// UCX's lower layer alone: Gaudi memory from the memory domain gaudi_copy, registered with a NIC by its
// DMA-BUF, moved by an RDMA write. No UCP, no copy. One process is both sides.
//
//     gaudi-direct lab run --ucx PREFIX -- example_uct_put
#include "ucx/abi/uct_private.h" // uct_md_mem_reg_v2 and its arguments: UCX installs no header for them

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <ucs/async/async_fwd.h>
#include <unistd.h>

extern "C" ucs_status_t uct_md_mem_reg_v2(uct_md_h md, void* address, size_t length,
                                          const uct_md_mem_reg_params_t* params, uct_mem_h* memh_p);

namespace {

void check(ucs_status_t status, const char* what) {
    if (status == UCS_OK)
        return;
    std::fprintf(stderr, "%s: %s\n", what, ucs_status_string(status));
    std::exit(1);
}

// The first memory domain of a component.
uct_md_h open_md(const char* wanted, uct_component_h* component) {
    uct_component_h* all = nullptr;
    unsigned count = 0;
    check(uct_query_components(&all, &count), "uct_query_components");
    uct_md_h md = nullptr;
    for (unsigned i = 0; i < count && md == nullptr; ++i) {
        uct_md_resource_desc_t resources[64];
        uct_component_attr_t attr{};
        attr.field_mask = UCT_COMPONENT_ATTR_FIELD_NAME | UCT_COMPONENT_ATTR_FIELD_MD_RESOURCE_COUNT;
        check(uct_component_query(all[i], &attr), "uct_component_query");
        if (std::strcmp(attr.name, wanted) != 0 || attr.md_resource_count == 0 || attr.md_resource_count > 64)
            continue;
        attr.field_mask = UCT_COMPONENT_ATTR_FIELD_MD_RESOURCES;
        attr.md_resources = resources;
        check(uct_component_query(all[i], &attr), "uct_component_query");
        uct_md_config_t* config = nullptr;
        check(uct_md_config_read(all[i], nullptr, nullptr, &config), "uct_md_config_read");
        check(uct_md_open(all[i], resources[0].md_name, config, &md), "uct_md_open");
        uct_config_release(config);
        *component = all[i];
    }
    uct_release_component_list(all);
    if (md == nullptr) {
        std::fprintf(stderr, "no memory domain of %s: is UCX_PLUGIN_PATH set, and is there a device?\n",
                     wanted);
        std::exit(1);
    }
    return md;
}

struct gaudi_buffer {
    uct_allocated_memory_t memory{};
    uct_mem_h on_nic = nullptr; // the same memory, registered with the NIC

    gaudi_buffer(uct_md_h gaudi, uct_md_h nic, size_t length) {
        const uct_alloc_method_t methods[] = {UCT_ALLOC_METHOD_MD};
        uct_mem_alloc_params_t params{};
        params.field_mask = UCT_MEM_ALLOC_PARAM_FIELD_FLAGS | UCT_MEM_ALLOC_PARAM_FIELD_MDS |
                            UCT_MEM_ALLOC_PARAM_FIELD_MEM_TYPE;
        params.flags = UCT_MD_MEM_ACCESS_ALL;
        params.mem_type = UCS_MEMORY_TYPE_GAUDI;
        params.mds.mds = &gaudi;
        params.mds.count = 1;
        check(uct_mem_alloc(length, methods, 1, &params, &memory), "uct_mem_alloc");

        uct_md_mem_attr_t attr{};
        attr.field_mask = UCT_MD_MEM_ATTR_FIELD_DMABUF_FD | UCT_MD_MEM_ATTR_FIELD_DMABUF_OFFSET;
        check(uct_md_mem_query(gaudi, memory.address, length, &attr), "uct_md_mem_query");
        uct_md_mem_reg_params_t by_dmabuf{};
        by_dmabuf.field_mask = UCT_MD_MEM_REG_FIELD_FLAGS | UCT_MD_MEM_REG_FIELD_DMABUF_FD |
                               UCT_MD_MEM_REG_FIELD_DMABUF_OFFSET | UCT_MD_MEM_REG_FIELD_MEM_TYPE;
        by_dmabuf.flags = UCT_MD_MEM_ACCESS_ALL;
        by_dmabuf.dmabuf_fd = attr.dmabuf_fd;
        by_dmabuf.dmabuf_offset = attr.dmabuf_offset;
        by_dmabuf.mem_type = UCS_MEMORY_TYPE_GAUDI;
        check(uct_md_mem_reg_v2(nic, memory.address, length, &by_dmabuf, &on_nic), "uct_md_mem_reg_v2");
        ::close(attr.dmabuf_fd); // the registration keeps its own reference
        std::printf("%zu bytes at %p: DMA-BUF offset %#zx, registered with the NIC\n", length, memory.address,
                    attr.dmabuf_offset);
    }
    void release(uct_md_h nic) {
        check(uct_md_mem_dereg(nic, on_nic), "uct_md_mem_dereg");
        uct_mem_free(&memory);
    }
};

uct_iface_h open_iface(uct_md_h md, uct_worker_h worker, const char* transport) {
    uct_tl_resource_desc_t* all = nullptr;
    unsigned count = 0;
    check(uct_md_query_tl_resources(md, &all, &count), "uct_md_query_tl_resources");
    uct_iface_h made = nullptr;
    for (unsigned i = 0; i < count && made == nullptr; ++i) {
        if (std::strcmp(all[i].tl_name, transport) != 0)
            continue;
        uct_iface_config_t* config = nullptr;
        check(uct_md_iface_config_read(md, transport, nullptr, nullptr, &config), "uct_md_iface_config_read");
        uct_iface_params_t params{};
        params.field_mask = UCT_IFACE_PARAM_FIELD_OPEN_MODE | UCT_IFACE_PARAM_FIELD_DEVICE;
        params.open_mode = UCT_IFACE_OPEN_MODE_DEVICE;
        params.mode.device.tl_name = transport;
        params.mode.device.dev_name = all[i].dev_name;
        check(uct_iface_open(md, worker, &params, config, &made), "uct_iface_open");
        uct_config_release(config);
        uct_iface_progress_enable(made, UCT_PROGRESS_SEND | UCT_PROGRESS_RECV);
    }
    uct_release_tl_resource_list(all);
    if (made == nullptr) {
        std::fprintf(stderr, "no transport %s\n", transport);
        std::exit(1);
    }
    return made;
}

// An endpoint of the copy transport, connected to its own interface.
uct_ep_h connect_to_itself(uct_iface_h iface) {
    char address[256];
    check(uct_iface_get_address(iface, reinterpret_cast<uct_iface_addr_t*>(address)),
          "uct_iface_get_address");
    uct_ep_params_t params{};
    params.field_mask = UCT_EP_PARAM_FIELD_IFACE | UCT_EP_PARAM_FIELD_IFACE_ADDR;
    params.iface = iface;
    params.iface_addr = reinterpret_cast<uct_iface_addr_t*>(address);
    uct_ep_h ep = nullptr;
    check(uct_ep_create(&params, &ep), "uct_ep_create");
    return ep;
}

// Two endpoints of a NIC's interface, connected to each other: a pair of queue pairs.
void connect_pair(uct_iface_h iface, uct_ep_h (&pair)[2]) {
    char device[256], addresses[2][256];
    check(uct_iface_get_device_address(iface, reinterpret_cast<uct_device_addr_t*>(device)),
          "device address");
    for (int i = 0; i < 2; ++i) {
        uct_ep_params_t params{};
        params.field_mask = UCT_EP_PARAM_FIELD_IFACE;
        params.iface = iface;
        check(uct_ep_create(&params, &pair[i]), "uct_ep_create");
        check(uct_ep_get_address(pair[i], reinterpret_cast<uct_ep_addr_t*>(addresses[i])),
              "uct_ep_get_address");
    }
    for (int i = 0; i < 2; ++i)
        check(uct_ep_connect_to_ep(pair[i], reinterpret_cast<uct_device_addr_t*>(device),
                                   reinterpret_cast<uct_ep_addr_t*>(addresses[1 - i])),
              "uct_ep_connect_to_ep");
}

} // namespace

int main() {
    constexpr size_t length = 1 << 20;
    ucs_async_context_t* async = nullptr;
    uct_worker_h worker = nullptr;
    check(ucs_async_context_create(UCS_ASYNC_MODE_THREAD_SPINLOCK, &async), "ucs_async_context_create");
    check(uct_worker_create(async, UCS_THREAD_MODE_SINGLE, &worker), "uct_worker_create");
    uct_component_h gaudi_component = nullptr, nic_component = nullptr;
    const uct_md_h gaudi = open_md("gaudi_copy", &gaudi_component);
    const uct_md_h nic = open_md("ib", &nic_component);
    gaudi_buffer from(gaudi, nic, length), to(gaudi, nic, length);

    // The device's engine copies host bytes into the first buffer.
    const uct_iface_h copies = open_iface(gaudi, worker, "gaudi_cpy");
    const uct_ep_h copy = connect_to_itself(copies);
    auto* bytes = static_cast<unsigned char*>(std::malloc(length));
    for (size_t i = 0; i < length; ++i)
        bytes[i] = static_cast<unsigned char>(i * 31 + i / 256);
    check(uct_ep_put_short(copy, bytes, length, reinterpret_cast<uint64_t>(from.memory.address),
                           UCT_INVALID_RKEY),
          "filling");

    // The NIC writes from HBM to HBM: the key of the second buffer is what a peer would send.
    uct_md_attr_t nic_attr{};
    check(uct_md_query(nic, &nic_attr), "uct_md_query");
    auto* key = static_cast<char*>(std::malloc(nic_attr.rkey_packed_size));
    check(uct_md_mkey_pack(nic, to.on_nic, key), "uct_md_mkey_pack");
    uct_rkey_bundle_t remote{};
    check(uct_rkey_unpack(nic_component, key, &remote), "uct_rkey_unpack");
    const uct_iface_h network = open_iface(nic, worker, "rc_verbs");
    uct_ep_h pair[2];
    connect_pair(network, pair);
    static int done = 0;
    uct_completion_t completion{};
    completion.func = [](uct_completion_t*) { done = 1; };
    completion.count = 1;
    uct_iov_t iov{from.memory.address, length, from.on_nic, 0, 1};
    ucs_status_t status = UCS_ERR_NO_RESOURCE;
    while (status == UCS_ERR_NO_RESOURCE) { // until the queue pairs are connected
        uct_worker_progress(worker);
        status = uct_ep_put_zcopy(pair[0], &iov, 1, reinterpret_cast<uint64_t>(to.memory.address),
                                  remote.rkey, &completion);
    }
    if (status != UCS_INPROGRESS)
        check(status, "uct_ep_put_zcopy");
    while (done == 0 && status == UCS_INPROGRESS)
        uct_worker_progress(worker);
    check(completion.status, "RDMA write");

    auto* back = static_cast<unsigned char*>(std::calloc(1, length));
    check(
        uct_ep_get_short(copy, back, length, reinterpret_cast<uint64_t>(to.memory.address), UCT_INVALID_RKEY),
        "reading");
    const bool right = std::memcmp(bytes, back, length) == 0;
    std::printf("put_zcopy of %zu bytes from HBM to HBM over rc_verbs: data %s\n", length,
                right ? "right" : "wrong");

    uct_rkey_release(nic_component, &remote);
    for (const auto ep : {pair[0], pair[1], copy})
        uct_ep_destroy(ep);
    uct_iface_close(network);
    uct_iface_close(copies);
    from.release(nic);
    to.release(nic);
    uct_md_close(nic);
    uct_md_close(gaudi);
    uct_worker_destroy(worker);
    ucs_async_context_destroy(async);
    std::free(bytes);
    std::free(back);
    std::free(key);
    return right ? 0 : 1;
}
