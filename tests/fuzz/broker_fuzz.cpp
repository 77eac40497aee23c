// SPDX-License-Identifier: BSD-3-Clause
// Any messages to a broker: it answers or hangs up, and goes on serving. The input is a list of messages: a
// byte that says how much of a request it fills, with its highest bit for a descriptor, then the bytes.
#include "src/ipc/broker.hpp"

#include <cstdlib>
#include <cstring>

using namespace gaudi;

namespace {

const std::string& name() {
    static const std::string listening = [] {
        const auto service = broker::self();
        if (!service || !(*service)->begin_to_listen())
            std::abort();
        return broker_name(own_identity());
    }();
    return listening;
}

// An honest question gets an honest answer.
void check_service() {
    const auto socket = expect(connect_to(name()));
    wire_request asked;
    asked.head.id = 7;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    expect(send_message(socket.get(), std::as_bytes(std::span(&asked, 1)), {}, deadline));
    wire_reply reply;
    const auto got = receive_message(socket.get(), std::as_writable_bytes(std::span(&reply, 1)), deadline);
    if (!got || got->bytes != sizeof(reply) || reply.head.id != 7 || reply.failed == 0)
        std::abort();
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static unsigned runs = 0;
    {
        const auto socket = expect(connect_to(name()));
        const auto now = std::chrono::steady_clock::now();
        while (size > 0) {
            const bool descriptor = (*data & 0x80) != 0;
            const bool headed = (*data & 0x40) != 0;
            const auto wanted = std::min<std::size_t>(size - 1, sizeof(wire_request) * (*data & 0x3f) / 0x3f);
            ++data;
            --size;
            wire_request request;
            std::memcpy(&request, data, wanted);
            if (headed) { // past the first look
                request.head.magic = wire_head::magic_value;
                request.head.version = wire_head::current_version;
            }
            data += wanted;
            size -= wanted;
            const int passed[] = {socket.get()};
            if (!send_message(socket.get(),
                              std::as_bytes(std::span(&request, 1)).first(headed ? sizeof(request) : wanted),
                              descriptor ? std::span<const int>(passed) : std::span<const int>(), now))
                break; // it hung up
        }
        wire_reply reply;
        while (receive_message(socket.get(), std::as_writable_bytes(std::span(&reply, 1)), now)) {
        }
    }
    if (++runs % 64 == 0)
        check_service();
    return 0;
}
