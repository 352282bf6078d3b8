#include "kernels/quantize/quantize.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/number.h"
#include "kernels/quantize/round.h"

namespace nibble::kernels {
namespace {

using tensor::ActivationFormat;

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

float larger_or_nan(float a, float b) { return a >= b || a != a ? a : b; }

bool has_zero(const ActivationFormat& f) {
  return f.type == ActivationFormat::Type::kS8 && f.asymmetric;
}

void widen(const float* x, int64_t k, float& low, float& high) {
  for (int64_t i = 0; i < k; ++i) {
    low = smaller(low, x[i]);
    high = larger(high, x[i]);
  }
}

Grid dynamic_grid(const ActivationFormat& f, float input_scale, const float* x, int64_t k) {
  if (has_zero(f)) {
    float low = 0;
    float high = 0;
    widen(x, k, low, high);
    return asymmetric_grid(f, low, high);
  }
  const float most = f.outlier > 0 ? largest_below(f.outlier, x, k) : largest_magnitude(x, k);
  return symmetric_grid(f, input_scale, most);
}

void round_to(const ActivationFormat& f, Grid grid, const float* x, int64_t k, float* out) {
  if (f.type == ActivationFormat::Type::kS8) {
    const float outlier = outlier_of(f);
    const float least = lowest(f);
    for (int64_t i = 0; i < k; ++i) {
      out[i] = std::fabs(x[i]) >= outlier ? x[i] : s8_of(f, x[i], grid, least) * grid.scale;
    }
    return;
  }
  const float inverse = 1.0f / grid.scale;
  switch (f.type) {
    case ActivationFormat::Type::kE2M1:
      for (int64_t i = 0; i < k; ++i) out[i] = e2m1_rounded(x[i], inverse, grid.scale);
      return;
    case ActivationFormat::Type::kE2M3:
      for (int64_t i = 0; i < k; ++i) out[i] = e2m3_rounded(x[i], inverse, grid.scale);
      return;
    case ActivationFormat::Type::kE3M2:
      for (int64_t i = 0; i < k; ++i) out[i] = e3m2_rounded(x[i], inverse, grid.scale);
      return;
    default:
      for (int64_t i = 0; i < k; ++i) out[i] = e4m3_rounded(x[i], inverse, grid.scale);
  }
}

}  // namespace

void quantize_activation(const ActivationFormat& f, float input_scale, float input_zero,
                         const float* x, int64_t k, float* out, const uint8_t* kept) {
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
    if (kept == nullptr) {
      round_to(f, grid, x + begin, count, out + begin);
      continue;
    }
    for (int64_t i = begin; i < begin + count; ++i) {
      if (kept[i] == 0) {
        round_to(f, grid, x + i, 1, out + i);
      } else {
        out[i] = x[i];
      }
    }
  }
}

CallRange::CallRange(const ActivationFormat& format, int64_t k)
    : format_(format), k_(k), kept_(format.outlier > 0 ? static_cast<size_t>(k) : 0) {}

void CallRange::add(const float* x) {
  for (size_t i = 0; i < kept_.size(); ++i) {
    kept_[i] = static_cast<uint8_t>(kept_[i] | (std::fabs(x[i]) >= format_.outlier));
  }
  if (has_zero(format_)) {
    widen(x, k_, low_, high_);
    return;
  }
  most_ = larger_or_nan(most_, format_.outlier > 0 ? largest_below(format_.outlier, x, k_)
                                                   : largest_magnitude(x, k_));
}

void CallRange::join(const CallRange& other) {
  for (size_t i = 0; i < kept_.size(); ++i) kept_[i] |= other.kept_[i];
  low_ = smaller(low_, other.low_);
  high_ = larger(high_, other.high_);
  most_ = larger_or_nan(most_, other.most_);
}

ActivationFormat CallRange::found(float& scale, float& zero) const {
  if (!is_scaled_as_one(format_)) return format_;
  const Grid grid = has_zero(format_) ? asymmetric_grid(format_, low_, high_)
                                      : symmetric_grid(format_, scale, most_);
  scale = grid.scale;
  zero = grid.zero;
  ActivationFormat out = format_;
  out.is_static = true;
  return out;
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
      const float v = s8_of(f, x[i], grid, lowest(f));
      nothing += v - v;
      q[i] = static_cast<int16_t>(static_cast<int32_t>(v == v ? v : 0.0f));
    }
    *scale++ = grid.scale + nothing;
  }
}

}  // namespace nibble::kernels
