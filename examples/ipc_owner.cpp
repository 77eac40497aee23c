// SPDX-License-Identifier: BSD-3-Clause
// Shares a buffer in HBM and waits until another process has used it: example_ipc_owner | example_ipc_reader
#include <gaudi/gaudi.hpp>

#include <algorithm>
#include <cstdio>
#include <thread>
#include <vector>

int main() {
    using namespace std::chrono_literals;
    using gaudi::expect;
    auto device = expect(gaudi::open_device());
    auto copies = expect(device->copies());
    auto buffer = expect(device->heap().allocate(1 << 20));
    std::vector<std::byte> bytes(buffer.size(), std::byte{1});
    expect(expect(copies.write(buffer.address(), bytes)).wait());
    auto handle = expect(gaudi::share(buffer)); // 128 bytes, to send in any message
    std::fwrite(handle.bytes.data(), 1, handle.size, stdout);
    std::fflush(stdout);
    for (int i = 0; i < 10000 && gaudi::process_statistics().ipc.leases_given == 0;
         ++i) // until the first import
        std::this_thread::sleep_for(1ms);
    expect(gaudi::wait_for_leases(buffer.address(), 60s)); // until every importer has closed it
    expect(expect(copies.read(bytes, buffer.address())).wait());
    const bool right =
        std::all_of(bytes.begin(), bytes.end(), [](std::byte each) { return each == std::byte{2}; });
    std::fprintf(stderr, "owner: what the other process wrote is %s\n", right ? "right" : "wrong");
    return right ? 0 : 1;
}
