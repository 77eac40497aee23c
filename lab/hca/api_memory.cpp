// SPDX-License-Identifier: BSD-3-Clause
// Protection domains and memory regions.
#include "lab/hca/exported.hpp"
#include "lab/hca/posted_writes.hpp"

#include "lab/dmabuf.h"

#include <cstdlib>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace lab::hca {

// Ordinary page-aligned memory: what ibv_alloc_buf() returns where the driver has nothing better.
struct plain_buffer {
    ibv_pd* pd;
    void* address;
    std::size_t size;
};

// ibv_mr_init_attr of rdma-core 65.
struct registration {
    enum field : std::uint64_t {
        mask_iova = 1,
        mask_address = 2,
        mask_fd = 4,
        mask_offset = 8,
        mask_buffer = 32
    };
    std::size_t length;
    int access;
    std::uint64_t comp_mask;
    std::uint64_t iova;
    void* address;
    int fd;
    std::uint64_t offset;
    void* dma_handle;
    plain_buffer* buffer;
};

namespace {

constexpr std::uint32_t optional_access = 0x3ff00000; // bits 20 to 29 may be ignored
constexpr std::uint32_t known_access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                       IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
                                       IBV_ACCESS_ZERO_BASED | IBV_ACCESS_HUGETLB;
constexpr std::uint64_t page = 4096;

// The kernel's check of access flags: 0 or an errno.
int check_access(std::uint32_t access, std::uint32_t allowed) {
    constexpr std::uint32_t flush = 3U << 8; // IBV_ACCESS_FLUSH_GLOBAL and _PERSISTENT of newer headers
    if ((access & (IBV_ACCESS_MW_BIND | IBV_ACCESS_ON_DEMAND | flush)) != 0)
        return EOPNOTSUPP;
    if ((access & ~(allowed | optional_access)) != 0)
        return EINVAL;
    if ((access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) != 0 &&
        (access & IBV_ACCESS_LOCAL_WRITE) == 0)
        return EINVAL;
    return 0;
}

// Whether a driver could pin the range: mapped throughout and, if `writable`, writable at both ends.
bool mapped(std::uint64_t address, std::uint64_t length, bool writable) {
    const auto begin = address / page * page;
    const auto end = (address + length + page - 1) / page * page;
    if (end <= begin || ::msync(reinterpret_cast<void*>(begin), end - begin, MS_ASYNC) != 0)
        return false;
    if (!writable || !populate_write_is_known())
        return true;
    return ::madvise(reinterpret_cast<void*>(begin), page, MADV_POPULATE_WRITE) == 0 &&
           ::madvise(reinterpret_cast<void*>(end - page), page, MADV_POPULATE_WRITE) == 0;
}

struct wanted_region {
    mr_kind kind;
    std::uint64_t address, length, iova;
    std::uint32_t access;
    std::uint32_t gaudi = 0;
    std::uint64_t hbm_size = 0;
    std::vector<hbm_piece> pieces;
    int dmabuf = -1;
};

answer<ibv_mr*> make_region(ibv_pd* pd, const wanted_region& wanted) {
    auto& where = context::of(pd->context);
    auto& home = *where.home;
    if (!home.present())
        return tl::unexpected(EINVAL);
    if (home.regions_in_use.fetch_add(1) >= where.hca->description.max_mr) {
        home.regions_in_use.fetch_sub(1);
        return tl::unexpected(ENOMEM);
    }
    const auto fail = [&](std::optional<std::uint32_t> place, int error) {
        if (place)
            home.region_places.release(*place);
        home.regions_in_use.fetch_sub(1);
        return tl::unexpected(error);
    };
    const auto place = home.region_places.take();
    if (!place)
        return fail(place, ENOMEM);
    auto& mr = home.own()->mrs[*place];
    if (const auto claimed = home.own().claim(&mr, sizeof(mr)); !claimed)
        return fail(place, claimed.error());
    // Several threads may register at once; the count must only grow.
    auto& used = home.own()->head.mrs_used;
    for (auto count = used.load(); count <= *place && !used.compare_exchange_weak(count, *place + 1);) {
    }
    mr.pieces = 0;
    mr.piece_count = static_cast<std::uint32_t>(wanted.pieces.size());
    if (!wanted.pieces.empty()) {
        const auto memory = home.own().allocate(wanted.pieces.size() * sizeof(hbm_piece));
        if (!memory)
            return fail(place, memory.error());
        mr.pieces = *memory;
        std::copy(wanted.pieces.begin(), wanted.pieces.end(), home.own().at<hbm_piece>(*memory));
    }
    auto region = make_zeroed<memory_region>();
    region->index = *place;
    region->dmabuf = wanted.dmabuf;
    mr.pd = protection_domain::of(pd).id;
    mr.access = wanted.access;
    mr.kind = wanted.kind;
    mr.gaudi = wanted.gaudi;
    mr.hbm_size = wanted.hbm_size;
    mr.iova = wanted.iova;
    mr.length = wanted.length;
    mr.address = wanted.address;
    const auto before = mr.registrations.load(std::memory_order_relaxed);
    mr.registrations.store(before + 1, std::memory_order_relaxed);
    const auto key = *place << 8 | static_cast<std::uint32_t>(before % 255 + 1); // never 0
    region->seen.context = pd->context;
    region->seen.pd = pd;
    region->seen.addr = reinterpret_cast<void*>(wanted.address);
    region->seen.length = wanted.length;
    region->seen.handle = *place;
    region->seen.lkey = region->seen.rkey = key;
    protection_domain::of(pd).users.fetch_add(1);
    mr.key.store(key, std::memory_order_seq_cst);
    return &region.release()->seen;
}

answer<ibv_mr*> register_host(ibv_pd* pd, void* address, std::size_t length, std::uint64_t iova,
                              unsigned access) {
    if (const int error = check_access(access, known_access); error != 0)
        return tl::unexpected(error);
    const auto begin = reinterpret_cast<std::uint64_t>(address);
    if (length == 0 || begin + length < begin || iova + length < iova)
        return tl::unexpected(EINVAL);
    if ((access & IBV_ACCESS_ZERO_BASED) == 0 && begin % page != iova % page)
        return tl::unexpected(EINVAL);
    constexpr unsigned writes = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
    if (!mapped(begin, length, (access & writes) != 0))
        return tl::unexpected(EFAULT);
    wanted_region wanted{};
    wanted.kind = mr_kind::host;
    wanted.address = begin;
    wanted.length = length;
    wanted.iova = (access & IBV_ACCESS_ZERO_BASED) != 0 ? begin % page : iova;
    wanted.access = access;
    return make_region(pd, wanted);
}

answer<ibv_mr*> register_dmabuf(ibv_pd* pd, std::uint64_t offset, std::size_t length, std::uint64_t iova,
                                int fd, unsigned access) {
    const auto& where = context::of(pd->context);
    if (!where.hca->description.dmabuf)
        return tl::unexpected(EOPNOTSUPP);
    // Checked before everything else: programs probe with a bad descriptor whether DMA-BUF registration is
    // supported.
    if (::fcntl(fd, F_GETFD) < 0)
        return tl::unexpected(EBADF);
    constexpr std::uint32_t allowed =
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    if (const int error = check_access(access, allowed); error != 0)
        return tl::unexpected(error);
    if (length == 0 || offset % page != iova % page || iova + length < iova)
        return tl::unexpected(EINVAL);
    gaudi_lab_dmabuf head{};
    char path[4096];
    if (const int rc = gaudi_lab_dmabuf_describe(fd, &head, nullptr, 0, path, sizeof(path)); rc != 0)
        return tl::unexpected(-rc);
    if (offset > head.size || length > head.size - offset)
        return tl::unexpected(EINVAL);
    std::vector<gaudi_lab_range> ranges(head.range_count);
    if (const int rc =
            gaudi_lab_dmabuf_describe(fd, &head, ranges.data(), head.range_count, path, sizeof(path));
        rc != 0)
        return tl::unexpected(-rc);
    if (where.home->lab().device_folder(head.device_index) / "hbm" != path)
        return tl::unexpected(EINVAL); // a DMA-BUF of another lab is that of another machine
    if ((head.flags & GAUDI_LAB_NO_PEER_MAP) != 0)
        return tl::unexpected(EPERM);
    wanted_region wanted{};
    wanted.kind = mr_kind::hbm;
    wanted.address = offset; // what programs read in ibv_mr::addr
    wanted.length = length;
    wanted.iova = iova;
    wanted.access = access;
    wanted.gaudi = head.device_index;
    wanted.hbm_size = head.hbm_size;
    auto skip = offset;
    auto left = static_cast<std::uint64_t>(length);
    for (const auto& range : ranges) {
        if (skip >= range.length) {
            skip -= range.length;
            continue;
        }
        const auto part = std::min(left, range.length - skip);
        if (part == 0)
            break;
        wanted.pieces.push_back({range.hbm_offset + skip, part});
        left -= part;
        skip = 0;
    }
    // The table of an old driver may end before the DMA-BUF does (gotcha 41).
    if ((head.flags & GAUDI_LAB_NO_PEER_DATA) != 0)
        wanted.pieces.assign(1, {hbm_piece::unreachable, length});
    else if (left != 0)
        wanted.pieces.push_back({hbm_piece::unreachable, left});
    wanted.dmabuf = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (wanted.dmabuf < 0)
        return tl::unexpected(errno);
    auto region = make_region(pd, wanted);
    if (!region)
        ::close(wanted.dmabuf);
    return region;
}

ibv_mr* null_region(ibv_pd* pd) {
    wanted_region wanted{};
    wanted.kind = mr_kind::null;
    wanted.length = UINT64_MAX;
    wanted.access = IBV_ACCESS_LOCAL_WRITE;
    const auto region = make_region(pd, wanted);
    return region ? *region : failure<ibv_mr*>(region.error(), answers::with_errno);
}

int drop_region(ibv_mr* handle) {
    auto& region = memory_region::of(handle);
    auto& home = *context::of(handle->context).home;
    if (!home.present())
        return failure<int>(EINVAL, answers::with_errno);
    auto& mr = home.own()->mrs[region.index];
    if (mr.key.exchange(0, std::memory_order_seq_cst) == 0)
        return failure<int>(EINVAL, answers::with_errno);
    wait_for_executors(home); // after this no executor reads or writes the region
    if (mr.kind == mr_kind::hbm)
        arrive_at(home, mr.gaudi);
    if (mr.piece_count != 0)
        home.own().release(mr.pieces);
    if (region.dmabuf >= 0)
        ::close(region.dmabuf);
    home.region_places.release(region.index);
    home.regions_in_use.fetch_sub(1);
    protection_domain::of(handle->pd).users.fetch_sub(1);
    delete &region;
    return 0;
}

bool lies_within(const plain_buffer& buffer, const void* address, std::size_t length) {
    const auto begin = reinterpret_cast<std::uint64_t>(buffer.address);
    const auto asked = reinterpret_cast<std::uint64_t>(address);
    return asked >= begin && asked - begin <= buffer.size && length <= buffer.size - (asked - begin);
}

answer<ibv_mr*> register_as_described(ibv_pd* pd, const registration& wanted) {
    using enum registration::field;
    constexpr std::uint64_t supported = mask_iova | mask_address | mask_fd | mask_offset | mask_buffer;
    const auto has = [&](std::uint64_t fields) { return (wanted.comp_mask & fields) == fields; };
    if (has(mask_buffer) && (!has(mask_address) || has(mask_fd) || wanted.buffer->pd != pd ||
                             !lies_within(*wanted.buffer, wanted.address, wanted.length)))
        return tl::unexpected(EINVAL);
    if ((wanted.comp_mask & ~supported) != 0)
        return tl::unexpected(EOPNOTSUPP);
    const auto access = static_cast<unsigned>(wanted.access);
    if (has(mask_fd)) {
        if (!has(mask_offset | mask_iova) || has(mask_address))
            return tl::unexpected(EINVAL);
        return register_dmabuf(pd, wanted.offset, wanted.length, wanted.iova, wanted.fd, access);
    }
    if (!has(mask_address) || has(mask_offset))
        return tl::unexpected(EINVAL);
    const auto iova = has(mask_iova) ? wanted.iova : reinterpret_cast<std::uint64_t>(wanted.address);
    return register_host(pd, wanted.address, wanted.length, iova, access);
}

} // namespace

