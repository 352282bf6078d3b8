#include "kernels/quantize/quantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "base/number.h"
#include "kernels/quantize/round.h"

namespace nibble::kernels {
namespace {

using tensor::ActivationFormat;
using Type = ActivationFormat::Type;
using Rule = ActivationFormat::ScaleRule;

std::vector<float> quantized(const ActivationFormat& format, std::vector<float> x,
                             float input_scale = 1, float input_zero = 0) {
  std::vector<float> out(x.size());
  quantize_activation(format, input_scale, input_zero, x.data(), static_cast<int64_t>(x.size()),
                      out.data());
  return out;
}

ActivationFormat groups(Type type, Rule rule, int64_t group) {
  ActivationFormat out{.type = type, .granularity = ActivationFormat::Granularity::kGroup};
  out.group = group;
  out.scale_rule = rule;
  return out;
}

// The exponent of the scale that a group with this absmax gets: 1 is rounded up and down again.
float scale_for(const ActivationFormat& f, float most) {
  const float tiny = most * 0x1p-30f;
  std::vector<float> x = {most, tiny};
  // A number below half the smallest step is 0, at least half of it the step: find the step.
  const float step = f.type == Type::kE2M1 ? 0.5f : 0x1p-9f;
  for (int e = -60; e < 60; ++e) {
    x[1] = std::ldexp(step, e);
    if (x[1] > most) break;
    if (quantized(f, x)[1] == x[1]) return std::ldexp(1.0f, e);
  }
  return 0;
}

// Rounding to the grid is the codec's: every code, the middles between codes and their neighbours.
TEST(quantize, e2m1_and_e4m3_round_as_their_codecs_do) {
  const ActivationFormat e2m1{.type = Type::kE2M1,
                              .granularity = ActivationFormat::Granularity::kTensor,
                              .is_static = true};
  ActivationFormat e4m3 = e2m1;
  e4m3.type = Type::kE4M3;
  std::mt19937 random(7);
  std::uniform_real_distribution<float> four(-7, 7), eight(-460, 460), small(-0.02f, 0.02f);
  std::vector<float> x;
  for (int i = 0; i < 20000; ++i) x.push_back(i % 3 == 0 ? four(random) : eight(random));
  for (int i = 0; i < 20000; ++i) x.push_back(small(random));
  for (int i = -28; i <= 28; ++i) {
    const float v = static_cast<float>(i) * 0.25f;
    for (const float near : {v, std::nextafter(v, 9.0f), std::nextafter(v, -9.0f)}) {
      x.push_back(near);
    }
  }
  const std::vector<float> four_bits = quantized(e2m1, x), eight_bits = quantized(e4m3, x);
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(four_bits[i], base::f32_from_e2m1(base::e2m1_from_f32(x[i]))) << x[i];
    EXPECT_EQ(eight_bits[i], base::f32_from_e4m3(base::e4m3_from_f32(x[i]))) << x[i];
  }
}

// Six bits are few enough to name all numbers of a type.
TEST(quantize, six_bit_floats_round_to_the_nearest_of_their_numbers) {
  for (const Type type : {Type::kE2M3, Type::kE3M2}) {
    const int mantissa = type == Type::kE2M3 ? 3 : 2, bias = type == Type::kE2M3 ? 1 : 3;
    std::vector<float> numbers;
    for (int code = 0; code < 32; ++code) {
      const int exponent = code >> mantissa, fraction = code & ((1 << mantissa) - 1);
      const int whole = exponent == 0 ? fraction : fraction + (1 << mantissa);
      numbers.push_back(
          std::ldexp(static_cast<float>(whole), std::max(exponent, 1) - bias - mantissa));
    }
    ASSERT_EQ(numbers.back(), type == Type::kE2M3 ? 7.5f : 28.0f);
    const ActivationFormat f{
        .type = type, .granularity = ActivationFormat::Granularity::kTensor, .is_static = true};
    for (size_t i = 0; i + 1 < numbers.size(); ++i) {
      const float middle = (numbers[i] + numbers[i + 1]) / 2;
      const std::vector<float> got =
          quantized(f, {numbers[i], -numbers[i], std::nextafter(middle, 0.0f), middle,
                        std::nextafter(middle, 99.0f), 99.0f});
      const float even = numbers[i % 2 == 0 ? i : i + 1];
      EXPECT_EQ(got, (std::vector<float>{numbers[i], -numbers[i], numbers[i], even, numbers[i + 1],
                                         numbers.back()}));
    }
  }
}

TEST(quantize, each_rule_has_its_own_power_of_two) {
  const auto e2m1 = [](Rule rule, float most) {
    return scale_for(groups(Type::kE2M1, rule, 2), most);
  };
  // 4 = 2^2 is the largest power of two of e2m1: absmax 4 to 8 has the floor 1.
  EXPECT_EQ(e2m1(Rule::kE8M0Floor, 4.0f), 1.0f);
  EXPECT_EQ(e2m1(Rule::kE8M0Floor, 7.9f), 1.0f);
  EXPECT_EQ(e2m1(Rule::kE8M0Even, 6.9f), 1.0f);
  EXPECT_EQ(e2m1(Rule::kE8M0Even, 7.0f), 2.0f);
  EXPECT_EQ(e2m1(Rule::kE8M0Ceil, 6.0f), 1.0f);
  EXPECT_EQ(e2m1(Rule::kE8M0Ceil, 6.1f), 2.0f);
  EXPECT_EQ(e2m1(Rule::kE8M0Ceil, 3.1f), 1.0f);
  EXPECT_EQ(e2m1(Rule::kE8M0Nearest, 6.9f), 1.0f);
  EXPECT_EQ(e2m1(Rule::kE8M0Nearest, 7.0f), 2.0f);
  EXPECT_EQ(e2m1(Rule::kE8M0Above, 4.0f), 1.0f);
  EXPECT_EQ(e2m1(Rule::kE8M0Above, 4.1f), 2.0f);
  const ActivationFormat nearest = groups(Type::kE4M3, Rule::kE8M0Nearest, 2);
  EXPECT_EQ(scale_for(nearest, 495.0f), 1.0f);  // 1.9375 * 256 is 496
  EXPECT_EQ(scale_for(nearest, 496.0f), 2.0f);
  const ActivationFormat e4m3 = groups(Type::kE4M3, Rule::kE8M0Floor, 2);
  EXPECT_EQ(scale_for(e4m3, 256.0f), 1.0f);
  EXPECT_EQ(scale_for(e4m3, 511.0f), 1.0f);
  EXPECT_EQ(scale_for(e4m3, 512.0f), 2.0f);
  EXPECT_EQ(quantized(e4m3, {511.0f, 0.0f})[0], 448.0f);  // the floor may cut
}

TEST(quantize, groups_are_apart_and_the_last_may_be_short) {
  const ActivationFormat f = groups(Type::kE2M1, Rule::kE8M0Ceil, 4);
  EXPECT_EQ(quantized(f, {6, 0.2f, 0.3f, -5.1f, 48, 3, 0.5f}),
            (std::vector<float>{6, 0, 0.5f, -6, 48, 4, 0}));
}

// absmax 3 and input_scale 0.25: 3 / 6 / 0.25 = 2 is an e4m3; the scale is 2 * 0.25 = 0.5.
TEST(quantize, an_nvfp4_scale_is_an_e4m3_times_the_stored_scale) {
  const ActivationFormat f = groups(Type::kE2M1, Rule::kE4M3, 16);
  EXPECT_EQ(quantized(f, {3, 0.5f, 0.12f, -0.13f}, 0.25f),
            (std::vector<float>{3, 0.5f, 0, -0.25f}));
  // 2.02 of absmax rounds: 2.02 / 6 / 0.25 = 1.3467 is between 1.25 and 1.375.
  EXPECT_EQ(quantized(f, {2.02f}, 0.25f)[0], 6 * 1.375f * 0.25f);
  // A scale that would round to 0.
  EXPECT_EQ(quantized(f, {1e-9f, 0}, 1.0f), (std::vector<float>{0, 0}));
}

TEST(quantize, zeros_stay_zeros_and_what_is_no_number_is_seen) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const Rule rule : {Rule::kFloat, Rule::kE8M0Floor, Rule::kE8M0Even, Rule::kE8M0Ceil}) {
    for (const Type type : {Type::kE4M3, Type::kE2M1, Type::kE2M3, Type::kE3M2}) {
      const ActivationFormat f = groups(type, rule, 4);
      EXPECT_EQ(quantized(f, {0, 0, 0, 0}), std::vector<float>(4, 0.0f));
      EXPECT_FALSE(std::isfinite(quantized(f, {1, inf, 0, 0})[1]));
      EXPECT_FALSE(std::isfinite(quantized(f, {1, std::nanf(""), 0, 0})[1]));
      EXPECT_TRUE(std::isfinite(quantized(f, {1, 1, 1, 1, inf})[0]));
    }
  }
}

