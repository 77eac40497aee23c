// SPDX-License-Identifier: BSD-3-Clause
// SynapseAI's exported functions: streams, events, copies. Graphs are not there: a program that needs them
// does not load.
#include "lab/synapse/exported.hpp"
#include "lab/synapse/library.hpp"
#include "lab/synapse/stream.hpp"

#include <atomic>

// Of the virtual hl-thunk: what the schedulers of the device do, which no public call reaches.
extern "C" int gaudi_lab_scheduler_copy(int fd, uint64_t source, uint64_t target, uint64_t size);
extern "C" int gaudi_lab_scheduler_fill(int fd, uint64_t target, uint64_t count, const void* value,
                                        uint32_t width);

namespace lab::synapse {
namespace {

std::atomic<std::uint64_t> copied{0};

template <typename Body>
synStatus with_stream(synStreamHandle handle, Body&& body) {
    return with_device(0, [&](device& of) {
        const auto work = of.streams().find(handle);
        return work == nullptr ? synStatus{synInvalidArgument} : body(of, *work);
    });
}

template <typename Body>
synStatus with_event(synEventHandle handle, Body&& body) {
    return with_device(0, [&](device& of) {
        const auto known = of.events().find(handle);
        return known == nullptr ? synStatus{synInvalidEventHandle} : body(known);
    });
}

// Both sides are translated when the copy is submitted: host memory must be mapped then.
synStatus copy(synStreamHandle on, std::uint64_t source, std::uint64_t size, std::uint64_t target,
               int direction) {
    return with_stream(on, [&](device& of, stream& work) {
        if (direction < HOST_TO_DRAM || direction > DRAM_TO_DRAM)
            return synInvalidArgument;
        const auto from = direction == HOST_TO_DRAM ? of.device_address(source, size) : source;
        const auto to = direction == DRAM_TO_HOST ? of.device_address(target, size) : target;
        if (from == 0 || to == 0)
            return synMappingNotFound;
        // A copy that fails leaves the device in an error state, which the driver reports.
        work.push([fd = of.fd(), from, to, size] {
            if (gaudi_lab_scheduler_copy(fd, from, to, size) == 0)
                ++copied;
        });
        return synSuccess;
    });
}

template <typename T>
synStatus fill(synStreamHandle on, std::uint64_t target, T value, std::size_t count) {
    return with_stream(on, [&](device& of, stream& work) {
        work.push([fd = of.fd(), target, value, count] {
            (void)gaudi_lab_scheduler_fill(fd, target, count, &value, sizeof(value));
        });
        return synSuccess;
    });
}

} // namespace
} // namespace lab::synapse

SYN_EXPORT(synStreamCreateGeneric, (synStreamHandle * stream, synDeviceId id, uint32_t flags),
           (stream, id, flags), {
               return with_device(id, [&](device& of) {
                   if (stream == nullptr || flags != 0)
                       return synInvalidArgument;
                   *stream = static_cast<synStreamHandle>(of.streams().create());
                   return synSuccess;
               });
           })

SYN_EXPORT(synStreamDestroy, (synStreamHandle stream), (stream),
           { // The destructor waits for its work.
               return with_device(0, [&](device& of) {
                   return of.streams().remove(stream) != nullptr ? synSuccess : synInvalidArgument;
               });
           })

SYN_EXPORT(synStreamWaitEvent, (synStreamHandle stream, synEventHandle event, uint32_t flags),
           (stream, event, flags), {
               return with_event(event, [&](const std::shared_ptr<lab::synapse::event>& awaited) {
                   return with_stream(stream, [&](device&, lab::synapse::stream& work) {
                       work.push([awaited] { (void)awaited->wait(); });
                       return synSuccess;
                   });
               });
           })

SYN_EXPORT(synStreamSynchronize, (synStreamHandle stream), (stream), {
    return with_stream(stream, [](device&, lab::synapse::stream& work) {
        work.wait();
        return terminated() ? synSynapseTerminated : synSuccess;
    });
})

