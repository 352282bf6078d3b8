// The definition of right: the formulas of norm.h with sums in double.
#include <cmath>

#include "kernels/norm/norm.h"

namespace nibble::kernels {
namespace {

void rms_norm_row(const RmsNorm& norm, const float* x, float* y) noexcept {
  double squares = 0;
  for (int64_t i = 0; i < norm.n; ++i) squares += static_cast<double>(x[i]) * x[i];
  const double factor = 1 / std::sqrt(squares / static_cast<double>(norm.n) + norm.eps);
  for (int64_t i = 0; i < norm.n; ++i) {
    const double stored = norm.weight != nullptr ? norm.weight[i] : (norm.add_one ? 0.0 : 1.0);
    y[i] = static_cast<float>(x[i] * factor * (norm.add_one ? 1 + stored : stored));
  }
}

void add_rms_norm_row(const RmsNorm& norm, const float* delta, float* residual, float* y) noexcept {
  for (int64_t i = 0; i < norm.n; ++i) residual[i] += delta[i];
  rms_norm_row(norm, residual, y);
}

void layer_norm_row(const LayerNorm& norm, const float* x, float* y) noexcept {
  const double n = static_cast<double>(norm.n);
  double total = 0;
  for (int64_t i = 0; i < norm.n; ++i) total += x[i];
  const double mean = total / n;
  double squares = 0;
  for (int64_t i = 0; i < norm.n; ++i) squares += (x[i] - mean) * (x[i] - mean);
  const double factor = 1 / std::sqrt(squares / n + norm.eps);
  for (int64_t i = 0; i < norm.n; ++i) {
    const double w = norm.weight != nullptr ? norm.weight[i] : 1.0;
    const double b = norm.bias != nullptr ? norm.bias[i] : 0.0;
    y[i] = static_cast<float>((x[i] - mean) * factor * w + b);
  }
}

}  // namespace

const NormOps kNormReference = {rms_norm_row, add_rms_norm_row, layer_norm_row};

}  // namespace nibble::kernels
