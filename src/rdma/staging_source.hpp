// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/copy_engine.hpp>

#include <memory>
#include <string>

namespace gaudi {

class heap_core;

// What a staged region needs in addition to its address: the copy engine, and the reason for staging.
class staging_source {
public:
    staging_source(std::shared_ptr<heap_core> heap, copy_engine engine, std::string reason)
        : heap_(std::move(heap)), engine_(std::move(engine)), reason_(std::move(reason)) {}

    [[nodiscard]] const std::shared_ptr<heap_core>& heap() const { return heap_; }

    [[nodiscard]] const copy_engine& engine() const { return engine_; }
    [[nodiscard]] const std::string& reason() const { return reason_; }

private:
    std::shared_ptr<heap_core> heap_; // that allocated the memory
    copy_engine engine_;
    std::string reason_;
};

} // namespace gaudi
