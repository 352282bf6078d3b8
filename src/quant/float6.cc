#include "quant/float6.h"

#include <cmath>

#include "base/number.h"

namespace nibble::quant {
namespace {

// The magnitude of a 5-bit code (OCP Microscaling Formats 1.0, 5.3.2): no infinities, no nan.
float magnitude_of(int code, int mantissa_bits, int bias) {
  const int exponent = code >> mantissa_bits, fraction = code & ((1 << mantissa_bits) - 1);
  const int whole = exponent == 0 ? fraction : fraction + (1 << mantissa_bits);
  const int power = (exponent == 0 ? 1 : exponent) - bias - mantissa_bits;
  return std::ldexp(static_cast<float>(whole), power);
}

template <class Encode>
std::array<uint8_t, 64> table_of(int mantissa_bits, int bias, const Encode& encode) {
  std::array<uint8_t, 64> out{};
  for (int code = 0; code < 64; ++code) {
    const uint8_t magnitude = encode(magnitude_of(code & 31, mantissa_bits, bias));
    out[static_cast<size_t>(code)] = magnitude | static_cast<uint8_t>((code & 32) << 2);
  }
  return out;
}

}  // namespace

const std::array<uint8_t, 64>& e4m3_of_e2m3_codes() {
  static const std::array<uint8_t, 64> table = table_of(3, 1, base::e4m3_from_f32);
  return table;
}

const std::array<uint8_t, 64>& e5m2_of_e3m2_codes() {
  static const std::array<uint8_t, 64> table = table_of(2, 3, base::e5m2_from_f32);
  return table;
}

}  // namespace nibble::quant
