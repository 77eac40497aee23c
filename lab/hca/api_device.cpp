// SPDX-License-Identifier: BSD-3-Clause
// Devices, contexts, ports.
#include "lab/hca/api_post.hpp"
#include "lab/hca/devices.hpp"
#include "lab/hca/exported.hpp"
#include "lab/hca/modes.hpp"

#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

namespace lab::hca {
namespace {

bool valid_port(const context& where, unsigned port) {
    return port >= 1 && port <= where.hca->description.ports;
}

int query_port(ibv_context* handle, std::uint8_t port, ibv_port_attr* into, std::size_t size) {
    const auto& where = context::of(handle);
    if (!valid_port(where, port))
        return failure<int>(EINVAL, answers::with_errno);
    const auto attributes =
        attributes_of(*where.hca, port, where.home->ports().is_up(where.hca->index, port));
    // The caller's structure may be older and shorter, or newer and longer.
    std::memset(into, 0, size);
    std::memcpy(into, &attributes, std::min(size, sizeof(attributes)));
    return 0;
}

int query_device_ex(ibv_context* handle, const ibv_query_device_ex_input* input, ibv_device_attr_ex* into,
                    std::size_t size) {
    if (input != nullptr && input->comp_mask != 0)
        return failure<int>(EINVAL, answers::with_errno);
    ibv_device_attr_ex attributes{};
    attributes.orig_attr = attributes_of(*context::of(handle).hca);
    attributes.completion_timestamp_mask = UINT64_MAX;
    attributes.hca_core_clock = 1000000; // kHz: timestamps are nanoseconds
    attributes.phys_port_cnt_ex = attributes.orig_attr.phys_port_cnt;
    std::memset(into, 0, size);
    std::memcpy(into, &attributes, std::min(size, sizeof(attributes)));
    return 0;
}

int query_rt_values(ibv_context*, ibv_values_ex* values) {
    constexpr std::uint32_t supported = IBV_VALUES_MASK_RAW_CLOCK;
    const auto now = now_ns();
    values->comp_mask &= supported;
    values->raw_clock = {static_cast<time_t>(now / 1000000000), static_cast<long>(now % 1000000000)};
    return 0;
}

int compat_query_device(ibv_context* handle, ibv_device_attr* into) {
    *into = attributes_of(*context::of(handle).hca);
    return 0;
}

int compat_query_port(ibv_context* handle, std::uint8_t port, _compat_ibv_port_attr* into) {
    constexpr std::size_t old_size = offsetof(ibv_port_attr, port_cap_flags2);
    return query_port(handle, port, reinterpret_cast<ibv_port_attr*>(into), old_size);
}

constexpr int vectors = 4;

void close_pipe(context& where) {
    for (const int fd : {where.async_pipe[0], where.async_pipe[1], where.seen.context.cmd_fd, where.taken})
        if (fd >= 0)
            ::close(fd);
}

// The driver of a Gaudi's own ports has one user context: HCCL's, or that of whoever opens them first.
answer<int> take_only_context(const device& hca) {
    const int fd = ::open(hca.opens.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd >= 0 && ::write(fd, "+", 1) == 1 && ::flock(fd, LOCK_EX | LOCK_NB) == 0)
        return fd;
    const int error = fd < 0 ? errno : EBUSY;
    if (fd >= 0)
        ::close(fd);
    return tl::unexpected(error);
}

// One of the contexts that a NIC has for all processes: a lock on one of as many files.
answer<int> take_one_context(const device& hca) {
    for (unsigned i = 0; i < hca.description.max_contexts; ++i) {
        const auto path = fmt::format("{}.{}", hca.opens, i);
        const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        if (fd >= 0 && ::flock(fd, LOCK_EX | LOCK_NB) == 0)
            return fd;
        if (fd >= 0)
            ::close(fd);
    }
    return tl::unexpected(ENOMEM);
}

// A lock that the context holds while it is open, or -1 where there is no limit.
answer<int> take_context(const device& hca) {
    if (hca.description.hidden)
        return tl::unexpected(ENOENT);
    if (hca.description.of_gaudi)
        return take_only_context(hca);
    return hca.description.max_contexts != 0 ? take_one_context(hca) : answer<int>(-1);
}

answer<ibv_context*> open_context(device& hca) {
    decide_watching();
    decide_modes();
    auto home = process::join();
    if (!home)
        return tl::unexpected(home.error());
    auto device_context = make_zeroed<context>();
    device_context->home = *home;
    device_context->hca = &hca;
    auto& seen = device_context->seen;
    seen.sz = sizeof(seen);
    auto& inner = seen.context;
    inner.cmd_fd = -1;
    if (::pipe2(device_context->async_pipe, O_CLOEXEC) != 0)
        return tl::unexpected(errno);
    ::fcntl(device_context->async_pipe[1], F_SETFL, O_NONBLOCK);
    const auto taken = take_context(hca);
    if (!taken) {
        close_pipe(*device_context);
        return tl::unexpected(taken.error());
    }
    device_context->taken = *taken;
    inner.cmd_fd = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    if (inner.cmd_fd < 0) {
        const int error = errno;
        close_pipe(*device_context);
        return tl::unexpected(error);
    }
    inner.device = &hca.seen;
    inner.async_fd = device_context->async_pipe[0];
    inner.num_comp_vectors = vectors;
    ::pthread_mutex_init(&inner.mutex, nullptr);
    // libibverbs' mark for a context that is part of a verbs_context.
    inner.abi_compat = reinterpret_cast<void*>(UINTPTR_MAX);
    seen.query_port = [](ibv_context* self, std::uint8_t port, ibv_port_attr* into, std::size_t size) {
        return call<int>(
            "ibv_query_port", answers::with_errno, [&] { return query_port(self, port, into, size); }, self,
            port, into);
    };
    seen.query_device_ex = [](ibv_context* self, const ibv_query_device_ex_input* input,
                              ibv_device_attr_ex* into, std::size_t size) {
        return call<int>(
            "ibv_query_device_ex", answers::with_errno,
            [&] { return query_device_ex(self, input, into, size); }, self, input, into);
    };
    seen.query_rt_values = query_rt_values;
    inner.ops._compat_query_device = compat_query_device;
    inner.ops._compat_query_port = compat_query_port;
    fill_operations(seen);
    try {
        const std::lock_guard guard(device_context->home->objects);
        device_context->home->contexts.push_back(device_context.get());
    } catch (const std::bad_alloc&) {
        close_pipe(*device_context);
        return tl::unexpected(ENOMEM);
    }
    return device_context.release()->handle();
}

std::uint8_t gid_type(const device& hca) {
    return hca.description.link == link_layer::ethernet ? IBV_GID_TYPE_ROCE_V2 : IBV_GID_TYPE_IB;
}

bool gid_is_there(const device& hca, unsigned port, unsigned index) {
    constexpr std::uint8_t nothing_at_all[16]{};
    return index < gid_table_length && std::memcmp(hca.gids[port - 1][index], nothing_at_all, 16) != 0;
}

} // namespace
} // namespace lab::hca

