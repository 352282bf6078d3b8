// The definition of right: the rotation of rope.h, product by product in double.
#include "kernels/rope/rope.h"

namespace nibble::kernels {
namespace {

void rotate_halves(const float* cos, const float* sin, int64_t pairs, float* x) noexcept {
  for (int64_t i = 0; i < pairs; ++i) {
    const double a = x[i];
    const double b = x[i + pairs];
    x[i] = static_cast<float>(a * cos[i] - b * sin[i]);
    x[i + pairs] = static_cast<float>(b * cos[i] + a * sin[i]);
  }
}

void rotate_neighbours(const float* cos, const float* sin, int64_t n, float* x) noexcept {
  for (int64_t i = 0; i < n; i += 2) {
    const double a = x[i];
    const double b = x[i + 1];
    x[i] = static_cast<float>(a * cos[i] + b * sin[i]);  // sin[i] is -sin t
    x[i + 1] = static_cast<float>(b * cos[i + 1] + a * sin[i + 1]);
  }
}

}  // namespace

const RopeOps kRopeReference = {rotate_halves, rotate_neighbours};

}  // namespace nibble::kernels
