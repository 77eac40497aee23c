// SPDX-License-Identifier: BSD-3-Clause
// Device memory between two processes: the cost of opening it, and each path compared with memcpy of the same
// pieces. Then the same between two devices of one process. Run in a lab that is described by ipc.lab.
#include "bench/table.hpp"

#include <gaudi/gaudi.hpp>

#include <cstring>
#include <deque>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

using namespace gaudi;
using bench::table;

constexpr std::uint64_t mib = 1 << 20, whole = 256 * mib;
constexpr unsigned small_buffers = 500;

// The owner process: one large buffer, many small ones; exits when the socket is closed.
[[noreturn]] void own(int socket) {
    const auto device = expect(open_device(by_index{0}));
    auto copies = expect(device->copies());
    std::vector<device_buffer> buffers;
    buffers.push_back(expect(device->heap().allocate(whole)));
    std::vector<std::byte> bytes(whole, std::byte{1});
    expect(expect(copies.write(buffers[0].address(), bytes)).wait());
    for (unsigned i = 0; i < small_buffers; ++i)
        buffers.push_back(expect(device->heap().allocate(65536)));
    for (const auto& each : buffers) {
        const auto handle = expect(share(each));
        if (::send(socket, &handle, sizeof(handle), 0) != sizeof(handle))
            ::_exit(1);
    }
    char none;
    (void)!::recv(socket, &none, 1, 0);
    ::_exit(0);
}

void opening(table& results, const std::vector<memory_handle>& handles) {
    auto first = expect(import_memory(handles[1])); // the connection is not measured
    const auto begin = bench::clock::now();
    std::vector<imported_buffer> opened;
    for (unsigned i = 2; i < handles.size(); ++i)
        opened.push_back(expect(import_memory(handles[i])));
    const std::chrono::duration<double, std::micro> taken = bench::clock::now() - begin;
    const auto cold = taken.count() / static_cast<double>(opened.size());
    results.row("cold import", fmt::format("{:.1f} us", cold), "goal 100 us", cold <= 100);
    const auto warm = bench::nanoseconds_per([&](std::size_t) { (void)expect(import_memory(handles[1])); });
    // The cost of the lazy part: descriptors, mappings and registrations are made by the first copy.
    std::vector<std::byte> byte(1);
    const auto used = bench::clock::now();
    for (auto& each : opened)
        expect(expect(each.read(byte)).wait());
    const std::chrono::duration<double, std::micro> first_copies = bench::clock::now() - used;
    results.row("  its first copy, of 1 B",
                fmt::format("{:.1f} us", first_copies.count() / static_cast<double>(opened.size())), "");
    results.row("warm import", fmt::format("{:.0f} ns", warm), "goal 200 ns", warm <= 200);
}

void bandwidth(table& results, const memory_handle& handle, device& device, copy_path path,
               bool device_side) {
    auto engine = expect(device.copies()); // keeps the engine open during all copies
    auto imported = expect(import_memory(handle, {path}));
    auto local_buffer = expect(device.heap().allocate(whole));
    std::vector<std::byte> host(whole, std::byte{2}), other(whole, std::byte{3});
    const auto pinned = path == copy_path::owner_context ? expect(imported.pin(host)) : pinned_memory();
    for (const auto size : {mib, 16 * mib, 64 * mib}) {
        const auto count = whole / size;
        const auto copy_all = [&](bool write) {
            std::vector<copy_ticket> tickets;
            for (std::uint64_t i = 0; i < count; ++i) {
                const auto piece = std::span(host).subspan(i * size, size);
                const auto local = local_buffer.address() + i * size;
                if (tickets.size() >= 4) { // a few in flight
                    expect(tickets.front().wait());
                    tickets.erase(tickets.begin());
                }
                tickets.push_back(expect(device_side ? (write ? imported.write(i * size, local, size)
                                                              : imported.read(local, i * size, size))
                                         : write     ? imported.write(i * size, piece)
                                                     : imported.read(piece, i * size)));
            }
            for (auto& each : tickets)
                expect(each.wait());
        };
        double limit = 0, read = 0, write = 0;
        for (int round = 0; round < 5; ++round) {
            limit = std::max(limit, bench::gigabytes_per_second(
                                        [&] {
                                            for (std::uint64_t i = 0; i < count; ++i)
                                                std::memcpy(other.data() + i * size, host.data() + i * size,
                                                            size);
                                        },
                                        whole));
            read = std::max(read, bench::gigabytes_per_second([&] { copy_all(false); }, whole));
            write = std::max(write, bench::gigabytes_per_second([&] { copy_all(true); }, whole));
        }
        const bool direct = path == copy_path::owner_context || (device_side && path != copy_path::staged);
        const auto worse = std::min(read, write) / limit;
        results.row(
            fmt::format("{}, {} memory, {} MiB", name_of(path), device_side ? "device" : "host", size / mib),
            fmt::format("read {:.1f}, write {:.1f} GB/s", read, write),
            fmt::format("memcpy {:.1f} GB/s; ratio {:.2f}{}", limit, worse, direct ? ", goal 0.95" : ""),
            direct ? std::optional<bool>(worse >= 0.95) : std::nullopt);
    }
}

