#include "kernels/quantize/quantize.h"

#include <algorithm>
#include <cmath>

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

bool is_outlier(const ActivationFormat& f, float x) {
  return f.outlier > 0 && std::fabs(x) >= f.outlier;
}

Grid dynamic_grid(const ActivationFormat& f, const float* x, int64_t k) {
  float low = 0;
  float high = 0;
  for (int64_t i = 0; i < k; ++i) {
    if (is_outlier(f, x[i])) continue;
    low = std::min(low, x[i]);
    high = std::max(high, x[i]);
  }
  if (f.type == ActivationFormat::Type::kS8 && f.asymmetric) {
    const float scale = std::max((high - low) / 255.0f, kSmallestScale);
    return {scale, std::nearbyint(std::clamp(-128.0f - low / scale, -128.0f, 127.0f))};
  }
  float most = std::max(high, -low);
  if (f.upper_bound > 0) most = std::min(most, f.upper_bound);
  if (f.type == ActivationFormat::Type::kS8) return {std::max(most / 127.0f, kSmallestScale), 0};
  const bool grouped = f.granularity == ActivationFormat::Granularity::kGroup;
  return {std::max(most / 448.0f, grouped ? kSmallestGroupScale : kSmallestTokenScale), 0};
}

// e4m3 is multiplied by the reciprocal of the scale, as the runtimes do it (and not divided): near
// the middle of two codes the two differ.
void round_to(const ActivationFormat& f, Grid grid, const float* x, int64_t k, float* out) {
  for (int64_t i = 0; i < k; ++i) {
    if (std::isnan(x[i]) || is_outlier(f, x[i])) {
      out[i] = x[i];
    } else if (f.type == ActivationFormat::Type::kS8) {
      const float q = std::clamp(std::nearbyint(x[i] / grid.scale) + grid.zero, -128.0f, 127.0f);
      out[i] = (q - grid.zero) * grid.scale;
    } else {
      const float v = std::clamp(x[i] * (1.0f / grid.scale), -448.0f, 448.0f);
      out[i] = base::f32_from_e4m3(base::e4m3_from_f32(v)) * grid.scale;
    }
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
    const Grid grid =
        f.is_static ? Grid{input_scale, input_zero} : dynamic_grid(f, x + begin, count);
    round_to(f, grid, x + begin, count, out + begin);
  }
}

}  // namespace nibble::kernels
