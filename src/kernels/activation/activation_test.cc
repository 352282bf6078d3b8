#include "kernels/activation/activation.h"

#include <cmath>
#include <limits>

#include "kernels/isa_test.h"

namespace nibble::kernels {
namespace {

constexpr Activation kAll[] = {Activation::kSilu,      Activation::kGelu, Activation::kGeluTanh,
                               Activation::kQuickGelu, Activation::kRelu, Activation::kRelu2};

class activation : public IsaTest {
 protected:
  device::Stream stream_{2};
};
NIBBLE_FOR_ISAS(activation);

double exact(Activation f, float x) {
  const double v = x;
  switch (f) {
    case Activation::kSilu:
      return v / (1 + std::exp(-v));
    case Activation::kGelu:
      return v * 0.5 * std::erfc(-v * M_SQRT1_2);
    case Activation::kGeluTanh:
      return 0.5 * v * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
    case Activation::kQuickGelu:
      return v / (1 + std::exp(-1.702 * v));
    case Activation::kRelu:
      return v > 0 ? v : 0;
    case Activation::kRelu2:
      return v > 0 ? v * v : 0;
  }
  return 0;
}

TEST_P(activation, every_function_keeps_the_stated_error) {
  // Every 1/4096 from -40 to 40, and powers of two outside.
  std::vector<float> x;
  for (int i = -40 * 4096; i <= 40 * 4096; ++i) x.push_back(static_cast<float>(i) / 4096);
  for (int e = -140; e <= 120; ++e) {
    x.push_back(std::ldexp(1.3f, e));
    x.push_back(-std::ldexp(1.3f, e));
  }
  std::vector<float> y(x.size());
  for (Activation f : kAll) {
    ops_.activation->activate(f, x.data(), static_cast<int64_t>(x.size()), y.data());
    for (size_t i = 0; i < x.size(); ++i) {
      const double want = exact(f, x[i]);
      if (std::fabs(want) > std::numeric_limits<float>::max()) continue;
      const bool relu = f == Activation::kRelu || f == Activation::kRelu2;
      const double allowed = relu ? kUnit * std::fabs(want) + 1e-45
                                  : 1e-6 * std::fabs(want) + 3e-7 * std::fabs(x[i]) + 1e-45;
      ASSERT_LE(std::fabs(y[i] - want), allowed) << name(f) << "(" << x[i] << ")";
    }
  }
}

TEST_P(activation, gelu_keeps_its_relative_error_in_the_negative_tail) {
  for (float x = -0.01f; x > -7; x -= 0.001f) {
    float y = 0;
    ops_.activation->activate(Activation::kGelu, &x, 1, &y);
    const double want = exact(Activation::kGelu, x);
    // The square in the exponent is rounded: its error grows with it.
    ASSERT_LE(std::fabs(y - want), (2 * x * x + 16) * kUnit * std::fabs(want)) << x;
  }
}

TEST_P(activation, large_inputs_do_not_become_nan_and_nan_stays) {
  const float huge = 3e38f;
  for (Activation f : kAll) {
    float x[3] = {huge, -huge, std::numeric_limits<float>::quiet_NaN()};
    float y[3];
    ops_.activation->activate(f, x, 3, y);
    if (f != Activation::kRelu2) {
      EXPECT_EQ(y[0], huge) << name(f);
    }
    EXPECT_EQ(y[1], 0.0f) << name(f);
    EXPECT_TRUE(std::isnan(y[2])) << name(f);
  }
}

TEST_P(activation, rows_and_strides_agree_with_the_reference) {
  const Ops reference = ops_for(device::Isa::kReference);
  for (int64_t n : {1, 3, 7, 8, 9, 15, 16, 17, 33, 1536, 20000}) {
    for (int64_t m : {1, 2, 13}) {
      const int64_t ld = n + 5;
      const size_t size = static_cast<size_t>(m * ld);
      const auto gate = normal_floats(size, 1, 3);
      const auto up = normal_floats(size, 2, 3);
      for (Activation f : kAll) {
        std::vector<float> y(size, 42.0f);
        std::vector<float> want(size, 42.0f);
        activate_gated(stream_, ops_, f, gate.data(), ld, up.data(), ld, y.data(), ld, m, n);
        activate_gated(stream_, reference, f, gate.data(), ld, up.data(), ld, want.data(), ld, m,
                       n);
        for (size_t i = 0; i < size; ++i) {
          const bool inside = static_cast<int64_t>(i) % ld < n;
          const float allowed =
              inside ? 1e-6f * std::fabs(want[i]) + 4e-7f * std::fabs(gate[i] * up[i]) : 0.0f;
          ASSERT_LE(std::fabs(y[i] - want[i]), allowed) << name(f) << " n " << n << " at " << i;
        }
      }
    }
  }
}

TEST_P(activation, plain_and_gated_agree_in_place) {
  const auto x = normal_floats(100, 3);
  const std::vector<float> ones(100, 1.0f);
  for (Activation f : kAll) {
    std::vector<float> a = x;
    std::vector<float> b = x;
    activate(stream_, ops_, f, a.data(), 100, a.data(), 100, 1, 100);
    activate_gated(stream_, ops_, f, b.data(), 100, ones.data(), 100, b.data(), 100, 1, 100);
    EXPECT_EQ(a, b) << name(f);
  }
}

TEST_P(activation, sums_and_scalings_are_the_correctly_rounded_ones) {
  for (int64_t n : {1, 8, 15, 16, 17, 100}) {
    const auto x = normal_floats(static_cast<size_t>(n), 4);
    auto y = normal_floats(static_cast<size_t>(n), 5);
    const auto before = y;
    add_to(stream_, ops_, x.data(), n, y.data(), n, 1, n);
    for (size_t i = 0; i < y.size(); ++i) ASSERT_EQ(y[i], before[i] + x[i]);
    scale_by(stream_, ops_, 0.3f, y.data(), n);
    for (size_t i = 0; i < y.size(); ++i) ASSERT_EQ(y[i], (before[i] + x[i]) * 0.3f);
  }
}

TEST_P(activation, soft_cap_keeps_the_stated_error) {
  std::vector<float> x;
  for (int i = -3000; i <= 3000; ++i) x.push_back(static_cast<float>(i) / 7);
  x.push_back(1e30f);
  std::vector<float> y = x;
  soft_cap(stream_, ops_, 30, y.data(), static_cast<int64_t>(y.size()));
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_NEAR(y[i], 30 * std::tanh(static_cast<double>(x[i]) / 30), 3e-7 * 30) << x[i];
  }
}

TEST_P(activation, the_first_number_that_is_not_finite_is_found) {
  const float inf = std::numeric_limits<float>::infinity();
  for (int64_t n : {1, 7, 8, 16, 17, 40}) {
    std::vector<float> x(static_cast<size_t>(n), std::numeric_limits<float>::max());
    EXPECT_EQ(ops_.activation->first_not_finite(x.data(), n), n);
    for (int64_t at = 0; at < n; ++at) {
      for (float bad : {inf, -inf, std::numeric_limits<float>::quiet_NaN()}) {
        auto y = x;
        y[static_cast<size_t>(at)] = bad;
        y.back() = at == n - 1 ? bad : inf;
        EXPECT_EQ(ops_.activation->first_not_finite(y.data(), n), at);
      }
    }
  }
}

TEST_P(activation, results_do_not_depend_on_the_number_of_threads) {
  const int64_t m = 37;
  const int64_t n = 1536;
  const auto gate = normal_floats(static_cast<size_t>(m * n), 6);
  const auto up = normal_floats(static_cast<size_t>(m * n), 7);
  std::vector<float> one(gate.size());
  std::vector<float> four(gate.size());
  device::Stream alone(1);
  device::Stream many(4);
  activate_gated(alone, ops_, Activation::kSilu, gate.data(), n, up.data(), n, one.data(), n, m, n);
  activate_gated(many, ops_, Activation::kSilu, gate.data(), n, up.data(), n, four.data(), n, m, n);
  EXPECT_EQ(one, four);
}

TEST(activation_reference, known_values) {
  const Ops ops = ops_for(device::Isa::kReference);
  const float x[2] = {1.0f, -2.0f};
  const auto value = [&](Activation f, int i) {
    float y[2];
    ops.activation->activate(f, x, 2, y);
    return y[i];
  };
  EXPECT_FLOAT_EQ(value(Activation::kSilu, 0), 0.7310585786f);
  EXPECT_FLOAT_EQ(value(Activation::kGelu, 0), 0.8413447461f);
  EXPECT_FLOAT_EQ(value(Activation::kGelu, 1), -0.0455002639f);
  EXPECT_FLOAT_EQ(value(Activation::kGeluTanh, 0), 0.8411919906f);
  EXPECT_FLOAT_EQ(value(Activation::kQuickGelu, 0), 0.8457957659f);
  EXPECT_EQ(value(Activation::kRelu, 1), 0.0f);
  EXPECT_EQ(value(Activation::kRelu2, 0), 1.0f);
}

}  // namespace
}  // namespace nibble::kernels