VERB(ibv_device**, ibv_get_device_list, (int* count), (count), {
    const auto devices = list_devices();
    if (!devices)
        return fails(devices.error());
    // NOLINTNEXTLINE(bugprone-sizeof-expression): it is a list of pointers
    auto** list = static_cast<ibv_device**>(std::calloc(devices->size() + 1, sizeof(ibv_device*)));
    if (list == nullptr)
        return fails(ENOMEM);
    for (std::size_t i = 0; i < devices->size(); ++i)
        list[i] = &(*devices)[i]->seen;
    if (count != nullptr)
        *count = static_cast<int>(devices->size());
    return list;
})

extern "C" {

[[gnu::visibility("default")]] void ibv_free_device_list(ibv_device** list) {
    std::free(list);
}

[[gnu::visibility("default")]] const char* ibv_get_device_name(ibv_device* device) {
    return device->name;
}

[[gnu::visibility("default")]] __be64 ibv_get_device_guid(ibv_device* device) {
    return __builtin_bswap64(lab::hca::guid_of(reinterpret_cast<lab::hca::device*>(device)->index, 0));
}

[[gnu::visibility("default")]] int ibv_get_device_index(ibv_device*) {
    return -1; // no index: netlink does not know this device
}

[[gnu::visibility("default")]] int ibv_fork_init(void) {
    return 0; // no page is pinned, so fork cannot move one
}

[[gnu::visibility("default")]] ibv_fork_status ibv_is_fork_initialized(void) {
    return IBV_FORK_UNNEEDED;
}

[[gnu::visibility("default")]] int ibv_dontfork_range(void*, size_t) {
    return 0;
}

[[gnu::visibility("default")]] int ibv_dofork_range(void*, size_t) {
    return 0;
}
}

