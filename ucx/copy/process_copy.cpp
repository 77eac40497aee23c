// SPDX-License-Identifier: BSD-3-Clause
// Copies between places of this process, as gaudi_cpy and gaudi_dma make them.
#include "ucx/copy/copy_md.hpp"

#include <utility>

namespace gaudi_ucx {
namespace {

gaudi::result<gaudi::copy_ticket> start(uct_gaudi_copy_md_t& md, gaudi::copier& copies,
                                        const copied_range& range, const gaudi::copy_policy& policy) {
    // The addresses decide which side is a device: UCX passes no memory type with a copy.
    const auto target = md.attached.locate_or_attach(range.to),
               source = md.attached.locate_or_attach(range.from);
    for (const auto& [where, address] : {std::pair(target, range.to), std::pair(source, range.from)}) {
        if (where.device)
            continue;
        if (in_device_space(address))
            return tl::unexpected(gaudi::error(gaudi::errc::not_allocated, "memory of no open device"));
        if (md.module->gpus_here)
            refuse_gpu_memory(*md.module, address, range.length);
    }
    if (!range.within_host && !target.device && !source.device)
        return tl::unexpected(gaudi::error(gaudi::errc::not_allocated, "neither side is device memory"));
    if (range.pinned != nullptr && target.device != source.device)
        keep_pinned(*md.module, *range.pinned, target.device ? target.index : source.index, copies);
    return copies.copy(place_of(target, range.to, range.length), place_of(source, range.from, range.length),
                       policy);
}

// Whether SynapseAI had closed the device and now has the memory open again.
bool is_there_again(uct_gaudi_copy_md_t& md, gaudi::copier& copies, const copied_range& range) {
    for (const auto address : {range.to, range.from})
        if (const auto where = locate(address); where.device) {
            auto device = gaudi::find_open_device(where.index);
            if (!drop_if_closed(device))
                continue;
            md.module->loss.drop_lost(); // in every interface
            copies.forget(where.index);
            return md.attached.attach_again(address);
        }
    return false;
}

} // namespace

gaudi::result<gaudi::copy_ticket> copy_in_process(uct_gaudi_copy_md_t& md, gaudi::copier& copies,
                                                  const copied_range& range,
                                                  const gaudi::copy_policy& policy) {
    auto started = start(md, copies, range, policy);
    // One more attempt: SynapseAI may have closed and opened the device since the address was last seen.
    if (!started && is_there_again(md, copies, range))
        started = start(md, copies, range, policy);
    return started;
}

} // namespace gaudi_ucx
