// SPDX-License-Identifier: BSD-3-Clause
#include "lab/hca/memory_access.hpp"

#include "lab/dmabuf.h"
#include "lab/os/copy.hpp"
#include "lab/world/folder.hpp"
#include "lab/world/storage.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <sys/uio.h>

namespace lab::hca {
namespace {

// Smaller copies may be in the cache at both ends and stay there.
constexpr std::uint64_t past_the_cache = 8 << 20;

// Gives memory that is accessed for the first time its content and storage. False: that failed, and the first
// failure prints why.
bool prepare(const hbm_view& view, std::uint64_t offset, std::uint64_t length) {
    const int result = gaudi_lab_hbm_prepare(view.fd, view.base, view.size, offset, length);
    static std::atomic<bool> said{false};
    if (result != 0 && !said.exchange(true)) {
        const auto top = lab::root();
        std::fprintf(stderr,
                     "gaudi-lab: no storage for the virtual HBM: %s. The request ends with an error.\n",
                     explain_no_storage(top ? *top : "/dev/shm", -result).c_str());
    }
    return result == 0;
}

access_result add_hbm(process& here, const segment& owner, const shared_mr& mr, std::uint64_t offset,
                      std::uint64_t length, side& to) {
    const auto* view = here.hbm(mr.gaudi, mr.hbm_size);
    if (view == nullptr)
        return access_result::unmappable;
    const auto* piece_at = owner.at<const hbm_piece>(mr.pieces);
    for (std::uint32_t i = 0; i < mr.piece_count && length > 0; ++i) {
        const auto& part = piece_at[i];
        if (offset >= part.length) {
            offset -= part.length;
            continue;
        }
        const auto taken = std::min(length, part.length - offset);
        if (part.offset == hbm_piece::unreachable) {
            to.pieces.push_back({piece::kind::lost, 0, taken});
            length -= taken;
            offset = 0;
            continue;
        }
        if (!prepare(*view, part.offset + offset, taken))
            return access_result::unmappable;
        to.pieces.push_back(
            {piece::kind::hbm, reinterpret_cast<std::uint64_t>(view->base + part.offset + offset), taken});
        length -= taken;
        offset = 0;
    }
    return access_result::fine;
}

void order_stores() {
#if defined(__x86_64__)
    asm volatile("" ::: "memory"); // the processor keeps the order of stores
#else
    std::atomic_thread_fence(std::memory_order_release);
#endif
}

// Collects the ranges that one system call can copy between two processes.
class across {
public:
    across(int process, bool writing) : process_(process), writing_(writing) {}

    bool add(std::uint64_t local, std::uint64_t remote, std::uint64_t length, moved& sum) {
        if (count_ + 2 > limit && !flush(sum))
            return false;
        // The last bytes get an entry of their own: the kernel copies entries in order.
        if (writing_ && length > 8) {
            put(local, remote, length - 8);
            put(local + length - 8, remote + length - 8, 8);
        } else
            put(local, remote, length);
        return true;
    }

    bool flush(moved& sum) {
        std::size_t first = 0;
        while (first < count_) {
            const auto rc = writing_ ? ::process_vm_writev(process_, local_ + first, count_ - first,
                                                           remote_ + first, count_ - first, 0)
                                     : ::process_vm_readv(process_, local_ + first, count_ - first,
                                                          remote_ + first, count_ - first, 0);
            if (rc < 0 && errno == EINTR)
                continue;
            if (rc <= 0) {
                sum.forbidden = rc < 0 && (errno == EPERM || errno == ENOSYS || errno == EACCES);
                sum.gone = rc < 0 && errno == ESRCH;
                return false;
            }
            auto left = static_cast<std::uint64_t>(rc);
            sum.across += left;
            while (left > 0 && first < count_) {
                const auto part = std::min<std::uint64_t>(left, local_[first].iov_len);
                advance(local_[first], part);
                advance(remote_[first], part);
                left -= part;
                if (local_[first].iov_len == 0)
                    ++first;
            }
        }
        count_ = 0;
        return true;
    }

private:
    static constexpr std::size_t limit = 64;

