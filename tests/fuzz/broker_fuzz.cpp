// SPDX-License-Identifier: BSD-3-Clause
// Sends arbitrary messages to a broker that shares memory of a virtual Gaudi. The broker must answer or close
// the connection, and must continue to serve. The input is a list of messages: a control byte (length of the
// request, flags for a descriptor, a valid head and a valid handle), then the bytes.
#include <gaudi/gaudi.hpp>

#include "src/ipc/broker.hpp"

#include <cstdlib>
#include <cstring>
#include <sys/prctl.h>
#include <sys/wait.h>

using namespace gaudi;

namespace {

constexpr std::uint8_t with_descriptor = 0x80, with_head = 0x40, with_handle = 0x20, amount = 0x1f;

// The broker does not serve its own process: a child connects and passes the socket to this process.
class connector {
public:
    connector() {
        int ends[2];
        if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
            std::abort();
        ours_ = unique_fd(ends[0]);
        const unique_fd theirs(ends[1]);
        if (::fork() == 0) {
            ::prctl(PR_SET_PDEATHSIG, SIGKILL);
            serve(theirs.get());
            std::_Exit(0);
        }
    }
    unique_fd connect(const std::string& name) {
        const auto soon = std::chrono::steady_clock::now() + std::chrono::seconds(5);
        expect(send_message(ours_.get(), std::as_bytes(std::span(name)), {}, soon));
        std::byte byte{};
        auto got = expect(receive_message(ours_.get(), std::span(&byte, 1), soon));
        if (got.descriptors != 1)
            std::abort();
        return std::move(got.passed[0]);
    }

private:
    static void serve(int asked) {
        char name[108];
        for (;;) {
            const auto length = ::recv(asked, name, sizeof(name), 0);
            if (length <= 0)
                return;
            const auto made = expect(connect_to({name, static_cast<std::size_t>(length)}));
            const int passed[] = {made.get()};
            expect(send_message(asked, std::as_bytes(std::span("x", 1)), passed,
                                std::chrono::steady_clock::now() + std::chrono::seconds(5)));
        }
    }

    unique_fd ours_;
};

struct service {
    connector other; // first member: it must fork before threads exist
    std::shared_ptr<device> opened_device = expect(open_device());
    device_buffer buffer = expect(opened_device->heap().allocate(1 << 20));
    handle_record handle = expect(read_handle(expect(share(buffer)).bytes));
    std::string name = broker_name(own_identity());
    shared_memory slab = expect(shared_memory::make("fuzz", 1 << 20));
};

service& served() {
    static auto& all = *new service;
    return all;
}

// Aborts unless the broker answers a valid request correctly.
void check_service() {
    auto& all = served();
    const auto socket = all.other.connect(all.name);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    expect(send_message(socket.get(), request_message(7, open_lease_request{all.handle}), {}, deadline));
    std::array<std::byte, longest_answer> bytes;
    const auto got = receive_message(socket.get(), bytes, deadline);
    const auto head = read_as<answer_head>(std::span(bytes).first(sizeof(answer_head)));
    if (!got || got->bytes != sizeof(answer_head) + sizeof(opened_lease) || head->id != 7 ||
        head->failed != 0)
        std::abort();
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static unsigned runs = 0;
    auto& all = served();
    {
        const auto socket = all.other.connect(all.name);
        const auto soon = std::chrono::steady_clock::now() + std::chrono::milliseconds(5);
        while (size > 0) {
            const auto how = *data++;
            const auto wanted = std::min(--size, longest_request * (how & amount) / amount);
            message_bytes message;
            message.reserve(longest_request); // data() is no null pointer, which memcpy does not take
            message.resize(wanted);
            std::memcpy(message.data(), data, wanted);
            data += wanted;
            size -= wanted;
            // Flags make the head valid, and the handle too, so that the message passes these checks.
            const auto body = [&](std::size_t length) {
                message.resize(sizeof(request_head) + length);
                return message.data() + sizeof(request_head);
            };
            request_head head;
            std::memcpy(static_cast<void*>(&head), message.data(), std::min(wanted, sizeof(head)));
            head.magic = request_head::magic_value;
            head.version = request_head::current_version;
            if ((how & with_handle) != 0) {
                head.kind = kind_of<open_lease_request>();
                std::memcpy(body(sizeof(open_lease_request)), &all.handle, sizeof(all.handle));
            } else if ((how & with_head) != 0) {
                constexpr std::size_t sizes[] = {
                    sizeof(open_lease_request),  sizeof(close_lease_request),   sizeof(open_context_request),
                    sizeof(attach_slab_request), sizeof(copy_request),          sizeof(open_dmabuf_request),
                    sizeof(open_device_request), sizeof(release_dmabuf_request)};
                head.kind = static_cast<std::uint16_t>(head.kind % std::size(sizes) + 1);
                (void)body(sizes[head.kind - 1]);
            }
            if ((how & (with_head | with_handle)) != 0)
                std::memcpy(message.data(), &head, sizeof(head));
            const int passed[] = {all.slab.descriptor()};
            if (!send_message(socket.get(), message,
                              (how & with_descriptor) != 0 ? std::span<const int>(passed)
                                                           : std::span<const int>(),
                              soon))
                break; // the broker closed the connection
        }
        std::array<std::byte, longest_answer> answer;
        while (receive_message(socket.get(), answer, soon)) {
        }
    }
    if (++runs % 64 == 0)
        check_service();
    return 0;
}
