// The 6-bit floats of OCP's MX formats, as codes of 8-bit floats that have the same values: e2m3 is
// a part of e4m3, e3m2 a part of e5m2. So they need no kernels of their own.
#pragma once

#include <array>
#include <cstdint>

namespace nibble::quant {

// Index: the six bits, sign first.
const std::array<uint8_t, 64>& e4m3_of_e2m3_codes();
const std::array<uint8_t, 64>& e5m2_of_e3m2_codes();

}  // namespace nibble::quant
