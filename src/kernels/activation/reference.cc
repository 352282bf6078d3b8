// The definition of right: the formulas of activation.h in double.
#include <cmath>

#include "kernels/activation/activation.h"

namespace nibble::kernels {
namespace {

double apply(Activation f, double x) {
  switch (f) {
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    case Activation::kGelu:
      return x * 0.5 * std::erfc(-x * std::sqrt(0.5));
    case Activation::kGeluTanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::kQuickGelu:
      return x / (1 + std::exp(-1.702 * x));
    case Activation::kRelu:
      return x < 0 ? 0 : x;
    case Activation::kRelu2:
      return x < 0 ? 0 : x * x;
  }
  return 0;
}

void activate_row(Activation f, const float* x, int64_t n, float* y) noexcept {
  for (int64_t i = 0; i < n; ++i) y[i] = static_cast<float>(apply(f, x[i]));
}

void activate_gated_row(Activation f, const float* gate, const float* up, int64_t n,
                        float* y) noexcept {
  for (int64_t i = 0; i < n; ++i) y[i] = static_cast<float>(apply(f, gate[i]) * up[i]);
}

void add_to_row(const float* x, int64_t n, float* y) noexcept {
  for (int64_t i = 0; i < n; ++i) y[i] += x[i];
}

void scale_by_row(float factor, int64_t n, float* y) noexcept {
  for (int64_t i = 0; i < n; ++i) y[i] *= factor;
}

void soft_cap_row(float cap, int64_t n, float* y) noexcept {
  for (int64_t i = 0; i < n; ++i) {
    y[i] = static_cast<float>(cap * std::tanh(static_cast<double>(y[i]) / cap));
  }
}

int64_t first_not_finite(const float* x, int64_t n) noexcept {
  for (int64_t i = 0; i < n; ++i) {
    if (!std::isfinite(x[i])) return i;
  }
  return n;
}

}  // namespace

const ActivationOps kActivationReference = {activate_row, activate_gated_row, add_to_row,
                                            scale_by_row, soft_cap_row,       first_not_finite};

}  // namespace nibble::kernels
