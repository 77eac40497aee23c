// SPDX-License-Identifier: BSD-3-Clause
// Any answers of an owner: an import and a copy end with an error or with data, in bounded time. The input is
// a list of answers: a byte that says how much of one follows, with bits for a descriptor, for a good head,
// and for success, then the bytes.
#include <gaudi/gaudi.hpp>

#include "src/ipc/wire.hpp"
#include "src/os/channel.hpp"
#include "src/os/shared_memory.hpp"

#include <cstdlib>
#include <cstring>
#include <sys/socket.h>
#include <thread>

using namespace gaudi;

namespace {

constexpr std::uint8_t with_descriptor = 0x80, with_head = 0x40, with_success = 0x20, amount = 0x1f;

struct answers {
    const std::uint8_t* data;
    std::size_t size;
};

// One importer's connection, until there is nothing more to say.
void answer(int listener, answers given, int descriptor) {
    const auto soon = [] { return std::chrono::steady_clock::now() + std::chrono::milliseconds(50); };
    const unique_fd socket(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    while (socket && given.size > 0) {
        wire_request asked;
        if (!receive_message(socket.get(), std::as_writable_bytes(std::span(&asked, 1)), soon()))
            return;
        const auto how = *given.data++;
        --given.size;
        const auto wanted = std::min(given.size, sizeof(wire_reply) * (how & amount) / amount);
        wire_reply reply;
        std::memcpy(static_cast<void*>(&reply), given.data, wanted);
        given.data += wanted;
        given.size -= wanted;
        if ((how & with_head) != 0) {
            const auto id = asked.head.id;
            reply.head = {};
            reply.head.id = id;
        }
        if ((how & with_success) != 0)
            reply.failed = 0;
        const int passed[] = {descriptor, descriptor};
        (void)send_message(
            socket.get(),
            std::as_bytes(std::span(&reply, 1)).first((how & with_head) != 0 ? sizeof(reply) : wanted),
            (how & with_descriptor) != 0 ? std::span(passed).first(1 + how % 2) : std::span<const int>(),
            soon());
    }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static const auto memory = expect(shared_memory::make("fuzz", 4096 * sizeof(lease_word)));
    static std::uint64_t runs = 0;
    ipc_settings impatient;
    impatient.patience = std::chrono::milliseconds(20);
    set_ipc(impatient);
    handle_record record; // of a process that only these answers speak for
    const auto& self = own_identity();
    record.machine = self.machine;
    record.random = {self.random[0] ^ 1, ++runs};
    record.start_time = self.start_time;
    record.pid = self.pid;
    record.base = 0x1001500010000000;
    record.allocated = record.length = 4096;
    record.generation = record.secret = 1;
    const auto listener = expect(listen_on(broker_name(record.owner())));
    std::thread owner([&] { answer(listener.get(), {data, size}, memory.descriptor()); });
    {
        const import_options by_proxy{copy_path::owner_proxy};
        std::vector<std::byte> seen(64);
        auto imported = import_memory(record.seal(), by_proxy);
        if (imported)
            if (auto reading = imported->read(seen))
                (void)reading->wait(std::chrono::seconds(10));
    }
    if (const auto waiting = connect_to(broker_name(record.owner()))) { // the thread may still be accepting
    }
    owner.join();
    return 0;
}
