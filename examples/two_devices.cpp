// SPDX-License-Identifier: BSD-3-Clause
// Host -> Gaudi 0 -> Gaudi 1 -> host, every byte checked; prints which path the bytes took and how fast.
#include <gaudi/gaudi.hpp>

#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

namespace {

constexpr std::size_t size = 256U << 20;

template <typename T>
T need(gaudi::result<T> outcome, const char* what) {
    if (!outcome) {
        std::fprintf(stderr, "%s: %s\n", what, outcome.error().message().c_str());
        std::exit(1);
    }
    if constexpr (!std::is_void_v<T>)
        return std::move(*outcome);
}

class stopwatch {
public:
    [[nodiscard]] double gigabytes_per_second(std::size_t bytes) const {
        const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin_;
        return static_cast<double>(bytes) / taken.count() / 1e9;
    }

private:
    std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

void show(const gaudi::device& device, const gaudi::device_buffer& buffer) {
    const auto info = device.info();
    const auto window = need(buffer.dmabuf(), "DMA-BUF export");
    std::printf("gaudi %u   %s %s at %s, %.2f GiB HBM\n", info.index, gaudi::name_of(*info.generation).data(),
                info.product.c_str(), info.bus_id.c_str(),
                static_cast<double>(info.memory_total) / (1U << 30));
    std::printf("          %zu MiB at %#" PRIx64 ", exported as DMA-BUF: fd %d, offset %#" PRIx64
                ", iova %#" PRIx64 "\n",
                size >> 20, buffer.address().value(), window.fd, window.offset, window.iova.value());
}

} // namespace

int main() {
    const auto driver = need(gaudi::loaded_driver(), "hl-thunk");
    std::printf("hl-thunk  %s from %s\n", driver.version.c_str(), driver.path.c_str());
    const auto first = need(gaudi::open_device(gaudi::by_index{0}), "gaudi 0");
    const auto second = need(gaudi::open_device(gaudi::by_index{1}), "gaudi 1");
    auto there = need(first->heap().allocate(size), "memory on gaudi 0");
    auto yonder = need(second->heap().allocate(size), "memory on gaudi 1");
    show(*first, there);
    show(*second, yonder);

    std::vector<std::byte> out(size), back(size);
    std::uint64_t word = 0x9e3779b97f4a7c15;
    for (std::size_t i = 0; i < size; i += sizeof(word)) {
        word = word * 6364136223846793005 + 1442695040888963407;
        std::memcpy(&out[i], &word, sizeof(word));
    }
    auto to_first = need(first->copies(), "copy engine of gaudi 0");
    auto from_second = need(second->copies(), "copy engine of gaudi 1");
    const auto pinned_out = need(to_first.pin(out), "pinning the source");
    const auto pinned_back = need(from_second.pin(back), "pinning the destination");

    const stopwatch down;
    need(need(to_first.write(there.address(), out), "write").wait(), "write");
    std::printf("host    -> gaudi 0   %6.2f GB/s   DMA from pinned memory\n",
                down.gigabytes_per_second(size));
    const stopwatch across;
    gaudi::copier copies;
    const gaudi::place to(yonder.address(), size), from(there.address(), size);
    auto between = need(copies.copy(to, from), "copy between devices");
    need(between.wait(), "copy between devices");
    std::printf("gaudi 0 -> gaudi 1   %6.2f GB/s   %s\n", across.gigabytes_per_second(size),
                gaudi::name_of(between.path()).data());
    for (const auto& each : copies.paths(to, from)) // why the better paths were not taken
        if (each.path < between.path() && each.path > gaudi::copy_path::owner_context)
            std::printf("                                  not by %s: %s\n", gaudi::name_of(each.path).data(),
                        each.why_not ? each.why_not->observed().c_str() : "");
    const stopwatch up;
    need(need(from_second.read(back, yonder.address()), "read").wait(), "read");
    std::printf("gaudi 1 -> host      %6.2f GB/s   DMA to pinned memory\n", up.gigabytes_per_second(size));

    for (std::size_t i = 0; i < size; ++i)
        if (out[i] != back[i]) {
            std::printf("wrong: byte %zu is %#x, expected %#x\n", i, std::to_integer<unsigned>(back[i]),
                        std::to_integer<unsigned>(out[i]));
            return 1;
        }
    std::printf("data is right: %zu bytes went through both devices and were compared\n", size);
    return 0;
}
