#include "base/number.h"

#include <cmath>

namespace nibble::base {
namespace {

// One binary format narrower than f32. `kInf`: the largest exponent means inf and nan as in IEEE;
// `kFnuz`: code 0x80 is the only nan and there is no negative zero.
struct Binary {
  int exponent_bits;
  int mantissa_bits;
  int bias;
  bool has_inf;
  bool fnuz;
};

constexpr Binary kF16{5, 10, 15, true, false};
constexpr Binary kE4M3{4, 3, 7, false, false};
constexpr Binary kE4M3Fnuz{4, 3, 8, false, true};
constexpr Binary kE5M2{5, 2, 15, true, false};
constexpr Binary kE5M2Fnuz{5, 2, 16, false, true};
constexpr Binary kE2M1{2, 1, 1, false, false};

float decode(uint32_t code, const Binary& f) {
  const uint32_t sign = code >> (f.exponent_bits + f.mantissa_bits) & 1;
  const uint32_t exponent = code >> f.mantissa_bits & ((1u << f.exponent_bits) - 1);
  const uint32_t mantissa = code & ((1u << f.mantissa_bits) - 1);
  const uint32_t top = (1u << f.exponent_bits) - 1;
  if (f.has_inf && exponent == top) {
    const float special = mantissa == 0 ? HUGE_VALF : NAN;
    return sign != 0 ? -special : special;
  }
  float magnitude;
  if (exponent == 0) {
    magnitude = std::ldexp(static_cast<float>(mantissa), 1 - f.bias - f.mantissa_bits);
  } else {
    magnitude = std::ldexp(static_cast<float>(mantissa | 1u << f.mantissa_bits),
                           static_cast<int>(exponent) - f.bias - f.mantissa_bits);
  }
  return sign != 0 ? -magnitude : magnitude;
}

// Round to nearest, ties to even, on the magnitude; then saturate or overflow.
uint32_t encode(float v, const Binary& f, uint32_t max_code, uint32_t nan_code) {
  const uint32_t sign = std::signbit(v) ? 1u << (f.exponent_bits + f.mantissa_bits) : 0;
  if (std::isnan(v)) return sign | nan_code;
  const float magnitude = std::fabs(v);
  if (magnitude == 0) return sign;
  int exponent;
  std::frexp(magnitude, &exponent);  // magnitude = m * 2^exponent, m in [0.5, 1)
  const int lowest = 1 - f.bias;     // exponent of the smallest normal
  const int scale = (exponent - 1 < lowest ? lowest : exponent - 1) - f.mantissa_bits;
  // In units of the last place; nearbyint rounds to even in the default mode.
  const double units = std::nearbyint(std::ldexp(static_cast<double>(magnitude), -scale));
  uint64_t code = std::isinf(magnitude) ? uint64_t{max_code} + 1 : static_cast<uint64_t>(units);
  if (!std::isinf(magnitude)) {
    // A normal number's units include the hidden bit: add the exponent field on top of it.
    const int field = scale + f.mantissa_bits - lowest;
    code += static_cast<uint64_t>(field < 0 ? 0 : field) << f.mantissa_bits;
  }
  if (code > max_code) code = f.has_inf ? max_code + 1 : max_code;
  return sign | static_cast<uint32_t>(code);
}

template <const Binary& kFormat>
struct Table {
  float value[256];
  Table() {
    for (uint32_t code = 0; code < 256; ++code) {
      value[code] = decode(code, kFormat);
      if (kFormat.fnuz && code == 0x80) value[code] = NAN;
      if (!kFormat.has_inf && !kFormat.fnuz && (code & 0x7f) == 0x7f) value[code] = NAN;
    }
  }
};

template <const Binary& kFormat>
float look_up(uint8_t code) {
  static const Table<kFormat> table;
  return table.value[code];
}

}  // namespace

float f32_from_f16(uint16_t code) {
  const uint32_t sign = uint32_t{code} >> 15 << 31;
  const uint32_t exponent = code >> 10 & 31;
  const uint32_t mantissa = code & 1023;
  if (exponent == 31) return f32_from_bits(sign | 0x7f800000u | mantissa << 13);
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  return f32_from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
}

uint16_t f16_from_f32(float v) { return static_cast<uint16_t>(encode(v, kF16, 0x7bff, 0x7e00)); }

uint16_t bf16_from_f32(float v) {
  const uint32_t bits = bits_from_f32(v);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

float f32_from_e4m3(uint8_t code) { return look_up<kE4M3>(code); }
uint8_t e4m3_from_f32(float v) { return static_cast<uint8_t>(encode(v, kE4M3, 0x7e, 0x7f)); }
float f32_from_e4m3fnuz(uint8_t code) { return look_up<kE4M3Fnuz>(code); }
float f32_from_e5m2(uint8_t code) { return look_up<kE5M2>(code); }
uint8_t e5m2_from_f32(float v) { return static_cast<uint8_t>(encode(v, kE5M2, 0x7b, 0x7f)); }
float f32_from_e5m2fnuz(uint8_t code) { return look_up<kE5M2Fnuz>(code); }

float f32_from_e8m0(uint8_t code) {
  if (code == 0xff) return NAN;
  return code == 0 ? f32_from_bits(0x00400000u) : f32_from_bits(uint32_t{code} << 23);
}

float f32_from_e2m1(uint8_t code) { return decode(code & 15, kE2M1); }
uint8_t e2m1_from_f32(float v) { return static_cast<uint8_t>(encode(v, kE2M1, 7, 7)); }

}  // namespace nibble::base
