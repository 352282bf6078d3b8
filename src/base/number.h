// The small number types of quantized checkpoints and their exact values as float32.
//
//   type   bits s/e/m   bias  special                                source
//   f16    16   1/5/10  15    inf, nan                               IEEE 754 binary16
//   bf16   16   1/8/7   127   inf, nan                               upper half of an f32
//   e4m3   8    1/4/3   7     no inf; 0x7f and 0xff are nan          OCP FP8 (the "fn" form)
//   e4m3z  8    1/4/3   8     no inf, no -0; 0x80 is nan             "fnuz" (MI300)
//   e5m2   8    1/5/2   15    inf, nan                               OCP FP8
//   e5m2z  8    1/5/2   16    no inf, no -0; 0x80 is nan             "fnuz"
//   e8m0   8    0/8/0   127   0xff is nan; a power of two            OCP MX
//   e2m1   4    1/2/1   1     all codes finite: 0 .5 1 1.5 2 3 4 6   OCP MX
//
// Decoding is exact. Encoding rounds to nearest even; what overflows becomes inf where the type has
// it, else the largest finite value (saturation), and nan stays nan.
#pragma once

#include <bit>
#include <cstdint>

namespace nibble::base {

inline float f32_from_bits(uint32_t bits) { return std::bit_cast<float>(bits); }
inline uint32_t bits_from_f32(float v) { return std::bit_cast<uint32_t>(v); }

float f32_from_f16(uint16_t code);
uint16_t f16_from_f32(float v);

inline float f32_from_bf16(uint16_t code) { return f32_from_bits(uint32_t{code} << 16); }
uint16_t bf16_from_f32(float v);

float f32_from_e4m3(uint8_t code);
uint8_t e4m3_from_f32(float v);  // saturates at 448
float f32_from_e4m3fnuz(uint8_t code);
float f32_from_e5m2(uint8_t code);
uint8_t e5m2_from_f32(float v);  // overflows to inf
float f32_from_e5m2fnuz(uint8_t code);

float f32_from_e8m0(uint8_t code);  // 2^(code-127); code 0 is 2^-127, a subnormal f32

float f32_from_e2m1(uint8_t code);  // uses the low 4 bits
uint8_t e2m1_from_f32(float v);     // saturates at 6

// The value of a 4-bit two's complement code in the low bits: 0..7, -8..-1.
inline int s32_from_s4(uint8_t code) {
  return static_cast<int8_t>(static_cast<uint8_t>(code << 4)) >> 4;
}

}  // namespace nibble::base
