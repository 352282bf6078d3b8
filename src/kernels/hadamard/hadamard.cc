#include "kernels/hadamard/hadamard.h"

#include <cmath>

namespace nibble::kernels {

void hadamard(float* x, int64_t k, int64_t size) {
  const auto factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(size)));
  // H of 2n is (H H; H -H): sums and differences of halves, log2(size) times.
  for (float* block = x; block < x + k; block += size) {
    for (int64_t half = 1; half < size; half *= 2) {
      for (int64_t begin = 0; begin < size; begin += 2 * half) {
        float* a = block + begin;
        float* b = a + half;
        for (int64_t i = 0; i < half; ++i) {
          const float sum = a[i] + b[i];
          b[i] = a[i] - b[i];
          a[i] = sum;
        }
      }
    }
    for (int64_t i = 0; i < size; ++i) block[i] *= factor;
  }
}

}  // namespace nibble::kernels
