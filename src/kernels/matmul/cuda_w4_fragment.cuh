// Words of codes as the A fragment of a product with bf16 inputs: four registers of two numbers
// each, of rows g and g + 8 (cuda_w4.cuh draws them). Compiled for sm_90a only.
#pragma once

#include "kernels/matmul/cuda_w4.cuh"

namespace nibble::kernels::cuda::w4 {

inline constexpr int kStrip = 64;  // rows
inline constexpr int kBlock = 64;  // inputs

// What weights are as bf16: code - zero; that times the scale, rounded once; or the same by a
// single multiply-add, code x scale - zero x scale, where zeros are 8 (128 at 8 bits) and so their
// product is exact.
enum class Weights { kCodes, kScaled, kFolded };

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// A code of four or eight bits in the low bits of a bf16 is code 2^-133, a number below the normal
// ones, also where its top bit is the exponent's lowest; four bits higher a four-bit code is code
// 2^-129. So a mask and one multiply-add by 2^127, exact, make (code - zero) 2^-6, and (code -
// zero) 2^-2 of rows g + 8 at four bits; the scales undo the powers. Signed bytes become code +
// 128.
template <int kBits>
struct Powers {
  static constexpr float kUndo0 = 64;
  static constexpr float kUndo1 = kBits == 4 ? 4 : 64;
  static constexpr uint32_t kUndo = kBits == 4 ? 0x40804280u : 0x42804280u;  // as two bf16
};
inline constexpr uint32_t kTwoTo127 = 0x7f007f00u;

// Scales that are folded are first multiplied by 2^109, or by 2^105 for the four bits of rows g +
// 8: then what a mask leaves of a code (above) becomes code x scale x 2^-24, which the sums undo.
// Any f16 scale can be, and a bf16 one that is 0, or at least 2^-60 and below 2^19: weights are
// exact down to 2^-102, but their products with x are not to be below what f32 holds.
template <int kBits>
struct Folds {
  static constexpr uint32_t kFold = kBits == 4 ? 0x74007600u : 0x76007600u;
  // -zero as a mask leaves codes: -8 2^-133 and -8 2^-129; -128 2^-133.
  static constexpr uint32_t kZero0 = kBits == 4 ? 0x80088008u : 0x80808080u;
  static constexpr uint32_t kZero1 = 0x80808080u;
};
inline constexpr float kUnfold = 0x1p24f;

// For rows g and g + 8, as pairs of bf16: what is added to a code times 2^127, or times its folded
// scale; and scales.
struct Grid {
  uint32_t zero[2];
  uint32_t scale[2];
};

template <int kBits>
__device__ void default_zeros(uint32_t (&zero)[2]) {
  zero[0] = kBits == 4 ? 0xbe00be00u : 0xc000c000u;  // -8 / 64, -128 / 64
  zero[1] = 0xc000c000u;                             // -8 / 4, -128 / 64
}

template <int kBits>
__device__ void zeros_of(uint32_t pair, uint32_t (&zero)[2]) {
  if constexpr (kBits == 4) {
    // Not by a shift: zeros may be up to 127, and shifted ones are no longer linear above 16.
    constexpr uint32_t kSixteen = 0x41804180u;
    zero[0] = mul_bf16x2(__byte_perm(pair, 0, 0x4040), kTwoTo127 | 0x80008000u);
    zero[1] = mul_bf16x2(__byte_perm(pair, 0, 0x4141), kTwoTo127 | 0x80008000u);
    zero[1] = mul_bf16x2(zero[1], kSixteen);
  } else {
    pair ^= 0x8080u;
    zero[0] = mul_bf16x2(__byte_perm(pair, 0, 0x4040), kTwoTo127 | 0x80008000u);
    zero[1] = mul_bf16x2(__byte_perm(pair, 0, 0x4141), kTwoTo127 | 0x80008000u);
  }
}

// scale[h] of a pair as bf16, times a power of two.
__device__ inline void bf16_scales_of(uint32_t pair, bool are_bf16, uint32_t powers,
                                      uint32_t (&scale)[2]) {
  if (!are_bf16) {
    const float2 s = w4_scales(pair, false);
    const __nv_bfloat162 rounded = __floats2bfloat162_rn(s.x, s.y);
    pair = *reinterpret_cast<const uint32_t*>(&rounded);
  }
  pair = mul_bf16x2(pair, powers);
  scale[0] = __byte_perm(pair, 0, 0x1010);
  scale[1] = __byte_perm(pair, 0, 0x3232);
}

template <int kBits>
__device__ void fold(uint32_t pair, bool are_bf16, Grid& grid) {
  bf16_scales_of(pair, are_bf16, Folds<kBits>::kFold, grid.scale);
  grid.zero[0] = mul_bf16x2(grid.scale[0], Folds<kBits>::kZero0);
  grid.zero[1] = mul_bf16x2(grid.scale[1], Folds<kBits>::kZero1);
}

template <int kBits>
__device__ float2 f32_scales_of(uint32_t pair, bool are_bf16) {
  float2 s = w4_scales(pair, are_bf16);
  s.x *= Powers<kBits>::kUndo0;
  s.y *= Powers<kBits>::kUndo1;
  return s;
}

// Step j of 16 inputs of a block: the A fragment.
template <int kBits, Weights kAs>
__device__ void fragment(const uint32_t (&codes)[kBits], int j, const Grid& grid,
                         uint32_t (&a)[4]) {
  const auto by = [&](int i) { return kAs == Weights::kFolded ? grid.scale[i % 2] : kTwoTo127; };
  if constexpr (kBits == 4) {
    const uint32_t low = codes[j];
    const uint32_t high = codes[j] >> 8;
    a[0] = fma_bf16x2(low & 0x000f000fu, by(0), grid.zero[0]);
    a[1] = fma_bf16x2(low & 0x00f000f0u, by(1), grid.zero[1]);
    a[2] = fma_bf16x2(high & 0x000f000fu, by(2), grid.zero[0]);
    a[3] = fma_bf16x2(high & 0x00f000f0u, by(3), grid.zero[1]);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t bytes = codes[2 * j + i / 2] >> (8 * (i % 2));
      a[i] = fma_bf16x2((bytes ^ 0x00800080u) & 0x00ff00ffu, by(i), grid.zero[i % 2]);
    }
  }
  if constexpr (kAs == Weights::kScaled) {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = mul_bf16x2(a[i], grid.scale[i % 2]);
  }
}

#endif

}  // namespace nibble::kernels::cuda::w4