void fill_memory_operations(verbs_context& context) {
    context.alloc_null_mr = [](ibv_pd* pd) {
        return call<ibv_mr*>(
            "ibv_alloc_null_mr", answers::with_errno, [&] { return null_region(pd); }, pd);
    };
}

} // namespace lab::hca

VERB(ibv_pd*, ibv_alloc_pd, (ibv_context * handle), (handle), {
    auto& home = *context::of(handle).home;
    if (home.pds_made.fetch_add(1) >= max_pds) {
        home.pds_made.fetch_sub(1);
        return fails(ENOMEM);
    }
    auto domain = make_zeroed<protection_domain>();
    domain->seen.context = handle;
    domain->id = home.next_pd.fetch_add(1);
    domain->seen.handle = domain->id;
    return &domain.release()->seen;
})

VERB(int, ibv_dealloc_pd, (ibv_pd * pd), (pd), {
    if (protection_domain::of(pd).users.load() != 0)
        return fails(EBUSY);
    context::of(pd->context).home->pds_made.fetch_sub(1);
    delete &protection_domain::of(pd);
    return 0;
})

VERB(ibv_mr*, ibv_reg_mr, (ibv_pd * pd, void* address, size_t length, int access),
     (pd, address, length, access), {
         const auto region = register_host(pd, address, length, reinterpret_cast<uint64_t>(address),
                                           static_cast<unsigned>(access));
         return region ? *region : fails(region.error());
     })