// 255 steps of an eighth are 31.875: half of them is the absmax 15.9375, and 127.5 rounds to 128.
TEST(quantize, half_of_the_range_may_be_the_absmax) {
  ActivationFormat f{.type = Type::kS8};
  f.half_range = true;
  EXPECT_EQ(quantized(f, {15.9375f, -15.9375f, 0.0624f, 0.0626f}),
            (std::vector<float>{15.875f, -16, 0, 0.125f}));
  f.bits = 4;  // 15 steps
  EXPECT_EQ(quantized(f, {7.5f, -7.5f, 1.4f, 2.6f}), (std::vector<float>{7, -8, 1, 3}));
  f.half_range = false;
  EXPECT_EQ(quantized(f, {7, -6.6f, 1.4f}), (std::vector<float>{7, -7, 1}));
  f.asymmetric = true;  // -1 to 14 is codes -8 to 7 with the zero point -7
  EXPECT_EQ(quantized(f, {14, -1, 2.6f}), (std::vector<float>{14, -1, 3}));
  EXPECT_EQ(tensor::to_string(f), "s4 token asym");
}

// Scales of e4m3 below 2^-6 become that; the smallest numbers then round to 0, and the others to
// its steps.
TEST(quantize, e4m3_scales_may_be_normal_numbers_alone) {
  ActivationFormat f = groups(Type::kE2M1, Rule::kE4M3, 4);
  const float most = 6 * 0x1p-8f;
  EXPECT_EQ(quantized(f, {most, most / 6, 0, 0}, 1.0f), (std::vector<float>{most, most / 6, 0, 0}));
  f.normal_scales = true;
  EXPECT_EQ(quantized(f, {most, most / 6, 0, 0}, 1.0f),
            (std::vector<float>{1.5f * 0x1p-6f, 0, 0, 0}));
  EXPECT_EQ(quantized(f, {6, 1, 0, 0}, 1.0f), (std::vector<float>{6, 1, 0, 0}));
  EXPECT_EQ(quantized(f, {0, 0, 0, 0}, 1.0f), std::vector<float>(4, 0.0f));
  EXPECT_TRUE(std::isnan(quantized(f, {std::nanf(""), 1, 0, 0}, 1.0f)[0]));
}

