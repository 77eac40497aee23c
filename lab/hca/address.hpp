// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/hca/objects.hpp"

namespace lab::hca {

// Where an address leads; and 0, or what a driver says to an address that the card cannot have.
[[nodiscard]] route route_of(const ibv_ah_attr& address);
[[nodiscard]] int check_address(const context& where, const ibv_ah_attr& address);

} // namespace lab::hca
