// SPDX-License-Identifier: BSD-3-Clause
// Opens the buffer of example_ipc_owner, reads it and writes to it.
#include <gaudi/gaudi.hpp>

#include <algorithm>
#include <cstdio>
#include <vector>

int main() {
    using gaudi::expect;
    gaudi::memory_handle handle;
    if (std::fread(handle.bytes.data(), 1, handle.size, stdin) != handle.size) {
        std::fprintf(stderr,
                     "reader: no handle on standard input; use example_ipc_owner | example_ipc_reader\n");
        return 2;
    }
    auto theirs = expect(gaudi::import_memory(handle)); // a lease
    std::vector<std::byte> bytes(theirs.size());
    auto reading = expect(theirs.read(bytes)); // asynchronous: runs without further calls
    expect(reading.wait());
    const bool right =
        std::all_of(bytes.begin(), bytes.end(), [](std::byte each) { return each == std::byte{1}; });
    std::printf("reader: %zu bytes through %s are %s\n", bytes.size(), gaudi::name_of(reading.path()).data(),
                right ? "right" : "wrong");
    std::fill(bytes.begin(), bytes.end(), std::byte{2});
    expect(expect(theirs.write(0, bytes)).wait());
    return right ? 0 : 1;
}
