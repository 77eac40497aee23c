// SPDX-License-Identifier: BSD-3-Clause
// The transport gaudi_cpy, call by call. Runs in the lab, under either UCX.
#include "tests/ucx/in_process/uct_case.hpp"

#include <gaudi/device.hpp>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <poll.h>
#include <string_view>

namespace {

using namespace testing_ucx;

TEST_F(uct_case, every_operation_copies_every_byte) {
    copier copies(domain);
    for (const std::size_t size : {1UL, 8UL, 255UL, 256UL, 4097UL, 32768UL, 1000003UL}) {
        const allocated one(domain, size), two(domain, size);
        auto out = numbered(size, 1);
        std::vector<std::byte> back(size);
        // put_short and get_short of any size: UCX itself exceeds the limit
        ASSERT_EQ(uct_ep_put_short(copies.ep, out.data(), static_cast<unsigned>(size), one.number(),
                                   UCT_INVALID_RKEY),
                  UCS_OK);
        ASSERT_EQ(uct_ep_get_short(copies.ep, back.data(), static_cast<unsigned>(size), one.number(),
                                   UCT_INVALID_RKEY),
                  UCS_OK);
        EXPECT_EQ(out, back) << size;
        // device to device, both directions
        ASSERT_EQ(complete(copies, true, one.memory.address, size, two.number()), UCS_OK);
        std::fill(back.begin(), back.end(), std::byte{0});
        ASSERT_EQ(complete(copies, false, back.data(), size, two.number()), UCS_OK);
        EXPECT_EQ(out, back) << size;
        // registered host memory
        out = numbered(size, 2);
        const auto memh = registered(reinterpret_cast<uint64_t>(out.data()), size);
        ASSERT_EQ(complete(copies, true, out.data(), size, one.number(), memh), UCS_OK);
        ASSERT_EQ(complete(copies, false, two.memory.address, size, one.number()), UCS_OK);
        uct_md_mem_dereg(domain.md, memh);
        ASSERT_EQ(complete(copies, false, back.data(), size, two.number()), UCS_OK);
        EXPECT_EQ(out, back) << size;
        if (size > 32768)
            continue;
        out = numbered(size, 3);
        struct packing {
            const std::vector<std::byte>* from;
        } packing{&out};
        const auto moved = uct_ep_put_bcopy(
            copies.ep,
            [](void* to, void* arg) {
                const auto& from = *static_cast<struct packing*>(arg)->from;
                std::memcpy(to, from.data(), from.size());
                return from.size();
            },
            &packing, one.number(), UCT_INVALID_RKEY);
        EXPECT_EQ(moved, static_cast<ssize_t>(size));
        std::fill(back.begin(), back.end(), std::byte{0});
        ASSERT_EQ(uct_ep_get_bcopy(
                      copies.ep,
                      [](void* to, const void* data, size_t length) { std::memcpy(to, data, length); },
                      back.data(), size, one.number(), UCT_INVALID_RKEY, nullptr),
                  UCS_OK);
        EXPECT_EQ(out, back) << size;
    }
}

TEST_F(uct_case, a_flush_ends_after_all_before_it) {
    copier copies(domain);
    const allocated memory(domain, 64 << 20);
    auto out = numbered(4 << 20, 5);
    std::vector<finished> each(16);
    for (std::size_t i = 0; i < each.size(); ++i) {
        uct_iov_t iov{out.data(), out.size(), nullptr, 0, 1};
        ASSERT_EQ(uct_ep_put_zcopy(copies.ep, &iov, 1, memory.number() + i * out.size(), UCT_INVALID_RKEY,
                                   &each[i].comp),
                  UCS_INPROGRESS);
    }
    finished flushed;
    ASSERT_EQ(uct_iface_flush(copies.iface, UCT_FLUSH_FLAG_LOCAL, &flushed.comp), UCS_INPROGRESS);
    while (flushed.times == 0) {
        copies.progress();
    }
    for (const auto& copy : each)
        EXPECT_EQ(copy.times, 1); // and not again
    EXPECT_EQ(uct_iface_flush(copies.iface, UCT_FLUSH_FLAG_LOCAL, nullptr), UCS_OK);
}

TEST_F(uct_case, a_fence_orders_copies) {
    copier copies(domain);
    const allocated memory(domain, 32 << 20);
    for (unsigned round = 0; round < 8; ++round) {
        auto large = numbered(32 << 20, round);
        finished first, second;
        uct_iov_t iov{large.data(), large.size(), nullptr, 0, 1};
        ASSERT_EQ(uct_ep_put_zcopy(copies.ep, &iov, 1, memory.number(), UCT_INVALID_RKEY, &first.comp),
                  UCS_INPROGRESS);
        ASSERT_EQ(uct_ep_fence(copies.ep, 0), UCS_OK);
        std::byte last{99}, found{0};
        ASSERT_EQ(uct_ep_put_short(copies.ep, &last, 1, memory.number() + large.size() - 1, UCT_INVALID_RKEY),
                  UCS_OK);
        while (first.times == 0)
            copies.progress();
        ASSERT_EQ(
            uct_ep_get_short(copies.ep, &found, 1, memory.number() + large.size() - 1, UCT_INVALID_RKEY),
            UCS_OK);
        EXPECT_EQ(found, last);
    }
}

// Completion callbacks start the next copy after a fence while other copies are in flight.
TEST_F(uct_case, a_callback_may_copy_after_a_fence) {
    copier copies(domain);
    const allocated memory(domain, 32 << 20);
    auto out = numbered(4 << 20, 3);
    struct chain {
        uct_completion_t comp{};
        copier* copies = nullptr;
        uct_iov_t iov{};
        uint64_t to = 0;
        int left = 0, ended = 0;
    };
    std::vector<chain> chains(6);
    const auto post = [](chain& each) {
        each.comp.count = 1;
        uct_ep_fence(each.copies->ep, 0);
        ASSERT_EQ(uct_ep_put_zcopy(each.copies->ep, &each.iov, 1, each.to, UCT_INVALID_RKEY, &each.comp),
                  UCS_INPROGRESS);
    };
    for (std::size_t i = 0; i < chains.size(); ++i) {
        auto& each = chains[i];
        each.copies = &copies;
        each.iov = {out.data(), out.size(), nullptr, 0, 1};
        each.to = memory.number() + i * out.size();
        each.left = 4;
        each.comp.func = [](uct_completion_t* self) {
            auto& own = *reinterpret_cast<chain*>(self);
            ++own.ended;
            if (--own.left == 0)
                return;
            own.comp.count = 1;
            uct_ep_fence(own.copies->ep, 0);
            EXPECT_EQ(uct_ep_put_zcopy(own.copies->ep, &own.iov, 1, own.to, UCT_INVALID_RKEY, &own.comp),
                      UCS_INPROGRESS);
        };
        post(each);
    }
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (std::any_of(chains.begin(), chains.end(), [](const auto& each) { return each.left != 0; })) {
        copies.progress();
        ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    }
    for (int i = 0; i < 1000; ++i)
        copies.progress();
    for (const auto& each : chains) {
        EXPECT_EQ(each.ended, 4); // and not again
        EXPECT_EQ(each.comp.status, UCS_OK);
    }
}

TEST_F(uct_case, a_sleeper_is_woken_by_the_end_of_a_copy) {
    copier copies(domain);
    int event = -1;
    ASSERT_EQ(uct_iface_event_fd_get(copies.iface, &event), UCS_OK);
    const allocated memory(domain, 32 << 20);
    auto out = numbered(32 << 20, 9);
    for (int round = 0; round < 5; ++round) {
        finished done;
        uct_iov_t iov{out.data(), out.size(), nullptr, 0, 1};
        ASSERT_EQ(uct_ep_put_zcopy(copies.ep, &iov, 1, memory.number(), UCT_INVALID_RKEY, &done.comp),
                  UCS_INPROGRESS);
        while (done.times == 0) {
            if (const auto armed = uct_iface_event_arm(copies.iface, UCT_EVENT_SEND_COMP); armed == UCS_OK) {
                pollfd waiting{event, POLLIN, 0};
                ASSERT_EQ(::poll(&waiting, 1, 10000), 1) << "nothing woke the sleeper";
            } else
                ASSERT_EQ(armed, UCS_ERR_BUSY);
            copies.progress();
        }
    }
}

TEST_F(uct_case, copies_of_freed_memory_fail) {
    copier copies(domain);
    const allocated stays(domain, 4096);
    uint64_t gone = 0;
    {
        const allocated goes(domain, 65536);
        gone = goes.number();
    }
    std::uint64_t word = 0;
    EXPECT_EQ(uct_ep_get_short(copies.ep, &word, 8, gone, UCT_INVALID_RKEY), UCS_ERR_INVALID_ADDR);
    EXPECT_EQ(uct_ep_put_short(copies.ep, &word, 8, stays.number() + 4092, UCT_INVALID_RKEY),
              UCS_ERR_INVALID_ADDR);
}

// ---- between two devices ----

// Memory of the library on one device, filled and read by the device's own engine.
class on_device {
public:
    on_device(unsigned index, std::size_t size)
        : device_(gaudi::expect(gaudi::open_device(gaudi::by_index{index}))),
          buffer_(gaudi::expect(device_->heap().allocate(size))) {}

