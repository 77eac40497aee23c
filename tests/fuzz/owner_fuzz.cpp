// SPDX-License-Identifier: BSD-3-Clause
// Arbitrary answers of an owner: an import and a copy must end with an error or with data, in bounded time.
// The input is a list of answers: a control byte (length of the answer, flags for a descriptor, a valid head
// and success), then the bytes.
#include <gaudi/gaudi.hpp>

#include "src/ipc/messages.hpp"
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

// Accepts one importer and answers its requests until the input is used up.
void answer(int listener, answers given, int descriptor) {
    const auto soon = [] { return std::chrono::steady_clock::now() + std::chrono::milliseconds(50); };
    const unique_fd socket(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    while (socket && given.size > 0) {
        std::array<std::byte, longest_request> asked;
        if (!receive_message(socket.get(), asked, soon()))
            return;
        const auto request = read_as<request_head>(std::span(asked).first(sizeof(request_head)));
        const auto how = *given.data++;
        const auto wanted = std::min(--given.size, longest_answer * (how & amount) / amount);
        message_bytes message;
        message.reserve(longest_answer); // data() is no null pointer, which memcpy does not take
        message.resize(wanted);
        std::memcpy(message.data(), given.data, wanted);
        given.data += wanted;
        given.size -= wanted;
        if ((how & with_head) != 0) { // a valid head, and the size that the importer expects
            answer_head head;
            std::memcpy(static_cast<void*>(&head), message.data(), std::min(wanted, sizeof(head)));
            head.magic = request_head::magic_value;
            head.version = request_head::current_version;
            head.id = request->id;
            if ((how & with_success) != 0)
                head.failed = 0;
            const auto kind = request->kind;
            message.resize(sizeof(head) + (kind == kind_of<open_lease_request>()     ? sizeof(opened_lease)
                                           : kind == kind_of<open_dmabuf_request>()  ? sizeof(opened_dmabuf)
                                           : kind == kind_of<open_context_request>() ? sizeof(opened_context)
                                                                                     : sizeof(nothing_more)));
            std::memcpy(message.data(), &head, sizeof(head));
        }
        const int passed[] = {descriptor, descriptor};
        (void)send_message(socket.get(), message,
                           (how & with_descriptor) != 0 ? std::span(passed).first(1 + how % 2)
                                                        : std::span<const int>(),
                           soon());
    }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static const auto memory = expect(shared_memory::make("fuzz", 4096 * sizeof(lease_word)));
    static std::uint64_t runs = 0;
    ipc_settings impatient;
    impatient.answer_timeout = std::chrono::milliseconds(20);
    set_ipc(impatient);
    handle_record record; // its owner is the thread below
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
    if (const auto waiting = connect_to(broker_name(record.owner()))) { // the thread may still be in accept4
    }
    owner.join();
    return 0;
}