VERB(ibv_mr*, ibv_reg_mr_iova, (ibv_pd * pd, void* address, size_t length, uint64_t iova, int access),
     (pd, address, length, iova, access), {
         const auto region = register_host(pd, address, length, iova, static_cast<unsigned>(access));
         return region ? *region : fails(region.error());
     })

VERB(ibv_mr*, ibv_reg_mr_iova2, (ibv_pd * pd, void* address, size_t length, uint64_t iova, unsigned access),
     (pd, address, length, iova, access), {
         const auto region = register_host(pd, address, length, iova, access);
         return region ? *region : fails(region.error());
     })

VERB(ibv_mr*, ibv_reg_dmabuf_mr,
     (ibv_pd * pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access),
     (pd, offset, length, iova, fd, access), {
         const auto region = register_dmabuf(pd, offset, length, iova, fd, static_cast<unsigned>(access));
         return region ? *region : fails(region.error());
     })

VERB(int, ibv_dereg_mr, (ibv_mr * mr), (mr), { return drop_region(mr); })

// Verbs of rdma-core 59 and later.
namespace lab::hca {

NEWER_VERB(ibv_mr*, ibv_reg_mr_ex, (ibv_pd * pd, const registration* wanted), (pd, wanted), {
    const auto region = register_as_described(pd, *wanted);
    return region ? *region : fails(region.error());
})

NEWER_VERB(void*, ibv_alloc_buf, (ibv_pd * pd, size_t size, plain_buffer** buffer), (pd, size, buffer), {
    auto allocation = std::make_unique<plain_buffer>(plain_buffer{pd, nullptr, size});
    if (::posix_memalign(&allocation->address, page, size) != 0)
        return fails(ENOMEM);
    *buffer = allocation.release();
    return (*buffer)->address;
})

[[gnu::visibility("default")]] void newer_ibv_free_buf(plain_buffer* buffer) __asm__("ibv_free_buf");
void newer_ibv_free_buf(plain_buffer* buffer) {
    std::free(buffer->address);
    delete buffer;
}

NEWER_VERB(ibv_mr*, ibv_reg_buf_mr,
           (ibv_pd * pd, plain_buffer* buffer, void* address, size_t length, int access),
           (pd, buffer, address, length, access), {
               registration wanted{};
               wanted.comp_mask = registration::mask_address | registration::mask_buffer;
               wanted.address = address;
               wanted.length = length;
               wanted.access = access;
               wanted.buffer = buffer;
               const auto region = register_as_described(pd, wanted);
               return region ? *region : fails(region.error());
           })

NEWER_VERB_AS(with_minus_one, int, ibv_export_buf_dmabuf_fd, (plain_buffer * buffer), (buffer),
              { return fails(ENODATA); }) // the buffer has no DMA-BUF

} // namespace lab::hca
