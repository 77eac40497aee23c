// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/copy_engine.hpp>

#include "ucx/base/module.hpp"

#include <map>

namespace gaudi_ucx {

// The copy engines of this process's devices, for the interfaces that use them: an engine that nobody holds
// goes with its last copy. Interfaces share it and know engines weakly, so that one that is lost goes from
// here. Thread-safe.
class engine_keeper final : public device_holder {
public:
    // The module's, made by the first who asks.
    static std::shared_ptr<engine_keeper> of(uct_gaudi_module& module);
    explicit engine_keeper(uct_gaudi_module& module);
    ~engine_keeper();

    // `options` count if nobody has the device's engine yet. errc::not_allocated: the device is not open.
    [[nodiscard]] gaudi::result<gaudi::copy_engine> engine_of(unsigned device,
                                                              const gaudi::copy_options& options);
    void forget(unsigned device);
    void let_go_of_lost() override;

private:
    uct_gaudi_module& module_;
    std::mutex mutex_;
    std::map<unsigned, gaudi::copy_engine> engines_; // by device
};

} // namespace gaudi_ucx