// Half a step more than 127, on the other side of the tie.
TEST(quantize, s8_may_be_of_products_with_the_reciprocal_scale) {
  ActivationFormat f{.type = Type::kS8};
  f.half_range = true;
  std::mt19937 random(5);
  std::uniform_real_distribution<float> uniform(0.1f, 8);
  int differ = 0;
  for (int i = 0; i < 1000; ++i) {
    const float most = uniform(random), scale = most / 127.5f;
    f.reciprocal = true;
    const float code = std::nearbyint(-most * (1.0f / scale));
    EXPECT_EQ(quantized(f, {-most, 0})[0], code * scale);
    f.reciprocal = false;
    differ += quantized(f, {-most, 0})[0] != code * scale ? 1 : 0;
  }
  EXPECT_GT(differ, 100);  // about 187 of 1000
}

TEST(quantize, s8_as_integers_is_the_same_grid) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> x(100);
  for (float& v : x) v = normal(random);
  for (const bool asymmetric : {false, true}) {
    ActivationFormat f = groups(Type::kS8, Rule::kFloat, 32);
    f.asymmetric = asymmetric;
    std::vector<int16_t> q(x.size());
    std::vector<float> scale(4);
    quantize_activation_s8(f, 1, 0, x.data(), static_cast<int64_t>(x.size()), q.data(),
                           scale.data());
    const std::vector<float> y = quantized(f, x);
    for (size_t i = 0; i < x.size(); ++i) {
      EXPECT_EQ(y[i], static_cast<float>(q[i]) * scale[i / 32]);
      EXPECT_NEAR(y[i], x[i], scale[i / 32] * 0.5001f);
    }
  }
}