SYN_EXPORT(synStreamQuery, (synStreamHandle stream), (stream), {
    return with_stream(
        stream, [](device&, lab::synapse::stream& work) { return work.idle() ? synSuccess : synBusy; });
})

SYN_EXPORT(synEventCreate, (synEventHandle * event, synDeviceId id, uint32_t flags), (event, id, flags), {
    return with_device(id, [&](device& of) {
        if (event == nullptr || flags > EVENT_COLLECT_TIME)
            return synInvalidArgument;
        *event = static_cast<synEventHandle>(of.events().create());
        return synSuccess;
    });
})

SYN_EXPORT(synEventDestroy, (synEventHandle event), (event), {
    return with_device(0, [&](device& of) {
        return of.events().remove(event) != nullptr ? synSuccess : synInvalidEventHandle;
    });
})

SYN_EXPORT(synEventRecord, (synEventHandle event, synStreamHandle stream), (event, stream), {
    return with_event(event, [&](const std::shared_ptr<lab::synapse::event>& recorded) {
        return with_stream(stream, [&](device&, lab::synapse::stream& work) {
            work.push([recorded, number = recorded->record()] {
                if (!terminated()) // work of a failed device never completes
                    recorded->reached(number);
            });
            return synSuccess;
        });
    });
})

SYN_EXPORT(synEventQuery, (synEventHandle event), (event), {
    return with_event(event,
                      [](const std::shared_ptr<lab::synapse::event>& asked) { return asked->query(); });
})

SYN_EXPORT(synEventSynchronize, (synEventHandle event), (event), {
    return with_event(event,
                      [](const std::shared_ptr<lab::synapse::event>& awaited) { return awaited->wait(); });
})

SYN_EXPORT(synEventElapsedTime, (uint64_t * nanoseconds, synEventHandle begin, synEventHandle end),
           (nanoseconds, begin, end), {
               if (nanoseconds == nullptr)
                   return synInvalidArgument;
               return with_event(begin, [&](const std::shared_ptr<lab::synapse::event>& first) {
                   return with_event(end, [&](const std::shared_ptr<lab::synapse::event>& last) {
                       if (first->query() != synSuccess || last->query() != synSuccess)
                           return synStatus{synBusy};
                       const auto taken = last->time() - first->time();
                       *nanoseconds = static_cast<uint64_t>(taken.count() > 0 ? taken.count() : 0);
                       return synStatus{synSuccess};
                   });
               });
           })

SYN_EXPORT(synMemCopyAsync,
           (synStreamHandle stream, uint64_t source, uint64_t size, uint64_t target, int direction),
           (stream, source, size, target, direction),
           { return copy(stream, source, size, target, direction); })

SYN_EXPORT(synMemCopyAsyncMultiple,
           (synStreamHandle stream, const uint64_t* sources, const uint64_t* sizes, const uint64_t* targets,
            int direction, uint64_t count),
           (stream, sources, sizes, targets, direction, count), {
               if (sources == nullptr || sizes == nullptr || targets == nullptr)
                   return synInvalidArgument;
               for (uint64_t i = 0; i < count; ++i)
                   if (const auto status = copy(stream, sources[i], sizes[i], targets[i], direction);
                       status != synSuccess)
                       return status;
               return synSuccess;
           })

SYN_EXPORT(synMemsetD8Async, (uint64_t address, unsigned char value, size_t count, synStreamHandle stream),
           (address, value, count, stream), { return fill(stream, address, value, count); })

SYN_EXPORT(synMemsetD16Async, (uint64_t address, uint16_t value, size_t count, synStreamHandle stream),
           (address, value, count, stream), { return fill(stream, address, value, count); })

SYN_EXPORT(synMemsetD32Async, (uint64_t address, uint32_t value, size_t count, synStreamHandle stream),
           (address, value, count, stream), { return fill(stream, address, value, count); })

// Of the lab alone.
extern "C" [[gnu::visibility("default")]] uint64_t gaudi_lab_synapse_copied() {
    return lab::synapse::copied;
}
