#include "kernels/hadamard/hadamard.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

namespace nibble::kernels {
namespace {

TEST(hadamard, blocks_are_multiplied_by_sylvesters_matrix) {
  for (const int64_t size : {1, 2, 16, 64}) {
    const int64_t k = 128;
    std::vector<float> x, got;
    for (int64_t i = 0; i < k; ++i) x.push_back(static_cast<float>((i * 37 + 11) % 23) - 11);
    got = x;
    hadamard(got.data(), k, size);
    for (int64_t j = 0; j < k; ++j) {
      double sum = 0;
      for (int64_t i = 0; i < size; ++i) {
        const float value = x[static_cast<size_t>(j / size * size + i)];
        sum += std::popcount(static_cast<uint64_t>(i & (j % size))) % 2 == 0 ? value : -value;
      }
      EXPECT_NEAR(got[static_cast<size_t>(j)], sum / std::sqrt(static_cast<double>(size)), 1e-5)
          << size << ", " << j;
    }
  }
}

TEST(hadamard, twice_is_nothing) {
  std::vector<float> x = {1, -2, 3, 0.5f, 0, 7, -4, 2};
  const std::vector<float> before = x;
  hadamard(x.data(), 8, 4);
  hadamard(x.data(), 8, 4);
  EXPECT_EQ(x, before);
}

}  // namespace
}  // namespace nibble::kernels
