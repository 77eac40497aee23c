// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/copy_engine.hpp>

#include <string>

namespace gaudi {

// What a staged region needs beside its address: the engine that copies, and why there is no other way.
class staging_source {
public:
    staging_source(copy_engine engine, std::string reason)
        : engine_(std::move(engine)), reason_(std::move(reason)) {}

    [[nodiscard]] const copy_engine& engine() const { return engine_; }
    [[nodiscard]] const std::string& reason() const { return reason_; }

private:
    copy_engine engine_;
    std::string reason_;
};

} // namespace gaudi
