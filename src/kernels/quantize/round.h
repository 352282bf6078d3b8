// Rounding of single numbers to the grids of activation formats, for loops on the host
// (quantize.cc) and kernels on a card (matmul/cuda_prepare.cu): one definition for both.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "tensor/weight_format.h"

#ifdef __CUDACC__
#define NIBBLE_BOTH __host__ __device__ inline
#else
#define NIBBLE_BOTH inline
#endif

namespace nibble::kernels {

struct Grid {
  float scale;
  float zero;  // s8 only
};

// The smallest dynamic scales: what an all-zero token gets. They keep x / scale finite. Those of
// e4m3 are the runtimes': per token 1 / (448 * 512), per group 1e-10 / 448.
constexpr float kSmallestScale = 1e-12f;
constexpr float kSmallestTokenScale = 1.0f / (448.0f * 512.0f);
constexpr float kSmallestGroupScale = 1e-10f / 448.0f;

// std::max, min and clamp, of which the first argument wins where the second is nan.
NIBBLE_BOTH float larger(float a, float b) { return a < b ? b : a; }
NIBBLE_BOTH float smaller(float a, float b) { return b < a ? b : a; }
NIBBLE_BOTH float clamped(float v, float low, float high) {
  return v < low ? low : high < v ? high : v;
}

NIBBLE_BOTH uint32_t bits_of(float v) {
  uint32_t bits;
  memcpy(&bits, &v, 4);
  return bits;
}
NIBBLE_BOTH float float_of(uint32_t bits) {
  float v;
  memcpy(&v, &bits, 4);
  return v;
}

// Half of the number of steps between the least and the largest integer.
NIBBLE_BOTH float half_steps(const tensor::ActivationFormat& f) {
  return static_cast<float>((1 << f.bits) - 1) / 2.0f;
}
NIBBLE_BOTH float lowest(const tensor::ActivationFormat& f) {
  return static_cast<float>(-(1 << (f.bits - 1)));
}

// The nearest number of a small float type, ties to even: `dropped` of float32's 23 bits of
// mantissa are rounded away, and below the float `normal` (its bits) steps do not get smaller; 1.5
// times the power of two whose numbers have that step is `anchor`. |v| is at most the largest of
// the type.
NIBBLE_BOTH float small_float_of(float v, int dropped, uint32_t normal, float anchor) {
  const uint32_t bits = bits_of(v);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t half = (1u << (dropped - 1)) - 1, mask = ~((1u << dropped) - 1);
  const uint32_t rounded = (magnitude + half + ((magnitude >> dropped) & 1)) & mask;
  const float small = (float_of(magnitude) + anchor) - anchor;
  const uint32_t out = magnitude < normal ? bits_of(small) : rounded;
  return float_of(out | (bits & 0x80000000u));
}

// No step below 2^-9. |v| <= 448.
NIBBLE_BOTH float e4m3_of(float v) { return small_float_of(v, 20, 0x3c800000u, 0x1.8p14f); }
// 0 .5 1 1.5 2 3 4 6.
NIBBLE_BOTH float e2m1_of(float v) { return small_float_of(v, 22, 0x3f800000u, 0x1.8p22f); }
// No step below 1/8. |v| <= 7.5.
NIBBLE_BOTH float e2m3_of(float v) { return small_float_of(v, 20, 0x3f800000u, 0x1.8p20f); }
// No step below 1/16. |v| <= 28.
NIBBLE_BOTH float e3m2_of(float v) { return small_float_of(v, 21, 0x3e800000u, 0x1.8p19f); }

// To the nearest integer, ties to even, for |v| < 2^22.
NIBBLE_BOTH float nearest(float v) { return (v + 0x1.8p23f) - 0x1.8p23f; }

// q - zero.
NIBBLE_BOTH float s8_of(const tensor::ActivationFormat& f, float v, Grid grid, float least) {
  const float steps = f.reciprocal ? v * (1.0f / grid.scale) : v / grid.scale;
  const float wide = clamped(steps, -1024.0f, 1024.0f);
  return clamped(nearest(wide) + grid.zero, least, -1 - least) - grid.zero;
}

// One dynamic scale for all tokens of a call.
NIBBLE_BOTH bool is_scaled_as_one(const tensor::ActivationFormat& f) {
  return f.type != tensor::ActivationFormat::Type::kFloat && !f.is_static &&
         f.granularity == tensor::ActivationFormat::Granularity::kTensor;
}
// Whether something of a format is found over all tokens of a call.
NIBBLE_BOTH bool spans_call(const tensor::ActivationFormat& f) {
  return is_scaled_as_one(f) || f.outlier > 0;
}

// What the largest magnitude of a token or group becomes.
NIBBLE_BOTH float largest_of(const tensor::ActivationFormat& f) {
  if (f.type == tensor::ActivationFormat::Type::kE2M1) return 6.0f;
  if (f.type == tensor::ActivationFormat::Type::kE4M3) return 448.0f;
  if (f.type == tensor::ActivationFormat::Type::kE2M3) return 7.5f;
  if (f.type == tensor::ActivationFormat::Type::kE3M2) return 28.0f;
  return f.half_range ? half_steps(f) : -1 - lowest(f);
}

// From where on a mantissa (in [1, 2)) counts as the next power of two.
NIBBLE_BOTH float round_up_from(const tensor::ActivationFormat& f) {
  using Type = tensor::ActivationFormat::Type;
  using Rule = tensor::ActivationFormat::ScaleRule;
  if (f.scale_rule == Rule::kE8M0Above) return 1.0f + 0x1p-23f;
  if (f.scale_rule == Rule::kE8M0Floor) return 2.0f;
  if (f.scale_rule == Rule::kE8M0Even || f.type == Type::kE2M1) return 1.75f;
  return f.type == Type::kE3M2 ? 1.875f : 1.9375f;
}

// The power of two for a group whose largest magnitude is `most`. OCP Microscaling Formats 1.0, 6.3
// for the floor; the others are what the tools do instead. Never below 2^-127.
NIBBLE_BOTH float power_of_two(const tensor::ActivationFormat& f, float most) {
  using Rule = tensor::ActivationFormat::ScaleRule;
  const float largest = largest_of(f);
  if (!(most <= 3.402823466e38f)) return most - most;  // nan
  int exponent = -127;
  if (f.scale_rule == Rule::kE8M0Ceil) {
    const float scale = most / largest;
    if (scale > 0 && frexpf(scale, &exponent) == 0.5f) --exponent;
  } else if (most > 0) {
    const float mantissa = 2 * frexpf(most, &exponent);  // in [1, 2)
    exponent -= (mantissa < round_up_from(f) ? 1 : 0) + ilogbf(largest);
  }
  return ldexpf(1.0f, exponent < -127 ? -127 : exponent);
}

// NVFP4: the group's scale is an e4m3 number times the checkpoint's `input_scale`. Where one that
// rounds to 0 becomes 1/8, all inputs of its group then round to 0.
NIBBLE_BOTH float two_level_scale(const tensor::ActivationFormat& f, float most,
                                  float input_scale) {
  const float scale = smaller(most / 6.0f / input_scale, 448.0f);
  if (f.normal_scales) return e4m3_of(larger(scale, 0x1p-6f)) * input_scale;
  const float held = e4m3_of(scale);
  return (held == 0 ? 0.125f : held) * input_scale;
}

// From the least and the largest number, 0 among them.
NIBBLE_BOTH Grid asymmetric_grid(const tensor::ActivationFormat& f, float low, float high) {
  const float scale = larger((high - low) / (2 * half_steps(f)), kSmallestScale);
  const float least = lowest(f);
  return {scale, nearbyintf(clamped(least - low / scale, least, -1 - least))};
}

// From the largest magnitude of a token or group that is not an outlier.
NIBBLE_BOTH Grid symmetric_grid(const tensor::ActivationFormat& f, float input_scale, float most) {
  using Rule = tensor::ActivationFormat::ScaleRule;
  if (f.upper_bound > 0) most = smaller(most, f.upper_bound);
  if (f.scale_rule == Rule::kE4M3) return {two_level_scale(f, most, input_scale), 0};
  if (f.scale_rule != Rule::kFloat) return {power_of_two(f, most), 0};
  const float scale = most / largest_of(f);
  if (f.type == tensor::ActivationFormat::Type::kS8) return {larger(scale, kSmallestScale), 0};
  const bool grouped = f.granularity == tensor::ActivationFormat::Granularity::kGroup;
  return {larger(scale, grouped ? kSmallestGroupScale : kSmallestTokenScale), 0};
}

// Floats are multiplied by the reciprocal of the scale, as the runtimes do it (and not divided):
// near the middle of two codes the two differ. nan stays.
NIBBLE_BOTH float e2m1_rounded(float x, float inverse, float scale) {
  const float rounded = e2m1_of(clamped(x * inverse, -6.0f, 6.0f)) * scale;
  return x == x ? rounded : x;
}
NIBBLE_BOTH float e4m3_rounded(float x, float inverse, float scale) {
  const float rounded = e4m3_of(clamped(x * inverse, -448.0f, 448.0f)) * scale;
  return x == x ? rounded : x;
}
NIBBLE_BOTH float e2m3_rounded(float x, float inverse, float scale) {
  const float rounded = e2m3_of(clamped(x * inverse, -7.5f, 7.5f)) * scale;
  return x == x ? rounded : x;
}
NIBBLE_BOTH float e3m2_rounded(float x, float inverse, float scale) {
  const float rounded = e3m2_of(clamped(x * inverse, -28.0f, 28.0f)) * scale;
  return x == x ? rounded : x;
}

}  // namespace nibble::kernels
