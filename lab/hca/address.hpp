// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/hca/objects.hpp"

namespace lab::hca {

// route_of: the destination that an address handle names. check_address: 0, or the errno that a driver
// returns for an address that the nic cannot have.
[[nodiscard]] route route_of(const ibv_ah_attr& address);
[[nodiscard]] int check_address(const context& where, const ibv_ah_attr& address);

} // namespace lab::hca
