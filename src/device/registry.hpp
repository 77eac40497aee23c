// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/device.hpp>

#include "src/hl/hlthunk_api.hpp"
#include "src/hl/visibility.hpp"
#include "src/memory/editable_address_map.hpp"

#include <future>
#include <map>
#include <mutex>

namespace gaudi {

// The devices of the process: the loaded hl-thunk, the open devices, the known memory. The driver allows
// one context per device and process, so that all callers must get the same one.
class registry {
public:
    static registry& self();

    result<std::shared_ptr<const hlthunk_api>> api();
    result<std::vector<device_info>> visible_devices();
    result<std::shared_ptr<device>> open(const device_choice& choice);
    std::shared_ptr<device> find_open(unsigned index);
    std::vector<std::shared_ptr<device>> all_open();
    std::vector<std::shared_ptr<device>> attach_all();
    [[nodiscard]] editable_address_map& map() { return map_; }

private:
    // All devices, and which of them the environment allows.
    struct found_devices {
        std::string library;
        visibility seen;
        std::vector<device_info> all;
    };

    // A device in use. Its users own it together; the registry keeps nothing open.
    struct in_use {
        unsigned index = 0;
        std::weak_ptr<device> whole;
        std::weak_ptr<hl_device> context;
        std::weak_ptr<heap_core> heap;
        std::shared_future<void> closed; // of the context
    };
    // Whether a thread of this process is closing the device, which it dropped the last reference to.
    static bool closing(const in_use& entry);

    registry();
    result<found_devices> discover_devices();
    // `may_join`: if another process has the device open and offers it, join that process's context.
    result<std::shared_ptr<device>> open_one(const device_info& info, bool may_join);
    // `joined`: the joined context of another process; nullptr: open the device for this process.
    result<std::shared_ptr<device>> open_alone(const device_info& info,
                                               const std::shared_ptr<hl_device>& joined);
    std::shared_ptr<device> assemble(in_use& entry, const std::shared_ptr<hl_device>& context);
    result<std::shared_ptr<device>> open_first_free(const std::vector<device_info>& candidates);
    result<std::shared_ptr<hl_device>> open_or_attach(const std::shared_ptr<const hlthunk_api>& table,
                                                      const device_info& info,
                                                      const std::shared_ptr<hl_device>& joined);

    std::mutex mutex_;
    std::shared_ptr<const hlthunk_api> api_;
    std::map<std::string, in_use> open_;
    editable_address_map map_;
};

} // namespace gaudi