    void put(std::uint64_t local, std::uint64_t remote, std::uint64_t length) {
        local_[count_] = {reinterpret_cast<void*>(local), length};
        remote_[count_++] = {reinterpret_cast<void*>(remote), length};
    }
    static void advance(iovec& entry, std::uint64_t by) {
        entry.iov_base = static_cast<std::byte*>(entry.iov_base) + by;
        entry.iov_len -= by;
    }

    int process_;
    bool writing_;
    std::size_t count_ = 0;
    iovec local_[limit], remote_[limit];
};

void note_hbm(const piece& target, const piece& source, std::uint64_t length, moved& sum) {
    if (source.where == piece::kind::hbm)
        sum.from_hbm += length;
    if (target.where == piece::kind::hbm)
        sum.to_hbm += length;
}

bool all_local(const side& all) {
    return std::all_of(all.pieces.begin(), all.pieces.end(), [](const piece& each) { return each.here(); });
}

bool any_across(const side& all) {
    return std::any_of(all.pieces.begin(), all.pieces.end(),
                       [](const piece& each) { return each.where == piece::kind::across; });
}

// The null region reads as zeros, a read that PCIe does not deliver as ones.
using filler = std::array<std::byte, 65536>;
const filler& zeros() {
    static const filler bytes{};
    return bytes;
}
const filler& ones() {
    static const filler bytes = [] {
        filler filled;
        filled.fill(std::byte{0xff});
        return filled;
    }();
    return bytes;
}

// Walks both lists of pieces in parallel, piece by piece.
template <typename Each>
bool in_step(const side& to, const side& from, Each&& each) {
    auto left = std::min(to.length, from.length);
    std::size_t i = 0, j = 0;
    std::uint64_t into = 0, outof = 0;
    while (left > 0) {
        const auto& target = to.pieces[i];
        const auto& source = from.pieces[j];
        const auto part = std::min({left, target.length - into, source.length - outof});
        if (part > 0 && !each(target, into, source, outof, part))
            return false;
        left -= part;
        into += part;
        outof += part;
        if (into == target.length) {
            ++i;
            into = 0;
        }
        if (outof == source.length) {
            ++j;
            outof = 0;
        }
    }
    return true;
}

// The region of a key, if it belongs to the domain and grants the rights.
const shared_mr* find_region(const segment& owner, std::uint32_t key, std::uint32_t pd,
                             std::uint32_t rights) {
    const auto index = key >> 8;
    if (key == 0 || index >= owner->head.mrs_used.load(std::memory_order_relaxed))
        return nullptr;
    const auto& mr = owner->mrs[index];
    const bool granted =
        mr.key.load(std::memory_order_seq_cst) == key && mr.pd == pd && (mr.access & rights) == rights;
    return granted ? &mr : nullptr;
}

bool holds(const shared_mr& mr, std::uint64_t address, std::uint64_t length) {
    return address >= mr.iova && length <= mr.length && address - mr.iova <= mr.length - length;
}

} // namespace

void copy_local(std::byte* to, const std::byte* from, std::uint64_t length) {
    switch (length) {
    case 0:
        return;
    case 1:
        *to = *from;
        return;
    case 2:
        __builtin_memcpy(to, from, 2);
        return;
    case 4:
        __builtin_memcpy(to, from, 4);
        return;
    case 8:
        __builtin_memcpy(to, from, 8);
        return;
    default:
        break;
    }
    if (length > 8) {
        copy_bytes(to, from, length - 8, length >= past_the_cache); // the last word is stored separately
        order_stores();
        __builtin_memcpy(to + length - 8, from + length - 8, 8);
        return;
    }
    std::memmove(to, from, length);
}

stretch find_stretch(process& here, const segment& owner, std::uint32_t key, std::uint64_t address,
                     std::uint64_t length, std::uint32_t pd, std::uint32_t rights) {
    const auto* region = find_region(owner, key, pd, rights);
    if (region == nullptr || !holds(*region, address, length))
        return {};
    const auto& mr = *region;
    stretch range{&mr, mr.registrations.load(std::memory_order_relaxed), key};
    if (mr.kind == mr_kind::host && &owner == &here.own()) {
        range.begin = mr.iova;
        range.length = mr.length;
        range.at = reinterpret_cast<std::byte*>(mr.address);
        return range;
    }
    if (mr.kind != mr_kind::hbm || mr.piece_count != 1)
        return {};
    const auto first = owner.at<const hbm_piece>(mr.pieces)->offset; // offset of the region in HBM
    if (first == hbm_piece::unreachable)
        return {};
    const auto* view = here.hbm(mr.gaudi, mr.hbm_size);
    const auto at = first + (address - mr.iova);
    if (view == nullptr || !prepare(*view, at, length))
        return {};
    // The stretch covers what is prepared: whole granules.
    constexpr std::uint64_t granule = GAUDI_LAB_GRANULE;
    const auto begin = std::max(first, at / granule * granule);
    const auto end = std::min(first + mr.length, (at + length + granule - 1) / granule * granule);
    range.hbm = true;
    range.begin = mr.iova + (begin - first);
    range.length = end - begin;
    range.at = reinterpret_cast<std::byte*>(view->base + begin);
    return range;
}

access_result find_memory(process& here, const segment& owner, std::uint32_t key, std::uint64_t address,
                          std::uint64_t length, std::uint32_t pd, std::uint32_t rights, side& to) {
    const auto* region = find_region(owner, key, pd, rights);
    if (region == nullptr)
        return access_result::denied;
    const auto& mr = *region;
    if (mr.kind == mr_kind::null) {
        to.pieces.push_back({piece::kind::null, 0, length});
        to.length += length;
        return access_result::fine;
    }
    if (!holds(mr, address, length))
        return access_result::denied;
    to.length += length;
    if (mr.kind == mr_kind::hbm)
        return add_hbm(here, owner, mr, address - mr.iova, length, to);
    const auto at = mr.address + (address - mr.iova);
    if (&owner == &here.own())
        to.pieces.push_back({piece::kind::local, at, length});
    else {
        to.pieces.push_back({piece::kind::across, at, length});
        to.process = owner->head.process;
    }
    return access_result::fine;
}

access_result find_entries(process& here, const segment& owner, const scatter_entry* entries,
                           std::size_t count, std::uint32_t pd, std::uint32_t rights, side& to) {
    for (std::size_t i = 0; i < count; ++i)
        if (entries[i].length != 0)
            if (const auto access = find_memory(here, owner, entries[i].key, entries[i].address,
                                                entries[i].length, pd, rights, to);
                access != access_result::fine)
                return access;
    return access_result::fine;
}

moved copy(const side& to, const side& from) {
    moved sum;
    if (to.pieces.size() == 1 && from.pieces.size() == 1 && all_local(to) && all_local(from)) {
        const auto length = std::min(to.length, from.length);
        copy_local(to.pieces[0].pointer(), from.pieces[0].pointer(), length);
        sum.mapped = length;
        note_hbm(to.pieces[0], from.pieces[0], length, sum);
        return sum;
    }
    const bool writing = any_across(to);
    across gathered(writing ? to.process : from.process, writing);
    sum.fine = in_step(to, from,
                       [&](const piece& target, std::uint64_t into, const piece& source, std::uint64_t outof,
                           std::uint64_t part) {
                           using kind = piece::kind;
                           if (target.where == kind::null || target.where == kind::lost)
                               return true;
                           note_hbm(target, source, part, sum);
                           if (target.here() && source.here()) {
                               copy_local(target.pointer() + into, source.pointer() + outof, part);
                               sum.mapped += part;
                               return true;
                           }
                           const bool made_up = source.where == kind::null || source.where == kind::lost;
                           const auto& bytes = source.where == kind::lost ? ones() : zeros();
                           if (target.here() && made_up) {
                               std::memset(target.pointer() + into, std::to_integer<int>(bytes[0]), part);
                               return true;
                           }
                           if (target.here())
                               return gathered.add(target.address + into, source.address + outof, part, sum);
                           if (source.here())
                               return gathered.add(source.address + outof, target.address + into, part, sum);
                           for (std::uint64_t done = 0; done < part; done += bytes.size())
                               if (!gathered.add(reinterpret_cast<std::uint64_t>(bytes.data()),
                                                 target.address + into + done,
                                                 std::min<std::uint64_t>(part - done, bytes.size()), sum))
                                   return false;
                           return true;
                       }) &&
               gathered.flush(sum);
    return sum;
}

} // namespace lab::hca
