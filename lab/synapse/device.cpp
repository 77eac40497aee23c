// SPDX-License-Identifier: BSD-3-Clause
// Acquiring a device and its memory, in the order of calls of the vendor's public source: the control node,
// the compute node, the notifier, SCAL.
#include "lab/synapse/device.hpp"

#include "abi/hlthunk_functions.h"
#include "lab/os/system.hpp"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

namespace lab::synapse {
namespace {

constexpr unsigned most_modules = 8; // of one server
constexpr std::uint64_t alignment = 128;
constexpr auto grace = std::chrono::seconds(5);

std::atomic<bool> failed{false};

int type_of(int fd) {
    switch (hlthunk_get_device_name_from_fd(fd)) {
    case HLTHUNK_DEVICE_GAUDI:
    case HLTHUNK_DEVICE_GAUDI_HL2000M:
        return synDeviceGaudi;
    case HLTHUNK_DEVICE_GAUDI2:
    case HLTHUNK_DEVICE_GAUDI2B:
    case HLTHUNK_DEVICE_GAUDI2C:
    case HLTHUNK_DEVICE_GAUDI2D:
        return synDeviceGaudi2;
    case HLTHUNK_DEVICE_GAUDI3:
        return synDeviceGaudi3;
    default:
        return synDeviceTypeInvalid;
    }
}

// A device that is being reset after its last user is waited for.
bool becomes_operational(int control) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    for (;;) {
        const auto status = hlthunk_get_device_status_info(control);
        if (status == HL_DEVICE_STATUS_OPERATIONAL)
            return true;
        if (static_cast<int>(status) < 0 || std::chrono::steady_clock::now() > deadline)
            return false;
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
}

} // namespace

bool terminated() {
    return failed.load(std::memory_order_acquire);
}

void device_failed(const char* why) {
    if (failed.exchange(true))
        return;
    const char* const mode = std::getenv("TERMINATE_SYNAPSE_UPON_DFA"); // the vendor's own setting
    const bool kills = mode == nullptr || *mode == '2';
    std::fprintf(stderr, "gaudi-lab: SynapseAI: the device failed: %s.%s\n", why,
                 kills ? " Process will be killed in 5 seconds" : "");
    if (kills)
        signal_free_thread([] {
            std::this_thread::sleep_for(grace);
            ::kill(::getpid(), SIGKILL);
        }).detach();
}

// The first step decides between "no such device" and "a device of another type".
synStatus device::open_control(const choice& wanted, int& control, int type) {
    control = wanted.module ? hlthunk_open_control_by_module_id(*wanted.module)
                            : hlthunk_open_control_by_bus_id(wanted.bus_id);
    if (control < 0)
        return synNoDeviceFound;
    if (!becomes_operational(control))
        return synFail;
    const int found = type_of(control);
    if (found == synDeviceTypeInvalid)
        return synNoDeviceFound;
    return type != synDeviceTypeInvalid && type != found ? synDeviceTypeMismatch : synSuccess;
}

synStatus device::open(const choice& wanted) {
    if (const auto status = open_control(wanted, control_, wanted.type); status != synSuccess)
        return status;
    compute_ = wanted.module ? hlthunk_open_by_module_id(*wanted.module)
                             : hlthunk_open(HLTHUNK_DEVICE_INVALID, wanted.bus_id);
    if (compute_ < 0)
        return wanted.module ? synNoDeviceFound : synFail;
    type_ = type_of(compute_);
    char bus_id[16] = {};
    if (hlthunk_get_hw_ip_info(compute_, &hardware_) != 0 ||
        hlthunk_get_pci_bus_id_from_fd(compute_, bus_id, 13) != 0)
        return synFail;
    index_ = hlthunk_get_device_index_from_pci_bus_id(bus_id);
    if (type_ == synDeviceGaudi) {
        std::fprintf(stderr, "gaudi-lab: the virtual SynapseAI has no Gaudi, only Gaudi2 and Gaudi3\n");
        return synUnsupported;
    }
    // A device has one notifier: nothing else in the process can have it now.
    notifier_ = hlthunk_notifier_create(compute_);
    if (notifier_ < 0 || scal_init(compute_, "", &scal_, nullptr) != SCAL_SUCCESS ||
        scal_get_pool_handle_by_name(scal_, "global_hbm", &pool_) != SCAL_SUCCESS)
        return synFail;
    watcher_ = signal_free_thread([this] { watch(); });
    return synSuccess;
}

synStatus device::acquire(const choice& wanted, std::unique_ptr<device>& acquired) {
    std::unique_ptr<device> candidate(new device);
    if (wanted.module || wanted.bus_id != nullptr) {
        const auto status = candidate->open(wanted);
        if (status == synSuccess)
            acquired = std::move(candidate);
        return status;
    }
    // Any: the first module that can be opened. A module of another type ends the search.
    for (synModuleId module = 0; module < most_modules; ++module) {
        candidate.reset(new device);
        const auto status = candidate->open({wanted.type, module, nullptr});
        if (status == synSuccess) {
            acquired = std::move(candidate);
            return status;
        }
        if (status != synNoDeviceFound)
            return status;
    }
    return synNoDeviceFound;
}

device::~device() {
    streams_.clear(); // each waits for its work
    releasing_ = true;
    if (watcher_.joinable())
        watcher_.join();
    for (const auto& [address, mapping] : mapped_)
        hlthunk_memory_unmap(compute_, mapping.address);
    for (const auto& [address, size] : host_allocations_)
        ::munmap(reinterpret_cast<void*>(address), size); // NOLINT(performance-no-int-to-ptr)
    for (const auto& [address, buffer] : allocations_)
        scal_free_buffer(buffer);
    if (scal_ != nullptr)
        scal_destroy(scal_);
    if (notifier_ >= 0)
        hlthunk_notifier_release(compute_, notifier_);
    if (compute_ >= 0)
        hlthunk_close(compute_);
    if (control_ >= 0) {
        (void)becomes_operational(control_);
        hlthunk_close(control_);
    }
}

// The driver's reports of errors.
void device::watch() {
    constexpr std::uint32_t step_ms = 200;
    while (!releasing_) {
        std::uint64_t events = 0, count = 0;
        if (hlthunk_notifier_recv(compute_, notifier_, &events, &count, 0, step_ms) != 0 || events == 0)
            continue;
        device_failed("the driver reports an error");
        return;
    }
}

synStatus device::info(synDeviceInfoV2& info) const {
    std::uint64_t free = 0;
    info.sramBaseAddress = hardware_.sram_base_address;
    info.dramBaseAddress = hardware_.dram_base_address;
    info.sramSize = hardware_.sram_size;
    info.tpcEnabledMask = hardware_.tpc_enabled_mask_ext;
    info.dramEnabled = hardware_.dram_enabled;
    info.deviceId = 0;
    info.fd = static_cast<std::uint32_t>(compute_);
    info.deviceType = type_;
    info.deviceIndex = static_cast<std::uint8_t>(index_);
    memory(free, info.dramSize);
    // Up to 1.17 the field is called reserved, and is left as the caller has it.
    if (const char* version = std::getenv("GAUDI_LAB_SYNAPSE_VERSION");
        version != nullptr && std::strcmp(version, "1.18") >= 0) {
        scal_memory_pool_infoV2 pool{};
        (void)scal_pool_get_infoV2(pool_, &pool);
        info.globalHbmBaseAddress = pool.device_base_allocated_address;
    }
    return synSuccess;
}

void device::memory(std::uint64_t& free, std::uint64_t& total) const {
    scal_memory_pool_infoV2 pool{};
    (void)scal_pool_get_infoV2(pool_, &pool);
    free = pool.freeSize;
    total = pool.totalSize;
}

synStatus device::allocate(std::uint64_t size, std::uint64_t& address) {
    address = 0;
    if (size == 0)
        return synSuccess;
    scal_buffer_handle_t buffer = nullptr;
    scal_buffer_info_t where{};
    if (scal_allocate_aligned_buffer(pool_, size, alignment, &buffer) != SCAL_SUCCESS)
        return synFail;
    (void)scal_buffer_get_info(buffer, &where);
    address = where.device_address;
    const std::lock_guard guard(mutex_);
    allocations_.emplace(address, buffer);
    return synSuccess;
}

synStatus device::free(std::uint64_t address) {
    const std::lock_guard guard(mutex_);
    const auto found = allocations_.find(address);
    if (found == allocations_.end())
        return synFail;
    scal_free_buffer(found->second);
    allocations_.erase(found);
    return synSuccess;
}

synStatus device::map(const void* memory, std::uint64_t size) {
    const auto begin = reinterpret_cast<std::uint64_t>(memory);
    {
        const std::lock_guard guard(mutex_);
        auto next = mapped_.upper_bound(begin);
        if (next != mapped_.begin())
            if (const auto& [first, found] = *std::prev(next); begin - first < found.size)
                // Mapped already: nothing is counted, and the first unmapping ends it.
                return size <= found.size - (begin - first) ? synSuccess : synInvalidArgument;
        if (next != mapped_.end() && next->first - begin < size)
            return synInvalidArgument;
    }
    const auto address = hlthunk_host_memory_map(compute_, const_cast<void*>(memory), 0, size);
    if (address == 0) {
        // The vendor's library takes a refusal by the driver for a failure of the device.
        device_failed("host memory could not be mapped");
        return synFail;
    }
    const std::lock_guard guard(mutex_);
    mapped_[begin] = {size, address};
    return synSuccess;
}

synStatus device::unmap(const void* memory) {
    const std::lock_guard guard(mutex_);
    const auto found = mapped_.find(reinterpret_cast<std::uint64_t>(memory));
    if (found == mapped_.end())
        return synSuccess;
    hlthunk_memory_unmap(compute_, found->second.address);
    mapped_.erase(found);
    return synSuccess;
}

std::uint64_t device::device_address(std::uint64_t host, std::uint64_t size) {
    const std::lock_guard guard(mutex_);
    auto found = mapped_.upper_bound(host);
    if (found == mapped_.begin())
        return 0;
    --found;
    const auto offset = host - found->first;
    return offset < found->second.size && size <= found->second.size - offset ? found->second.address + offset
                                                                              : 0;
}

std::uint64_t device::mapped() const {
    const std::lock_guard guard(mutex_);
    return mapped_.size();
}

synStatus device::allocate_host(std::uint64_t size, void** memory) {
    void* const taken = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (taken == MAP_FAILED)
        return synOutOfHostMemory;
    if (const auto status = map(taken, size); status != synSuccess) {
        ::munmap(taken, size);
        return status;
    }
    *memory = taken;
    const std::lock_guard guard(mutex_);
    host_allocations_.emplace(reinterpret_cast<std::uint64_t>(taken), size);
    return synSuccess;
}

synStatus device::free_host(const void* memory) {
    (void)unmap(memory);
    const std::lock_guard guard(mutex_);
    const auto found = host_allocations_.find(reinterpret_cast<std::uint64_t>(memory));
    if (found == host_allocations_.end())
        return synInvalidArgument;
    ::munmap(const_cast<void*>(memory), found->second);
    host_allocations_.erase(found);
    return synSuccess;
}

void device::synchronize() {
    for (const auto& work : streams_.all())
        work->wait();
}

} // namespace lab::synapse