VERB(ibv_context*, ibv_open_device, (ibv_device * device), (device), {
    const auto opened = open_context(*reinterpret_cast<lab::hca::device*>(device));
    return opened ? *opened : fails(opened.error());
})

VERB_AS(with_minus_one, int, ibv_close_device, (ibv_context * handle), (handle), {
    auto& where = context::of(handle);
    if (where.home->present()) {
        const std::lock_guard guard(where.home->objects);
        std::erase(where.home->contexts, &where);
    }
    close_pipe(where);
    ::pthread_mutex_destroy(&handle->mutex);
    // In a forked child: the object is the parent's, and its threads do not exist here.
    if (!where.home->present())
        (void)new (std::nothrow) std::shared_ptr<process>(std::move(where.home));
    delete &where;
    return 0;
})

VERB(int, ibv_query_device, (ibv_context * handle, ibv_device_attr* into), (handle, into), {
    *into = attributes_of(*context::of(handle).hca);
    return 0;
})

VERB(int, ibv_query_port, (ibv_context * handle, uint8_t port, _compat_ibv_port_attr* into),
     (handle, port, into), { return compat_query_port(handle, port, into); })

VERB_AS(with_minus_one, int, ibv_query_gid, (ibv_context * handle, uint8_t port, int index, ibv_gid* into),
        (handle, port, index, into), {
            const auto& where = context::of(handle);
            if (!valid_port(where, port) || index < 0 || index >= gid_table_length)
                return fails(EINVAL);
            std::memcpy(into->raw, where.hca->gids[port - 1][index], 16);
            return 0;
        })

VERB_AS(with_minus_one, int, ibv_query_pkey, (ibv_context * handle, uint8_t port, int index, __be16* into),
        (handle, port, index, into), {
            if (!valid_port(context::of(handle), port) || index != 0)
                return fails(EINVAL);
            *into = 0xffff;
            return 0;
        })

VERB_AS(with_minus_one, int, ibv_get_pkey_index, (ibv_context * handle, uint8_t port, __be16 pkey),
        (handle, port, pkey), {
            if (!valid_port(context::of(handle), port) || pkey != 0xffff)
                return fails(EINVAL);
            return 0;
        })

VERB(int, _ibv_query_gid_ex,
     (ibv_context * handle, uint32_t port, uint32_t index, ibv_gid_entry* into, uint32_t flags, size_t size),
     (handle, port, index, into, flags, size), {
         const auto& where = context::of(handle);
         if (!valid_port(where, port) || index >= gid_table_length || flags != 0 ||
             size < sizeof(ibv_gid_entry))
             return fails(EINVAL);
         if (!gid_is_there(*where.hca, port, index))
             return fails(ENODATA);
         *into = {};
         std::memcpy(into->gid.raw, where.hca->gids[port - 1][index], 16);
         into->gid_index = index;
         into->port_num = port;
         into->gid_type = gid_type(*where.hca);
         return 0;
     })

extern "C" [[gnu::visibility("default")]] ssize_t
_ibv_query_gid_table(ibv_context* handle, ibv_gid_entry* into, size_t room, uint32_t flags, size_t size) {
    using namespace lab::hca;
    const auto& where = context::of(handle);
    if (flags != 0 || size < sizeof(ibv_gid_entry))
        return -EINVAL;
    std::size_t count = 0;
    for (unsigned port = 1; port <= where.hca->description.ports; ++port)
        for (unsigned index = 0; index < gid_table_length; ++index)
            if (gid_is_there(*where.hca, port, index)) {
                if (count == room)
                    return -EINVAL;
                auto& entry =
                    *reinterpret_cast<ibv_gid_entry*>(reinterpret_cast<std::byte*>(into) + size * count++);
                entry = {};
                std::memcpy(entry.gid.raw, where.hca->gids[port - 1][index], 16);
                entry.gid_index = index;
                entry.port_num = port;
                entry.gid_type = gid_type(*where.hca);
            }
    return static_cast<ssize_t>(count);
}

NEWER_VERB(int, ibv_query_port_speed, (ibv_context * handle, uint32_t port, uint64_t* speed),
           (handle, port, speed), {
               const auto& where = context::of(handle);
               if (!valid_port(where, port))
                   return fails(EINVAL);
               *speed = std::uint64_t{where.hca->description.speed_gbps} * 10; // units of 100 Mbit/s
               return 0;
           })
