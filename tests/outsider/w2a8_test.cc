#include <gtest/gtest.h>

#include <cmath>

#include "device/hardware.h"
#include "kernels/matmul/matmul.h"
#include "quant/test_support.h"

namespace nibble::quant {
namespace {

using tensor::DType;

const std::string kModule = "model.layers.0.mlp.up_proj";
constexpr int64_t kN = 48, kK = 96;

int code_at(int64_t n, int64_t k) { return static_cast<int>((n * 7 + k * 5 + k / 9) % 4); }
float scale_at(int64_t n, int64_t g) { return 0.01f * static_cast<float>(1 + (n + 3 * g) % 11); }
float weight_at(int64_t n, int64_t k) {
  return static_cast<float>(code_at(n, k) - 2) * scale_at(n, k / 32);
}

TestCheckpoint checkpoint() {
  std::vector<uint8_t> packed(kN * kK / 4);
  std::vector<float> scale;
  for (int64_t n = 0; n < kN; ++n) {
    for (int64_t k = 0; k < kK; ++k) {
      packed[static_cast<size_t>((n * kK + k) / 4)] |=
          static_cast<uint8_t>(code_at(n, k) << 2 * (k % 4));
    }
    for (int64_t g = 0; g < kK / 32; ++g) scale.push_back(scale_at(n, g));
  }
  TestCheckpoint out;
  out.add(kModule + ".weight_packed", DType::kU8, {kN, kK / 4}, packed);
  out.add(kModule + ".weight_scale", DType::kF32, {kN, kK / 32}, scale);
  return out;
}

Result<tensor::QuantizedWeight> load(const TestCheckpoint& from) {
  return load_layer(from, R"({"quant_method": "w2a8"})", {kModule, kN, kK, false, {}});
}

TEST(w2a8, the_list_knows_the_new_scheme) {
  ASSERT_NE(find_scheme("w2a8"), nullptr);
  EXPECT_GE(schemes().size(), 2u);
}

TEST(w2a8, codes_and_scales_are_decoded) {
  const TestCheckpoint stored = checkpoint();
  const auto weight = load(stored);
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(tensor::to_string(weight->format), "s2g32");
  EXPECT_EQ(tensor::to_string(weight->activation), "s8 token");
  const std::vector<float> w = dequantize(*weight);
  for (int64_t n = 0; n < kN; ++n) {
    for (int64_t k = 0; k < kK; ++k) {
      ASSERT_EQ(w[static_cast<size_t>(n * kK + k)], weight_at(n, k));
    }
  }
}

// The chooser finds a kernel for a format nobody told it about; the product is what W2A8 means:
// x as s8 with one scale per token.
TEST(w2a8, a_kernel_is_chosen_and_multiplies) {
  const TestCheckpoint stored = checkpoint();
  const auto weight = load(stored);
  ASSERT_TRUE(weight) << message(weight);
  const kernels::MatmulProblem problem{kN, kK, weight->format, weight->activation};
  auto choice = kernels::choose(problem, device::detect_hardware(), {});
  ASSERT_TRUE(choice) << message(choice);
  device::Stream stream(1);
  const auto packed = kernels::pack(*weight, *choice, stream);
  ASSERT_TRUE(packed) << message(packed);

  constexpr int64_t kM = 3;
  std::vector<float> x(kM * kK), y(kM * kN, NAN);
  for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i) * 0.7f) * 3;
  const kernels::MatmulTarget target{&*packed, y.data(), kN};
  kernels::matmul(stream, {&target, 1}, x.data(), kK, kM);
  for (int64_t m = 0; m < kM; ++m) {
    float largest = 0;
    for (int64_t k = 0; k < kK; ++k)
      largest = std::max(largest, std::fabs(x[static_cast<size_t>(m * kK + k)]));
    const double step = largest / 127.0;
    for (int64_t n = 0; n < kN; ++n) {
      double sum = 0, size = 0;
      for (int64_t k = 0; k < kK; ++k) {
        const double q = std::nearbyint(x[static_cast<size_t>(m * kK + k)] / step);
        sum += q * step * weight_at(n, k);
        size += std::fabs(q * step * weight_at(n, k));
      }
      // f32 sums of kK products, and a kernel that holds the s8 values in its own wider integers.
      EXPECT_NEAR(y[static_cast<size_t>(m * kN + n)], sum, size * (kK * 0x1p-24 + 0x1p-14))
          << m << ", " << n;
    }
  }
}

TEST(w2a8, groups_must_be_whole) {
  const TestCheckpoint stored = checkpoint();
  EXPECT_EQ(
      message(load_layer(stored, R"({"quant_method": "w2a8"})", {kModule, kN, 80, false, {}})),
      kModule + ": 80 inputs are no whole groups of 32");
}

}  // namespace
}  // namespace nibble::quant