// Tokens of k inputs, rounded as one call.
std::vector<float> of_call(const ActivationFormat& format, const std::vector<float>& x, int64_t k) {
  const auto tokens = static_cast<int64_t>(x.size()) / k;
  CallRange range(format, k), other(format, k);
  for (int64_t i = 0; i < tokens; ++i) (i % 2 == 0 ? range : other).add(x.data() + i * k);
  range.join(other);
  float scale = 7, zero = 3;
  const ActivationFormat found = range.found(scale, zero);
  std::vector<float> out = x;
  for (int64_t i = 0; i < tokens; ++i) {
    quantize_activation(found, scale, zero, out.data() + i * k, k, out.data() + i * k,
                        range.kept().empty() ? nullptr : range.kept().data());
  }
  return out;
}

TEST(quantize, a_dynamic_scale_of_the_tensor_is_one_of_all_tokens) {
  for (const Type type : {Type::kS8, Type::kE4M3}) {
    for (const bool asymmetric : {false, true}) {
      ActivationFormat whole{.type = type, .granularity = ActivationFormat::Granularity::kTensor};
      whole.asymmetric = asymmetric;
      EXPECT_TRUE(spans_call(whole));
      ActivationFormat token = whole;
      token.granularity = ActivationFormat::Granularity::kToken;
      EXPECT_FALSE(spans_call(token));
      // As one token that holds them all has it.
      const std::vector<float> x = {0.1f, 1.27f, -2, 0.3f, 5, -0.02f, 254, 8, 0.9f};
      EXPECT_EQ(of_call(whole, x, 3), quantized(token, x));
      EXPECT_NE(of_call(whole, x, 3), of_call(token, x, 3));
      const std::vector<float> broken = {0.1f, std::nanf(""), 1, 2, 3, 4};
      EXPECT_TRUE(std::isnan(of_call(whole, broken, 3)[1]));
      EXPECT_EQ(std::isnan(of_call(whole, broken, 3)[5]), type == Type::kE4M3 || !asymmetric);
    }
  }
}

TEST(quantize, columns_with_an_outlier_stay_floats_for_all_tokens) {
  ActivationFormat f{.type = Type::kS8};
  f.outlier = 6;
  EXPECT_TRUE(spans_call(f));
  // 0.504 is rounded beside 1.27, but not in the column where another token has 7; it counts for
  // its token's scale all the same.
  EXPECT_EQ(of_call(f, {7, 1.27f, 0.504f, 0.504f, 1.27f, 0.504f}, 3),
            (std::vector<float>{7, 1.27f, 0.5f, 0.504f, 1.27f, 0.5f}));
}

TEST(quantize, outliers_stay_floats_and_count_for_no_scale) {
  const float nan = std::nanf("");
  ActivationFormat f{.type = Type::kS8};
  f.outlier = 6;
  EXPECT_EQ(quantized(f, {6, -7.3f, 1.27f, 0.504f, -1, 5.5e7f}),
            (std::vector<float>{6, -7.3f, 1.27f, 0.5f, -1, 5.5e7f}));
  EXPECT_TRUE(std::isnan(quantized(f, {nan, 1})[0]));
  EXPECT_EQ(quantized(f, {9, 0, 0}), (std::vector<float>{9, 0, 0}));
  f.outlier = 0;
  EXPECT_EQ(quantized(f, {-254, 1.27f, 3})[1], 2);
}

}  // namespace
}  // namespace nibble::kernels
