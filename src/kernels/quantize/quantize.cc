#include "kernels/quantize/quantize.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/number.h"

namespace nibble::kernels {
namespace {

using tensor::ActivationFormat;

struct Grid {
  float scale;
  float zero;  // s8 only
};

// The smallest dynamic scales: what an all-zero token gets. They keep x / scale finite. Those of
// e4m3 are the runtimes': per token 1 / (448 * 512), per group 1e-10 / 448.
constexpr float kSmallestScale = 1e-12f;
constexpr float kSmallestTokenScale = 1.0f / (448.0f * 512.0f);
constexpr float kSmallestGroupScale = 1e-10f / 448.0f;

// The loops below are written so that the compiler turns them into vector instructions: no calls,
// and selections instead of branches.

// What is an outlier, for a comparison that needs no branch.
float outlier_of(const ActivationFormat& f) {
  return f.outlier > 0 ? f.outlier : std::numeric_limits<float>::infinity();
}

// Magnitudes compare like the integers of their bits; what is not finite is the largest.
float largest_magnitude(const float* x, int64_t k) {
  int32_t most = 0;
  for (int64_t i = 0; i < k; ++i) {
    const auto bits = static_cast<int32_t>(base::bits_from_f32(x[i]) & 0x7fffffffu);
    most = bits > most ? bits : most;
  }
  return base::f32_from_bits(static_cast<uint32_t>(most));
}

float largest_below(float outlier, const float* x, int64_t k) {
  float most = 0;
  for (int64_t i = 0; i < k; ++i) {
    const float magnitude = std::fabs(x[i]);
    most = magnitude >= outlier || magnitude < most ? most : magnitude;
  }
  return most;
}

// Half of the number of steps between the least and the largest integer.
float half_steps(const ActivationFormat& f) { return static_cast<float>((1 << f.bits) - 1) / 2.0f; }
float lowest(const ActivationFormat& f) { return static_cast<float>(-(1 << (f.bits - 1))); }

Grid asymmetric_grid(const ActivationFormat& f, const float* x, int64_t k) {
  float low = 0;
  float high = 0;
  for (int64_t i = 0; i < k; ++i) {
    low = std::min(low, x[i]);
    high = std::max(high, x[i]);
  }
  const float scale = std::max((high - low) / (2 * half_steps(f)), kSmallestScale);
  const float least = lowest(f);
  return {scale, std::nearbyint(std::clamp(least - low / scale, least, -1 - least))};
}

// The nearest e4m3, ties to even: three bits of mantissa, but no step below 2^-9. |v| <= 448.
float e4m3_of(float v) {
  const uint32_t bits = base::bits_from_f32(v);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t normal = (magnitude + 0x7ffffu + ((magnitude >> 20) & 1)) & 0xfff00000u;
  const float small = (base::f32_from_bits(magnitude) + 0x1.8p14f) - 0x1.8p14f;
  const uint32_t out = magnitude < 0x3c800000u ? base::bits_from_f32(small) : normal;
  return base::f32_from_bits(out | (bits & 0x80000000u));
}

// The nearest e2m1, ties to even: 0 .5 1 1.5 2 3 4 6. |v| <= 6.
float e2m1_of(float v) {
  const uint32_t bits = base::bits_from_f32(v);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t normal = (magnitude + 0x1fffffu + ((magnitude >> 22) & 1)) & 0xffc00000u;
  const float small = (base::f32_from_bits(magnitude) + 0x1.8p22f) - 0x1.8p22f;
  const uint32_t out = magnitude < 0x3f800000u ? base::bits_from_f32(small) : normal;
  return base::f32_from_bits(out | (bits & 0x80000000u));
}

// What the largest magnitude of a token or group becomes.
float largest_of(const ActivationFormat& f) {
  if (f.type == ActivationFormat::Type::kE2M1) return 6.0f;
  if (f.type == ActivationFormat::Type::kE4M3) return 448.0f;
  return f.half_range ? half_steps(f) : -1 - lowest(f);
}

// The power of two for a group whose largest magnitude is `most`. OCP Microscaling Formats 1.0, 6.3
// for the floor; the others are what the tools do instead. Never below 2^-127.
float power_of_two(const ActivationFormat& f, float most) {
  using Rule = ActivationFormat::ScaleRule;
  const float largest = largest_of(f);
  if (!(most < std::numeric_limits<float>::infinity())) return most - most;  // nan
  int exponent = -127;
  if (f.scale_rule == Rule::kE8M0Ceil) {
    const float scale = most / largest;
    if (scale > 0 && std::frexp(scale, &exponent) == 0.5f) --exponent;
  } else if (most > 0) {
    const float up = f.scale_rule == Rule::kE8M0Even ? 1.75f : 2.0f;
    const float mantissa = 2 * std::frexp(most, &exponent);  // in [1, 2)
    exponent -= (mantissa < up ? 1 : 0) + std::ilogb(largest);
  }
  return std::ldexp(1.0f, std::max(exponent, -127));
}

// NVFP4: the group's scale is an e4m3 number times the checkpoint's `input_scale`. One that rounds
// to 0 becomes 1/8, as compressed-tensors has it: all inputs of its group then round to 0.
float two_level_scale(float most, float input_scale) {
  const float scale = e4m3_of(std::min(most / 6.0f / input_scale, 448.0f));
  return (scale == 0 ? 0.125f : scale) * input_scale;
}

Grid dynamic_grid(const ActivationFormat& f, float input_scale, const float* x, int64_t k) {
  using Rule = ActivationFormat::ScaleRule;
  if (f.type == ActivationFormat::Type::kS8 && f.asymmetric) return asymmetric_grid(f, x, k);
  float most = f.outlier > 0 ? largest_below(f.outlier, x, k) : largest_magnitude(x, k);
  if (f.upper_bound > 0) most = std::min(most, f.upper_bound);
  if (f.scale_rule == Rule::kE4M3) return {two_level_scale(most, input_scale), 0};
  if (f.scale_rule != Rule::kFloat) return {power_of_two(f, most), 0};
  const float scale = most / largest_of(f);
  if (f.type == ActivationFormat::Type::kS8) return {std::max(scale, kSmallestScale), 0};
  const bool grouped = f.granularity == ActivationFormat::Granularity::kGroup;
  return {std::max(scale, grouped ? kSmallestGroupScale : kSmallestTokenScale), 0};
}

// To the nearest integer, ties to even, for |v| < 2^22.
float nearest(float v) { return (v + 0x1.8p23f) - 0x1.8p23f; }

// q - zero.
float s8_of(float v, Grid grid, float least) {
  const float wide = std::clamp(v / grid.scale, -1024.0f, 1024.0f);
  return std::clamp(nearest(wide) + grid.zero, least, -1 - least) - grid.zero;
}

// Floats are multiplied by the reciprocal of the scale, as the runtimes do it (and not divided):
// near the middle of two codes the two differ.
void round_to(const ActivationFormat& f, Grid grid, const float* x, int64_t k, float* out) {
  if (f.type == ActivationFormat::Type::kS8) {
    const float outlier = outlier_of(f);
    const float least = lowest(f);
    for (int64_t i = 0; i < k; ++i) {
      out[i] = std::fabs(x[i]) >= outlier ? x[i] : s8_of(x[i], grid, least) * grid.scale;
    }
    return;
  }
  const float inverse = 1.0f / grid.scale;
  if (f.type == ActivationFormat::Type::kE2M1) {
    for (int64_t i = 0; i < k; ++i) {
      const float rounded = e2m1_of(std::clamp(x[i] * inverse, -6.0f, 6.0f)) * grid.scale;
      out[i] = x[i] == x[i] ? rounded : x[i];
    }
    return;
  }
  for (int64_t i = 0; i < k; ++i) {
    const float v = std::clamp(x[i] * inverse, -448.0f, 448.0f);
    const float rounded = e4m3_of(v) * grid.scale;
    out[i] = x[i] == x[i] ? rounded : x[i];  // nan stays
  }
}

}  // namespace

void quantize_activation(const ActivationFormat& f, float input_scale, float input_zero,
                         const float* x, int64_t k, float* out) {
  if (f.type == ActivationFormat::Type::kFloat) {
    std::copy(x, x + k, out);
    return;
  }
  const bool grouped = f.granularity == ActivationFormat::Granularity::kGroup && f.group > 0;
  const int64_t group = grouped ? f.group : k;
  for (int64_t begin = 0; begin < k; begin += group) {
    const int64_t count = std::min(group, k - begin);
    const Grid grid = f.is_static ? Grid{input_scale, input_zero}
                                  : dynamic_grid(f, input_scale, x + begin, count);
    round_to(f, grid, x + begin, count, out + begin);
  }
}

void quantize_activation_s8(const ActivationFormat& f, float input_scale, float input_zero,
                            const float* x, int64_t k, int16_t* q, float* scale) {
  const bool grouped = f.granularity == ActivationFormat::Granularity::kGroup && f.group > 0;
  const int64_t group = grouped ? f.group : k;
  for (int64_t begin = 0; begin < k; begin += group) {
    const int64_t count = std::min(group, k - begin);
    Grid grid = f.is_static ? Grid{input_scale, input_zero}
                            : dynamic_grid(f, input_scale, x + begin, count);
    float nothing = grid.scale - grid.scale;  // nan when it or an input is
    for (int64_t i = begin; i < begin + count; ++i) {
      const float v = s8_of(x[i], grid, lowest(f));
      nothing += v - v;
      q[i] = static_cast<int16_t>(static_cast<int32_t>(v == v ? v : 0.0f));
    }
    *scale++ = grid.scale + nothing;
  }
}

}  // namespace nibble::kernels