// Between two devices of one process, with its own copier.
void between_devices(table& results, copy_path path) {
    const auto from = expect(open_device(by_index{0})), to = expect(open_device(by_index{1}));
    const auto source = expect(from->heap().allocate(whole)), target = expect(to->heap().allocate(whole));
    std::vector<std::byte> host(whole, std::byte{2}), other(whole, std::byte{3});
    copier copies;
    for (const auto size : {mib, 16 * mib, 64 * mib}) {
        const auto copy_all = [&] {
            std::deque<copy_ticket> tickets;
            for (std::uint64_t at = 0; at < whole; at += size) {
                if (tickets.size() >= 4) { // a few in flight
                    expect(tickets.front().wait());
                    tickets.pop_front();
                }
                tickets.push_back(expect(copies.copy(place(target.address() + at, size),
                                                     place(source.address() + at, size), {path})));
            }
            for (auto& each : tickets)
                expect(each.wait());
        };
        double limit = 0, moved = 0;
        for (int round = 0; round < 5; ++round) {
            limit = std::max(limit, bench::gigabytes_per_second(
                                        [&] {
                                            for (std::uint64_t at = 0; at < whole; at += size)
                                                std::memcpy(other.data() + at, host.data() + at, size);
                                        },
                                        whole));
            moved = std::max(moved, bench::gigabytes_per_second(copy_all, whole));
        }
        const bool direct = is_zero_copy(path);
        results.row(fmt::format("{}, {} MiB", name_of(path), size / mib), fmt::format("{:.1f} GB/s", moved),
                    fmt::format("memcpy {:.1f} GB/s; ratio {:.2f}{}", limit, moved / limit,
                                direct ? ", goal 0.95" : ""),
                    direct ? std::optional<bool>(moved / limit >= 0.95) : std::nullopt);
    }
}

} // namespace

int main() {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
        return 1;
    const auto owner = ::fork();
    if (owner == 0) {
        ::close(ends[0]);
        own(ends[1]);
    }
    ::close(ends[1]);
    std::vector<memory_handle> handles(1 + small_buffers);
    for (auto& each : handles)
        if (::recv(ends[0], &each, sizeof(each), 0) != sizeof(each))
            return 1;
    {
        const auto device = expect(open_device(by_index{1}));
        table results("Device memory between two processes of one host");
        opening(results, handles);
        bandwidth(results, handles[0], *device, copy_path::owner_context, false);
        bandwidth(results, handles[0], *device, copy_path::peer_dmabuf, true);
        bandwidth(results, handles[0], *device, copy_path::nic_loopback, true);
        bandwidth(results, handles[0], *device, copy_path::nic_loopback, false);
        bandwidth(results, handles[0], *device, copy_path::staged, true);
        bandwidth(results, handles[0], *device, copy_path::owner_proxy, false);
        results.print();
    }
    stop_ipc();
    ::close(ends[0]);
    int status = 0;
    ::waitpid(owner, &status, 0);
    table results("Device memory between two devices of one process");
    for (const auto path : {copy_path::peer_dmabuf, copy_path::nic_loopback, copy_path::staged})
        between_devices(results, path);
    results.print();
    return status;
}
