#include "kernels/norm/norm.h"

#include <cmath>

#include "kernels/isa_test.h"

namespace nibble::kernels {
namespace {

class norm : public IsaTest {
 protected:
  device::Stream stream_{2};
  const Ops reference_ = ops_for(device::Isa::kReference);
};
NIBBLE_FOR_ISAS(norm);

const int64_t kWidths[] = {1, 2, 7, 8, 9, 16, 17, 31, 32, 33, 64, 100, 576, 1000, 4096};

// The relative error of a sum of n squares in float32 with 4 registers of at least 8 lanes, halved
// by the root, and the roundings of the factor and the two products.
double rms_error(int64_t n) { return (static_cast<double>(n) / 64 + 4 + 6) * kUnit; }

TEST_P(norm, rms_norm_is_the_reference_within_its_rounding) {
  for (int64_t n : kWidths) {
    for (bool add_one : {false, true}) {
      for (bool weighted : {false, true}) {
        const int64_t m = 3;
        const int64_t ld = n + 3;
        const auto x = normal_floats(static_cast<size_t>(m * ld), 1, 10);
        const auto w = normal_floats(static_cast<size_t>(n), 2);
        const RmsNorm rms = {weighted ? w.data() : nullptr, n, 1e-5f, add_one};
        std::vector<float> y(x.size(), 42.0f);
        std::vector<float> want(x.size(), 42.0f);
        rms_norm(stream_, ops_, rms, x.data(), ld, y.data(), ld, m);
        rms_norm(stream_, reference_, rms, x.data(), ld, want.data(), ld, m);
        for (size_t i = 0; i < y.size(); ++i) {
          // 1 + w may cancel: its rounding is relative to 1.
          const double extra = add_one ? 2 * kUnit * std::fabs(x[i]) : 0;
          ASSERT_LE(std::fabs(y[i] - want[i]), rms_error(n) * std::fabs(want[i]) + extra)
              << "n " << n << " at " << i;
        }
      }
    }
  }
}

TEST_P(norm, adding_first_gives_the_same_bits_as_adding_and_normalising) {
  for (int64_t n : kWidths) {
    const auto delta = normal_floats(static_cast<size_t>(n), 3);
    const auto w = normal_floats(static_cast<size_t>(n), 4);
    auto residual = normal_floats(static_cast<size_t>(n), 5);
    auto sum = residual;
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += delta[i];
    const RmsNorm rms = {w.data(), n, 1e-6f, false};
    std::vector<float> y(static_cast<size_t>(n));
    std::vector<float> want(static_cast<size_t>(n));
    add_rms_norm(stream_, ops_, rms, delta.data(), n, residual.data(), n, y.data(), n, 1);
    rms_norm(stream_, ops_, rms, sum.data(), n, want.data(), n, 1);
    EXPECT_EQ(residual, sum) << n;
    EXPECT_EQ(y, want) << n;
  }
}

TEST_P(norm, in_place_is_the_same) {
  const auto x = normal_floats(577, 6);
  const RmsNorm rms = {nullptr, 577, 1e-5f, false};
  std::vector<float> y(577);
  rms_norm(stream_, ops_, rms, x.data(), 577, y.data(), 577, 1);
  std::vector<float> z = x;
  rms_norm(stream_, ops_, rms, z.data(), 577, z.data(), 577, 1);
  EXPECT_EQ(y, z);
}

TEST_P(norm, zeros_stay_zeros) {
  std::vector<float> x(40, 0.0f);
  const RmsNorm rms = {nullptr, 40, 1e-5f, false};
  rms_norm(stream_, ops_, rms, x.data(), 40, x.data(), 40, 1);
  EXPECT_EQ(x, std::vector<float>(40, 0.0f));
}

TEST_P(norm, layer_norm_is_the_reference_within_its_rounding) {
  for (int64_t n : kWidths) {
    if (n == 1) continue;  // always 0 / sqrt(eps): see below
    for (bool affine : {false, true}) {
      auto x = normal_floats(static_cast<size_t>(2 * n), 7, 2);
      for (float& v : x) v += 3;
      const auto w = normal_floats(static_cast<size_t>(n), 8);
      const auto b = normal_floats(static_cast<size_t>(n), 9);
      const LayerNorm layer = {affine ? w.data() : nullptr, affine ? b.data() : nullptr, n, 1e-5f};
      std::vector<float> y(x.size());
      std::vector<float> want(x.size());
      layer_norm(stream_, ops_, layer, x.data(), n, y.data(), n, 2);
      layer_norm(stream_, reference_, layer, x.data(), n, want.data(), n, 2);
      for (int64_t row = 0; row < 2; ++row) {
        double mean = 0;
        double squares = 0;
        for (int64_t i = 0; i < n; ++i) mean += x[static_cast<size_t>(row * n + i)];
        mean /= static_cast<double>(n);
        for (int64_t i = 0; i < n; ++i) {
          squares += std::pow(x[static_cast<size_t>(row * n + i)] - mean, 2);
        }
        const double deviation = std::sqrt(squares / static_cast<double>(n) + 1e-5);
        // An error e of the mean shifts every output by e / deviation.
        const double relative = (static_cast<double>(n) / 32 + 16) * kUnit;
        for (int64_t i = 0; i < n; ++i) {
          const size_t at = static_cast<size_t>(row * n + i);
          const double weight = affine ? std::fabs(w[static_cast<size_t>(i)]) : 1;
          const double bias = affine ? std::fabs(b[static_cast<size_t>(i)]) : 0;
          const double allowed =
              relative * (weight * (6 / deviation + std::fabs(x[at] - mean) / deviation) + bias);
          ASSERT_LE(std::fabs(y[at] - want[at]), allowed) << "n " << n << " at " << at;
        }
      }
    }
  }
}

TEST_P(norm, layer_norm_of_one_number_is_the_bias) {
  const float x = 5;
  const float bias = 0.25f;
  float y = 0;
  const LayerNorm layer = {nullptr, &bias, 1, 1e-5f};
  layer_norm(stream_, ops_, layer, &x, 1, &y, 1, 1);
  EXPECT_EQ(y, bias);
}

TEST_P(norm, results_do_not_depend_on_the_number_of_threads) {
  const int64_t m = 200;
  const int64_t n = 576;
  const auto x = normal_floats(static_cast<size_t>(m * n), 10);
  const RmsNorm rms = {nullptr, n, 1e-5f, false};
  std::vector<float> one(x.size());
  std::vector<float> four(x.size());
  device::Stream alone(1);
  device::Stream many(4);
  rms_norm(alone, ops_, rms, x.data(), n, one.data(), n, m);
  rms_norm(many, ops_, rms, x.data(), n, four.data(), n, m);
  EXPECT_EQ(one, four);
}

TEST(norm_reference, known_values) {
  device::Stream stream(1);
  const Ops ops = ops_for(device::Isa::kReference);
  const float x[2] = {3, 4};  // mean of squares 12.5
  const float w[2] = {1, 2};
  float y[2];
  rms_norm(stream, ops, {w, 2, 0, false}, x, 2, y, 2, 1);
  EXPECT_FLOAT_EQ(y[0], 3 / std::sqrt(12.5f));
  EXPECT_FLOAT_EQ(y[1], 8 / std::sqrt(12.5f));
  rms_norm(stream, ops, {w, 2, 0, true}, x, 2, y, 2, 1);
  EXPECT_FLOAT_EQ(y[1], 12 / std::sqrt(12.5f));
  layer_norm(stream, ops, {w, w, 2, 0}, x, 2, y, 2, 1);
  EXPECT_FLOAT_EQ(y[0], 0);
  EXPECT_FLOAT_EQ(y[1], 4);
}

}  // namespace
}  // namespace nibble::kernels
