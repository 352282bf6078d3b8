// What a card would run, and how weights are packed for it; on any machine. Then, where there is a
// card, its kernels against the definitions of right.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/matmul/cuda_test_card.h"

namespace nibble::kernels {
namespace {

using device::gpu_h200;
using tensor::Element;
using tensor::WeightFormat;
using tensor::ZeroKind;

const WeightFormat kFormat = {
    .element = Element::kU4, .scaled = true, .group_k = 48, .zero = ZeroKind::kInteger};

TEST(cuda_choose, an_h200_runs_every_format_and_exact_means_float) {
  const MatmulProblem problem{576, 1536, kFormat, {}};
  EXPECT_EQ(ranges(choose(problem, with_card(gpu_h200()), {})),
            "cuda: 1+ matvec_f32_any_f32_cuda 9+ matmul_bf16_any_f32_cuda");
  const auto exact = choose(problem, with_card(gpu_h200()), {.precision = Precision::kExact});
  EXPECT_EQ(ranges(exact), "cuda: 1+ matvec_f32_any_f32_cuda 9+ matmul_f32_any_f32_cuda");
  ASSERT_EQ(exact->refusals.size(), 6u);
  EXPECT_EQ(exact->refusals[0].why, "reads e4m3; the weight is u4");
  EXPECT_EQ(exact->refusals[1].why, "reads s5 to s8; the weight is u4");
  EXPECT_EQ(exact->refusals[4].why,
            "rounds weights and activations to bf16; --precision exact wants float");
}

TEST(cuda_choose, cards_without_bf16_multiply_in_float) {
  device::Gpu gpu = gpu_h200();
  gpu.name = "Tesla T4";
  gpu.major = 7;
  gpu.minor = 5;
  const auto choice = choose({64, 64, kFormat, {}}, with_card(gpu), {});
  EXPECT_EQ(ranges(choice), "cuda: 1+ matvec_f32_any_f32_cuda 9+ matmul_f32_any_f32_cuda");
  ASSERT_EQ(choice->refusals.size(), 6u);
  EXPECT_EQ(choice->refusals[2].why, "is for Hopper (compute capability 9.0); Tesla T4 has 7.5");
  EXPECT_EQ(choice->refusals[5].why,
            "needs bf16 products (compute capability 8.0); Tesla T4 has 7.5");
}

TEST(cuda_choose, a_glob_forces_one_kernel_and_another_is_refused_for_the_card) {
  EXPECT_EQ(
      ranges(choose({64, 64, kFormat, {}}, with_card(gpu_h200()), {.kernel_glob = "matvec*cuda"})),
      "cuda: 1+ matvec_f32_any_f32_cuda");
  EXPECT_EQ(ranges(choose({64, 64, kFormat, {}}, with_card(gpu_h200()), {.kernel_glob = "*avx2"})),
            "no kernel multiplies a u4g48+zp weight of 64 x 64 on NVIDIA H200: "
            "matmul_e4m3_e4m3_f32_cuda and 7 more: its name does not match --kernel *avx2");
}

using Activation = tensor::ActivationFormat;
constexpr Activation kE4M3Token = {.type = Activation::Type::kE4M3};
constexpr Activation kS8Token = {.type = Activation::Type::kS8};
constexpr WeightFormat kE4M3Rows = {.element = Element::kE4M3, .scaled = true};
constexpr WeightFormat kS8Rows = {.element = Element::kS8, .scaled = true};

TEST(cuda_choose, fp8_and_int8_layers_multiply_codes_with_codes) {
  WeightFormat tensor = kE4M3Rows;
  tensor.group_n = 0;
  for (const WeightFormat& format : {kE4M3Rows, tensor}) {
    EXPECT_EQ(ranges(choose({64, 96, format, kE4M3Token}, with_card(gpu_h200()), {})),
              "cuda: 1+ matmul_e4m3_e4m3_f32_cuda");
  }
  EXPECT_EQ(ranges(choose({64, 96, kS8Rows, kS8Token}, with_card(gpu_h200()), {})),
            "cuda: 1+ matmul_s8_s8_f32_cuda");
}

TEST(cuda_choose, codes_are_not_multiplied_where_they_are_not_what_is_meant) {
  const auto why = [](const MatmulProblem& problem, Precision precision = Precision::kFast) {
    const auto choice = choose(problem, with_card(gpu_h200()), {.precision = precision});
    const size_t line = problem.weight.element == Element::kS8 ? 1 : 0;
    return choice && choice->refusals.size() > line ? choice->refusals[line].why : "";
  };
  WeightFormat blocks = kE4M3Rows;
  blocks.group_n = blocks.group_k = 128;
  WeightFormat other = kE4M3Rows;
  other.element = Element::kE4M3FNUZ;
  Activation grouped = kE4M3Token;
  grouped.granularity = Activation::Granularity::kGroup;
  grouped.group = 128;
  Activation shifted = kS8Token;
  shifted.asymmetric = true;
  EXPECT_EQ(why({256, 256, blocks, grouped}),
            "wants one scale, and no zero point, for each row; the weight is e4m3b128x128");
  EXPECT_EQ(why({256, 256, other, kE4M3Token}), "reads e4m3; the weight is e4m3fnuz");
  EXPECT_EQ(why({256, 256, kE4M3Rows, grouped}),
            "wants inputs as e4m3 with one scale for each token; here they are e4m3 g128");
  EXPECT_EQ(why({256, 256, kE4M3Rows, {}}),
            "wants inputs as e4m3 with one scale for each token; here they are float");
  EXPECT_EQ(why({256, 256, kS8Rows, shifted}),
            "wants inputs as s8 with one scale for each token; here they are s8 token asym");
  EXPECT_EQ(why({256, 100, kE4M3Rows, kE4M3Token}),
            "needs N and K divisible by 16; they are 256 and 100");
  EXPECT_EQ(why({256, 256, kE4M3Rows, kE4M3Token}, Precision::kExact),
            "multiplies in tensor cores; --precision exact wants float");
}

TEST(cuda_choose, fp8_weights_are_weight_only_on_cards_without_fp8) {
  device::Gpu gpu = gpu_h200();
  gpu.name = "NVIDIA A100";
  gpu.major = 8;
  const MatmulProblem problem{64, 96, kE4M3Rows, kE4M3Token};
  const auto choice = choose(problem, with_card(gpu), {});
  EXPECT_EQ(ranges(choice), "cuda: 1+ matvec_f32_any_f32_cuda 9+ matmul_bf16_any_f32_cuda");
  EXPECT_EQ(choice->refusals[0].why,
            "needs FP8 products (compute capability 8.9); NVIDIA A100 has 8.0");
  EXPECT_EQ(choice->activation, Activation());
  const auto exact = choose(problem, with_card(gpu), {.precision = Precision::kExact});
  EXPECT_EQ(exact->activation, kE4M3Token);
  // Of int4 weights the inputs stay what the checkpoint wants: no kernel needs FP8 products for it.
  EXPECT_EQ(choose({64, 96, kFormat, kE4M3Token}, with_card(gpu), {})->activation, kE4M3Token);
}

std::vector<WeightFormat> formats() {
  std::vector<WeightFormat> out;
  for (int e = 0; e <= static_cast<int>(Element::kU2); ++e) {
    const auto element = static_cast<Element>(e);
    if (tensor::is_unscaled_float(element)) {
      out.push_back({.element = element});
      continue;
    }
    out.push_back({.element = element, .scaled = true, .group_k = 32});
    out.push_back({.element = element, .scaled = true, .group_n = 0});
    out.push_back({.element = element, .scaled = true, .group_n = 16, .group_k = 48});
    if (!tensor::is_integer(element)) continue;
    out.push_back({.element = element, .scaled = true, .group_k = 16, .zero = ZeroKind::kInteger});
    out.push_back({.element = element, .scaled = true, .group_k = 7, .zero = ZeroKind::kOffset});
    out.push_back({.element = element, .scaled = true, .group_k = 32, .act_order = true});
  }
  return out;
}

// The image's row as the card's kernels read it.
std::vector<float> row_of(const tensor::QuantizedWeight& w, const CudaLayout& l,
                          const std::byte* image, int64_t n) {
  const auto floats = [&](int64_t offset) {
    return reinterpret_cast<const float*>(image + offset);
  };
  const int64_t group = w.format.group_k == 0 ? w.k : w.format.group_k;
  std::vector<float> out(static_cast<size_t>(w.k));
  for (int64_t k = 0; k < w.k; ++k) {
    const std::byte* row = image + l.codes + n * l.row_bytes;
    uint32_t code = 0;
    std::memcpy(&code, row + k * l.code_bits / 8, static_cast<size_t>((l.code_bits + 7) / 8));
    if (l.code_bits == 4) code = code >> (k % 2 * 4) & 15;
    float v = l.values < 0 ? tensor::value_of(w.format.element, code) : floats(l.values)[code];
    const int64_t g = k / group;
    const int64_t scale_row = w.format.group_n == 0 ? 0 : n / w.format.group_n;
    if (l.zero >= 0) v -= floats(l.zero)[n * w.groups() + g];
    if (l.scale >= 0) v *= floats(l.scale)[scale_row * w.groups() + g];
    if (l.offset >= 0) v += floats(l.offset)[n * w.groups() + g];
    out[static_cast<size_t>(w.format.act_order ? w.order[static_cast<size_t>(k)] : k)] = v;
  }
  return out;
}

TEST(cuda_pack, every_format_is_held_exactly) {
  device::Stream stream(2);
  uint32_t seed = 1;
  for (const WeightFormat& format : formats()) {
    const tensor::QuantizedWeight w = random_weight(format, 33, 100, seed++);
    const CudaLayout l = cuda_layout(w.n, w.k, w.format);
    const auto image = cuda_image(w, l, stream);
    ASSERT_TRUE(image) << image.error().message;
    ASSERT_EQ(static_cast<int64_t>(image->size()), l.bytes);
    std::vector<float> want(100);
    for (int64_t n = 0; n < w.n; ++n) {
      tensor::dequantize_row(w, n, want.data());
      ASSERT_EQ(row_of(w, l, image->data(), n), want) << tensor::to_string(format) << " row " << n;
    }
  }
}

TEST(cuda_pack, four_bits_take_half_a_byte) {
  const CudaLayout l =
      cuda_layout(64, 4096, {.element = Element::kS4, .scaled = true, .group_k = 128});
  EXPECT_EQ(l.row_bytes, 2048);
  EXPECT_EQ(l.bytes, 256 + 64 * 32 * 4 + 64 * 2048);
}

// ---- on a card

// Products of K terms summed in float32 in any order: (K + 8) 2^-24 covers every order.
TEST_F(Card, exact_products_are_those_of_the_definition) {
  uint32_t seed = 100;
  for (const WeightFormat& format : formats()) {
    const tensor::QuantizedWeight w = random_weight(format, 77, 136, seed++);
    const PackedWeight weight = packed(w, {.precision = Precision::kExact});
    for (const int64_t m : {1, 3, 8, 9, 33}) {
      const std::vector<float> x = normal_floats(m * w.k, seed++);
      expect_product(w, x, m, product(weight, x, m), 144 * 0x1p-24, tensor::to_string(format));
    }
  }
}

TEST_F(Card, ragged_sizes_are_whole) {
  const WeightFormat format{.element = Element::kS4, .scaled = true, .group_k = 32};
  for (const auto& [n, k] : {std::pair{1, 1}, {2, 31}, {65, 33}, {129, 96}, {1000, 260}}) {
    const tensor::QuantizedWeight w = random_weight(format, n, k, static_cast<uint32_t>(n + k));
    for (const Precision precision : {Precision::kExact, Precision::kFast}) {
      const PackedWeight weight = packed(w, {.precision = precision});
      for (const int64_t m : {1, 2, 7, 15, 16, 17, 65}) {
        const std::vector<float> x = normal_floats(m * k, 7);
        const bool rounded = precision == Precision::kFast && m > 8;
        expect_product(w, x, m, product(weight, x, m), rounded ? 0x1p-7 : (k + 8) * 0x1p-24,
                       std::to_string(n) + " x " + std::to_string(k));
      }
    }
  }
}

TEST_F(Card, activations_are_rounded_as_the_checkpoint_says) {
  using A = tensor::ActivationFormat;
  using Rule = A::ScaleRule;
  const A formats[] = {
      {.type = A::Type::kS8},
      {.type = A::Type::kS8, .half_range = true},
      {.type = A::Type::kS8, .half_range = true, .reciprocal = true},
      {.type = A::Type::kS8, .asymmetric = true},
      {.type = A::Type::kS8, .bits = 4},
      {.type = A::Type::kS8, .granularity = A::Granularity::kTensor, .is_static = true},
      {.type = A::Type::kS8, .granularity = A::Granularity::kGroup, .group = 32},
      {.type = A::Type::kS8, .outlier = 1.5f},
      {.type = A::Type::kS8, .granularity = A::Granularity::kTensor},
      {.type = A::Type::kS8, .granularity = A::Granularity::kTensor, .asymmetric = true},
      {.type = A::Type::kE4M3, .granularity = A::Granularity::kTensor},
      {.type = A::Type::kE4M3},
      {.type = A::Type::kE4M3, .upper_bound = 1.0f},
      {.type = A::Type::kE4M3, .granularity = A::Granularity::kGroup, .group = 128},
      {.type = A::Type::kE4M3,
       .granularity = A::Granularity::kGroup,
       .group = 32,
       .scale_rule = Rule::kE8M0Ceil},
      {.type = A::Type::kE2M1,
       .granularity = A::Granularity::kGroup,
       .group = 32,
       .scale_rule = Rule::kE8M0Even},
      {.type = A::Type::kE2M1,
       .granularity = A::Granularity::kGroup,
       .group = 32,
       .scale_rule = Rule::kE8M0Floor},
      {.type = A::Type::kE2M1,
       .granularity = A::Granularity::kGroup,
       .group = 16,
       .scale_rule = Rule::kE4M3},
      {.type = A::Type::kE2M1,
       .granularity = A::Granularity::kGroup,
       .group = 16,
       .normal_scales = true,
       .scale_rule = Rule::kE4M3},
  };
  uint32_t seed = 500;
  for (const A& activation : formats) {
    tensor::QuantizedWeight w =
        random_weight({.element = Element::kS8, .scaled = true}, 40, 160, seed++);
    w.activation = activation;
    w.input_scale = 0.02f;
    for (const bool changed : {false, true}) {
      if (changed) w.input_factor = normal_floats(160, seed++);
      w.input_hadamard = changed ? 32 : 0;
      const PackedWeight weight = packed(w, {.precision = Precision::kExact});
      for (const int64_t m : {2, 20}) {
        const std::vector<float> x = normal_floats(m * w.k, seed++);
        expect_product(w, x, m, product(weight, x, m), 168 * 0x1p-24,
                       tensor::to_string(activation));
      }
    }
  }
}

// A tensor core adds 32 FP8 products at once and keeps 13 bits or so below the largest of them: at
// most 32 * 2^-13 of it is lost. Sums of integers are exact.
TEST_F(Card, codes_times_codes_are_the_products_of_the_definition) {
  uint32_t seed = 700;
  Activation stored = kE4M3Token;
  stored.granularity = Activation::Granularity::kTensor;
  stored.is_static = true;
  Activation bounded = kE4M3Token;
  bounded.upper_bound = 1.0f;
  Activation halves = kS8Token;
  halves.half_range = true;
  WeightFormat tensor = kE4M3Rows;
  tensor.group_n = 0;
  WeightFormat parts = kE4M3Rows;
  parts.group_n = 16;
  const std::pair<WeightFormat, Activation> cases[] = {
      {kE4M3Rows, kE4M3Token}, {tensor, stored},  {parts, bounded},
      {kS8Rows, kS8Token},     {kS8Rows, halves},
  };
  for (const auto& [format, activation] : cases) {
    for (const auto& [n, k] : {std::pair{16, 16}, {48, 160}, {272, 2048}, {16384, 32}}) {
      tensor::QuantizedWeight w = random_weight(format, n, k, seed++);
      w.activation = activation;
      w.input_scale = 0.01f;
      if (k == 160) w.input_factor = normal_floats(k, seed++);
      const PackedWeight weight = packed(w, {});
      const std::string name = kernel_name(*weight.choice.ranges.back().kernel);
      ASSERT_TRUE(name == "matmul_e4m3_e4m3_f32_cuda" || name == "matmul_s8_s8_f32_cuda") << name;
      const bool fp8 = format.element == Element::kE4M3;
      for (const int64_t m : {1, 15, 16, 17, 65}) {
        const std::vector<float> x = normal_floats(m * k, seed++);
        expect_product(w, x, m, product(weight, x, m), fp8 ? 0x1p-8 : 0x1p-20,
                       name + " " + tensor::to_string(format));
      }
    }
  }
}

TEST_F(Card, codes_times_codes_reach_outputs_of_any_alignment) {
  tensor::QuantizedWeight w = random_weight(kE4M3Rows, 32, 64, 800);
  w.activation = kE4M3Token;
  const PackedWeight weight = packed(w, {});
  constexpr int64_t kTokens = 20;
  constexpr int64_t kStride = 37;
  const std::vector<float> x = normal_floats(kTokens * 64, 801);
  const std::vector<float> want = product(weight, x, kTokens);
  std::vector<float> y(kTokens * kStride + 1, NAN);
  auto on_card = device::Floats::place(*stream_, x);
  auto out = device::Memory::copy_of(*stream_, y.data(), y.size() * sizeof(float));
  ASSERT_TRUE(on_card && out);
  const MatmulTarget target{&weight, reinterpret_cast<float*>(out->data()) + 1, kStride};
  matmul(*stream_, {&target, 1}, on_card->data(), 64, kTokens);
  ASSERT_TRUE(device::copy_to_host(*stream_, y.data(), out->data(), y.size() * sizeof(float)));
  for (int64_t i = 0; i < kTokens; ++i) {
    for (int64_t n = 0; n < kStride; ++n) {
      const float got = y[static_cast<size_t>(1 + i * kStride + n)];
      if (n >= 32) {
        EXPECT_TRUE(std::isnan(got) || i + 1 == kTokens) << "written beyond the row";
      } else {
        EXPECT_NEAR(got, want[static_cast<size_t>(i * 32 + n)], 1e-3);
      }
    }
  }
}

TEST_F(Card, what_is_not_finite_shows_in_products_of_codes) {
  for (const WeightFormat& format : {kE4M3Rows, kS8Rows}) {
    tensor::QuantizedWeight w = random_weight(format, 32, 64, 900);
    w.activation = format.element == Element::kE4M3 ? kE4M3Token : kS8Token;
    const PackedWeight weight = packed(w, {});
    for (const float bad : {NAN, INFINITY}) {
      std::vector<float> x = normal_floats(10 * 64, 901);
      x[3 * 64 + 5] = bad;
      const std::vector<float> y = product(weight, x, 10);
      for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isfinite(y[i]), i / 32 != 3) << i;
    }
  }
}

TEST_F(Card, rows_are_looked_up_exactly) {
  uint32_t seed = 900;
  for (const WeightFormat& format : formats()) {
    const tensor::QuantizedWeight w = random_weight(format, 50, 100, seed++);
    const PackedWeight weight = packed(w, {});
    std::vector<float> want(100);
    std::vector<float> got(100);
    for (const int64_t n : {0, 17, 49}) {
      tensor::dequantize_row(w, n, want.data());
      unpack_row(weight, n, got.data());
      ASSERT_EQ(got, want) << tensor::to_string(format) << " row " << n;
    }
  }
}

}  // namespace
}  // namespace nibble::kernels
