// SPDX-License-Identifier: BSD-3-Clause
// A process that ends UCX, the plugin and our library in a given order. Arguments: the path of libucp, and
// the name of the order.
#include "tests/ucx/in_process/opened_ucx.hpp"

#include <gaudi/device.hpp>

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace {

opened_ucx* ucx = nullptr;
std::vector<std::byte> bytes(64 << 20, std::byte{7});

// The device that UCX has open.
std::shared_ptr<gaudi::device> library_device() {
    const gaudi::device_address where(reinterpret_cast<std::uint64_t>(ucx->address));
    const auto index = gaudi::known_memory().device_of(where);
    if (!index)
        opened_ucx::fail("UCX gave memory of no known device");
    return gaudi::find_open_device(*index);
}

void expect_copy(gaudi::device& device) {
    const auto memory = gaudi::expect(device.heap().allocate(4096));
    auto engine = gaudi::expect(device.copies());
    std::vector<std::byte> out(4096, std::byte{5}), back(4096);
    gaudi::expect(gaudi::expect(engine.write(memory.address(), out)).wait());
    gaudi::expect(gaudi::expect(engine.read(back, memory.address())).wait());
    if (out != back)
        opened_ucx::fail("the library copies no more");
}

const std::map<std::string, std::function<void()>> ends = {
    {"everything_open", [] {}},
    {"a_copy_in_flight",
     [] {
         // These objects are leaked on purpose: the copy is in flight at exit.
         const auto* device = new auto(library_device());
         const auto* memory = new auto(gaudi::expect((*device)->heap().allocate(bytes.size())));
         auto* engine = new auto(gaudi::expect((*device)->copies()));
         new auto(gaudi::expect(engine->write(memory->address(), bytes)));
     }},
    {"statics_of_the_program",
     [] {
         static const auto device = library_device();
         static const auto memory = gaudi::expect(device->heap().allocate(bytes.size()));
         static auto engine = gaudi::expect(device->copies());
         static const auto ticket = gaudi::expect(engine.write(memory.address(), bytes));
     }},
    {"the_library_before_ucx",
     [] {
         {
             const auto device = library_device();
             expect_copy(*device);
         }
         ucx->close();
     }},
    {"ucx_before_the_library",
     [] {
         const auto device = library_device();
         ucx->close();
         ::dlclose(ucx->library);
         expect_copy(*device);
     }},
    {"ucx_unloaded_while_open", [] { ::dlclose(ucx->library); }},
    {"ucx_opened_again",
     [] {
         ucx->close();
         ::dlclose(ucx->library);
         ucx->library = ::dlopen(ucx->path, RTLD_NOW | RTLD_LOCAL);
         ucx->open();
         ucx->allocate();
         ucx->close();
     }},
    // The atexit handler was installed before UCX was loaded, so it runs after those of UCX and the plugin.
    {"by_a_handler_from_before", [] {}},
    {"at_once", [] { std::quick_exit(0); }},
};

bool by_handler = false;

} // namespace

int main(int, char** argv) {
    const std::string how = argv[2];
    std::atexit([] {
        if (by_handler) {
            ucx->close();
            std::puts("closed by the handler");
        }
    });
    ucx = new opened_ucx(argv[1]);
    ucx->open();
    ucx->allocate();
    by_handler = how == "by_a_handler_from_before";
    std::puts("ends now");
    std::fflush(stdout);
    ends.at(how)();
}