    [[nodiscard]] uint64_t number() const { return buffer_.address().value(); }
    void fill(const std::vector<std::byte>& bytes) {
        auto engine = gaudi::expect(device_->copies());
        gaudi::expect(gaudi::expect(engine.write(buffer_.address(), bytes)).wait());
    }
    std::vector<std::byte> read() {
        std::vector<std::byte> bytes(buffer_.size());
        auto engine = gaudi::expect(device_->copies());
        gaudi::expect(gaudi::expect(engine.read(bytes, buffer_.address())).wait());
        return bytes;
    }

private:
    std::shared_ptr<gaudi::device> device_;
    gaudi::device_buffer buffer_;
};

TEST_F(uct_case, copies_between_two_devices_move_every_byte_and_no_other) {
    copier copies(domain);
    const auto first = gaudi::expect(gaudi::open_device(gaudi::by_index{0})),
               second = gaudi::expect(gaudi::open_device(gaudi::by_index{1})); // open until the test ends
    constexpr std::size_t margin = 64;
    unsigned seed = 0;
    for (const std::size_t size : {1UL, 8UL, 4097UL, 32769UL, 1000003UL, (9UL << 20) + 5})
        for (const unsigned source : {0U, 1U})
            for (const auto* path : {"put_zcopy", "get_zcopy", "put_short"}) {
                SCOPED_TRACE(std::string(path) + " of " + std::to_string(size) + " bytes from device " +
                             std::to_string(source));
                on_device from(source, size), to(1 - source, size + 2 * margin);
                const auto out = numbered(size, ++seed), before = numbered(size + 2 * margin, seed + 100);
                from.fill(out);
                to.fill(before);
                auto* const mine = reinterpret_cast<void*>(from.number());
                const auto there = to.number() + margin;
                const auto name = std::string_view(path);
                if (name == "put_zcopy")
                    ASSERT_EQ(complete(copies, true, mine, size, there), UCS_OK);
                else if (name == "get_zcopy")
                    ASSERT_EQ(complete(copies, false, reinterpret_cast<void*>(there), size, from.number()),
                              UCS_OK);
                else
                    ASSERT_EQ(uct_ep_put_short(copies.ep, mine, static_cast<unsigned>(size), there,
                                               UCT_INVALID_RKEY),
                              UCS_OK);
                auto expected = before;
                std::copy(out.begin(), out.end(), expected.begin() + margin);
                EXPECT_TRUE(to.read() == expected);
                EXPECT_TRUE(from.read() == out);
            }
}

TEST_F(uct_case, a_large_copy_between_two_devices_is_in_flight_when_the_call_returns) {
    constexpr std::size_t size = 64 << 20;
    on_device from(0, size), to(1, size);
    for (const auto& [transport, device] :
         {std::pair("gaudi_cpy", "gaudi_copy"), std::pair("gaudi_dma", "gaudi_dma")}) {
        SCOPED_TRACE(transport);
        copier copies(domain, transport, device);
        for (const bool put : {true, false}) {
            const auto out = numbered(size, put ? 21 : 22);
            from.fill(out);
            finished done;
            uct_iov_t iov{reinterpret_cast<void*>(put ? from.number() : to.number()), size, nullptr, 0, 1};
            ASSERT_EQ(put ? uct_ep_put_zcopy(copies.ep, &iov, 1, to.number(), UCT_INVALID_RKEY, &done.comp)
                          : uct_ep_get_zcopy(copies.ep, &iov, 1, from.number(), UCT_INVALID_RKEY, &done.comp),
                      UCS_INPROGRESS);
            EXPECT_EQ(done.times, 0);
            while (done.times == 0)
                copies.progress();
            EXPECT_EQ(done.comp.status, UCS_OK);
            EXPECT_TRUE(to.read() == out);
        }
    }
}

// ---- several domains ----

TEST_F(uct_case, several_domains_and_interfaces_share_a_device) {
    memory_domain second("gaudi_copy", "gaudi_copy");
    copier here(domain), there(second);
    const allocated of_first(domain, 4096), of_second(second, 4096);
    uint64_t word = 7, found = 0;
    ASSERT_EQ(uct_ep_put_short(here.ep, &word, 8, of_second.number(), UCT_INVALID_RKEY), UCS_OK);
    ASSERT_EQ(uct_ep_get_short(there.ep, &found, 8, of_second.number(), UCT_INVALID_RKEY), UCS_OK);
    EXPECT_EQ(found, word);
}

} // namespace
