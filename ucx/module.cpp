// SPDX-License-Identifier: BSD-3-Clause
// Entry point: UCX calls ucs_module_global_init after it has loaded this file from UCX_PLUGIN_PATH.
#include "ucx/base/module.hpp"
#include "ucx/copy/copy_md.hpp"
#include "ucx/ipc/ipc_md.hpp"

#include <cstring>
#include <unistd.h>

using namespace gaudi_ucx;

namespace {

ucs_status_t enter(const void* caller) {
    auto module = std::make_unique<uct_gaudi_module>();
    for (auto& device : module->sys_devices)
        device = UCS_SYS_DEVICE_ID_UNKNOWN;
    module->gpus_here = ::access("/dev/nvidiactl", F_OK) == 0;
    std::string why_not;
    const bool usable = module->ucx.find(caller, why_not);
    // Read by a call: the linker may have copied the options themselves into the program (gotcha U2).
    module->log.log_level = UCS_LOG_LEVEL_WARN;
    char level[32] = {};
    if (module->ucx.ucs_global_opts_get_value != nullptr && module->ucx.ucs_log_level_names != nullptr &&
        module->ucx.ucs_global_opts_get_value("LOG_LEVEL", level, sizeof(level)) == UCS_OK)
        (void)module->set_log_level(level);
    std::strcpy(module->log.name, "GAUDI");
    module->log.file_filter = "*";
    if (!usable) {
        if (module->ucx.ucs_log_dispatch != nullptr)
            gaudi_log(*module, WARN, "libuct_gaudi is not used: {}", why_not);
        else // no UCX to log through
            fmt::print(stderr, "libuct_gaudi is not used: {}\n", why_not);
        return UCS_ERR_UNSUPPORTED;
    }
    auto& stays = *module.release(); // UCX keeps pointers into it
    register_copy_md(stays);
    register_copy_iface(stays);
    register_dma_iface(stays);
    register_ipc_md(stays);
    register_ipc_iface(stays);
    gaudi_log(stays, DEBUG, "libuct_gaudi serves UCX {}", stays.ucx.version);
    return UCS_OK;
}

} // namespace

extern "C" __attribute__((visibility("default"))) ucs_status_t ucs_module_global_init(void) {
    // The caller is the libucs that loads this module: a process may contain several UCX, and this one is to
    // be served.
    const void* caller = __builtin_return_address(0);
    return no_throw([&] { return enter(caller); });
}
