// Weights in tiles for Hopper: which there are, and that they are held exactly; on any machine.
// Then, where there is such a card, products of few and of many tokens.
#include "kernels/matmul/cuda_tiles.h"

#include "base/number.h"
#include "kernels/matmul/cuda_test_card.h"
#include "kernels/matmul/cuda_tile_shapes.h"

namespace nibble::kernels {
namespace {

using device::gpu_h200;
using tensor::DType;
using tensor::Element;
using tensor::WeightFormat;
using tensor::ZeroKind;

// GPTQ's and AWQ's usual form.
const WeightFormat kAsymmetric = {.element = Element::kU4,
                                  .scaled = true,
                                  .group_k = 128,
                                  .scale_type = DType::kF16,
                                  .zero = ZeroKind::kInteger};

std::vector<WeightFormat> formats() {
  std::vector<WeightFormat> out = {kAsymmetric};
  for (const Element element :
       {Element::kS4, Element::kU4, Element::kS3, Element::kU2, Element::kS8, Element::kS6}) {
    for (const int64_t group : {int64_t{32}, int64_t{64}, int64_t{128}, int64_t{192}, int64_t{0}}) {
      WeightFormat f = {.element = element, .scaled = true, .group_k = group};
      f.scale_type = group % 128 == 0 ? DType::kBF16 : DType::kF16;
      out.push_back(f);
      if (tensor::bits(element) > 4) continue;
      f.zero = ZeroKind::kInteger;
      out.push_back(f);
    }
  }
  out.push_back({.element = Element::kS4,
                 .scaled = true,
                 .group_n = 128,
                 .group_k = 128,
                 .scale_type = DType::kBF16});
  out.push_back(
      {.element = Element::kS4, .scaled = true, .group_n = 0, .scale_type = DType::kE4M3});
  WeightFormat ordered = kAsymmetric;
  ordered.act_order = true;
  out.push_back(ordered);
  return out;
}

TEST(cuda_tiles, integer_weights_of_16_bit_scales_run_on_hopper_in_tiles) {
  for (const WeightFormat& format : formats()) {
    EXPECT_EQ(ranges(choose({4096, 4096, format, {}}, with_card(gpu_h200()), {})),
              tensor::bits(format.element) > 4
                  ? "cuda_tiles: 1+ matvec_bf16_int_f32_sm90 17+ matmul_bf16_s8_f32_sm90 "
                    "1025+ matmul_bf16_any_f32_cuda"
                  : "cuda_tiles: 1+ matvec_bf16_int_f32_sm90 17+ matmul_bf16_int_f32_sm90 "
                    "4097+ matmul_bf16_any_f32_cuda")
        << tensor::to_string(format);
  }
}

TEST(cuda_tiles, other_cards_and_exact_products_have_the_reference) {
  device::Gpu gpu = gpu_h200();
  gpu.name = "NVIDIA A100";
  gpu.major = 8;
  gpu.minor = 0;
  EXPECT_EQ(ranges(choose({64, 128, kAsymmetric, {}}, with_card(gpu), {})),
            "cuda: 1+ matvec_f32_any_f32_cuda 9+ matmul_bf16_any_f32_cuda");
  EXPECT_EQ(ranges(choose({64, 128, kAsymmetric, {}}, with_card(gpu_h200()),
                          {.precision = Precision::kExact})),
            "cuda: 1+ matvec_f32_any_f32_cuda 9+ matmul_f32_any_f32_cuda");
  EXPECT_EQ(
      ranges(choose({64, 128, kAsymmetric, {}}, with_card(gpu_h200()), {.kernel_glob = "*_any_*"})),
      "cuda: 1+ matvec_f32_any_f32_cuda 9+ matmul_bf16_any_f32_cuda");
}

TEST(cuda_tiles, tokens_that_no_kernel_of_a_glob_is_for_have_the_nearest) {
  const auto of = [](const char* glob) {
    return ranges(
        choose({4096, 4096, kAsymmetric, {}}, with_card(gpu_h200()), {.kernel_glob = glob}));
  };
  EXPECT_EQ(of("*sm90"), "cuda_tiles: 1+ matvec_bf16_int_f32_sm90 17+ matmul_bf16_int_f32_sm90");
  EXPECT_EQ(of("matmul_*sm90"), "cuda_tiles: 1+ matmul_bf16_int_f32_sm90");
  EXPECT_EQ(of("matmul*"),
            "cuda_tiles: 1+ matmul_bf16_any_f32_cuda 17+ matmul_bf16_int_f32_sm90 "
            "4097+ matmul_bf16_any_f32_cuda");
}

TEST(cuda_tiles, what_tiles_do_not_hold_is_told) {
  EXPECT_EQ(tiles_refusal({.element = Element::kE2M1, .scaled = true, .group_k = 32}),
            "reads s2 to s8 and u2 to u4; the weight is e2m1");
  EXPECT_EQ(tiles_refusal({.element = Element::kU8, .scaled = true}),
            "reads s2 to s8 and u2 to u4; the weight is u8");
  WeightFormat f = kAsymmetric;
  f.zero = ZeroKind::kOffset;
  EXPECT_EQ(tiles_refusal(f),
            "reads codes with scales and integer zero points; the weight is " + to_string(f));
  f = kAsymmetric;
  f.element = Element::kS8;
  EXPECT_EQ(tiles_refusal(f),
            "reads 8-bit codes without zero points; the weight is " + to_string(f));
  f = kAsymmetric;
  f.group_k = 48;
  EXPECT_EQ(tiles_refusal(f), "needs scales for 32 or a multiple of 64 inputs; they are for 48");
  f = kAsymmetric;
  f.scale_type = DType::kF32;
  EXPECT_EQ(tiles_refusal(f), "needs scales that 16 bits hold; they are f32");
}

// One number of an image, read back by the drawing in cuda_w4.cuh.
float number_at(const TileLayout& l, const std::byte* image, int64_t n, int64_t k) {
  const int64_t strip = n / 64;
  const int64_t lane = n % 8 * 4 + k % 8 / 2;
  const int64_t tile = n % 64 / 16;
  const int64_t reg = n % 16 / 8 + k % 16 / 8 * 2;
  const int64_t step = k % 64 / 16;
  const int64_t at = ((strip * l.units * 2 + k / 64) * 4 + tile) * 32 + lane;
  const auto* words = reinterpret_cast<const uint32_t*>(image + l.codes_at);
  const int64_t scale = (strip * l.groups + k / l.group) * 64 + n % 8 * 8 + tile * 2 + n % 16 / 8;
  float v;
  if (l.bits == 4) {
    const float zero = l.zeros ? static_cast<float>(image[l.zeros_at + scale]) : 8;
    v = static_cast<float>(words[at * 4 + step] >> (4 * reg + 16 * (k % 2)) & 15u) - zero;
  } else {
    const uint32_t word = words[at * 8 + step * 2 + reg / 2];
    v = static_cast<int8_t>(word >> (8 * (reg % 2) + 16 * (k % 2)));
  }
  const auto bits = reinterpret_cast<const uint16_t*>(image + l.scales_at)[scale];
  return v * (l.scales_are_bf16 ? base::f32_from_bf16(bits) : base::f32_from_f16(bits));
}

TEST(cuda_tiles, every_format_is_held_exactly) {
  device::Stream stream(2);
  uint32_t seed = 1;
  for (const WeightFormat& format : formats()) {
    const tensor::QuantizedWeight w = random_weight(format, 131, 200, seed++);
    const TileLayout l = tile_layout(w.n, w.k, w.format, needs_zeros(w));
    const auto image = tile_image(w, l, stream);
    ASSERT_TRUE(image) << image.error().message;
    ASSERT_EQ(static_cast<int64_t>(image->size()), l.bytes);
    std::vector<float> want(200);
    for (int64_t n = 0; n < w.n; ++n) {
      tensor::dequantize_row(w, n, want.data());
      for (int64_t k = 0; k < w.k; ++k) {
        const int64_t input = format.act_order ? w.order[static_cast<size_t>(k)] : k;
        ASSERT_EQ(number_at(l, image->data(), n, k), want[static_cast<size_t>(input)])
            << tensor::to_string(format) << " row " << n << " input " << k;
      }
    }
  }
}

TEST(cuda_tiles, four_bits_in_groups_of_128_take_0_516_bytes_a_weight) {
  const WeightFormat f = {
      .element = Element::kS4, .scaled = true, .group_k = 128, .scale_type = DType::kBF16};
  EXPECT_EQ(tile_layout(4096, 4096, f).bytes, 4096 * 4096 / 2 + 4096 * 32 * 2);
}

TEST(cuda_tiles, zeros_of_8_are_left_out) {
  tensor::QuantizedWeight w = random_weight(kAsymmetric, 64, 128, 5);
  std::fill(w.zero.begin(), w.zero.end(), 8.0f);
  EXPECT_FALSE(needs_zeros(w));
  w.zero[3] = 7;
  EXPECT_TRUE(needs_zeros(w));
}

TEST(cuda_tiles, scales_fold_but_for_very_large_and_very_small_ones) {
  tensor::QuantizedWeight w = random_weight(kAsymmetric, 64, 256, 5);
  EXPECT_TRUE(scales_fold(w));
  for (const float scale : {0.0f, -0.0f, 65504.0f, -0x1p-24f, 0x1p-60f, -0x1.fep18f}) {
    w.scale[3] = scale;
    EXPECT_TRUE(scales_fold(w)) << scale;
  }
  for (const float scale : {0x1p-61f, -0x1p-61f, 0x1p19f, -0x1p100f, INFINITY, NAN}) {
    w.scale[3] = scale;
    EXPECT_FALSE(scales_fold(w)) << scale;
  }
}

TEST(cuda_tiles, a_scale_that_16_bits_do_not_hold_is_told_where) {
  device::Stream stream(1);
  tensor::QuantizedWeight w = random_weight(kAsymmetric, 70, 256, 6);
  w.scale[2 * 66 + 1] = 1.0f + 0x1p-20f;
  const auto image = tile_image(w, tile_layout(w.n, w.k, w.format), stream);
  ASSERT_FALSE(image);
  EXPECT_EQ(image.error().message,
            "row 66, group 1 of a u4g128+zp weight has a scale or zero point that cannot be held "
            "as f16 and u8");
}

// x rounded to bf16 (2^-9 of each product), sums of K terms in f32, and from 17 tokens on scales
// and weights rounded to bf16.
double tolerance(int64_t k, int64_t m) {
  return 0x1p-9 + (m > 16 ? 2 * 0x1p-9 : 0) + static_cast<double>(k + 8) * 0x1p-23;
}

TEST_F(Hopper, products_are_those_of_the_definition) {
  uint32_t seed = 40;
  for (const WeightFormat& format : formats()) {
    for (const auto& [n, k] : {std::pair{200, 264}, {64, 128}, {1000, 1100}}) {
      const tensor::QuantizedWeight w = random_weight(format, n, k, seed++);
      const PackedWeight weight = packed(w, {});
      ASSERT_EQ(weight.choice.packing, kTilePacking);
      for (const int64_t m : {1, 2, 5, 8, 9, 16, 17, 33, 65}) {
        const std::vector<float> x = normal_floats(m * w.k, seed++);
        expect_product(w, x, m, product(weight, x, m), tolerance(k, m), tensor::to_string(format));
      }
    }
  }
}

// Whether they fold or not.
TEST_F(Hopper, scales_of_any_size_are_right) {
  for (const Element element : {Element::kS4, Element::kS8}) {
    const WeightFormat format = {
        .element = element, .scaled = true, .group_k = 128, .scale_type = DType::kBF16};
    for (const float size : {0x1p-75f, 0x1p-50f, 0x1p15f, 0x1p60f}) {
      tensor::QuantizedWeight w = random_weight(format, 200, 640, 78);
      for (float& scale : w.scale) scale *= size;
      const PackedWeight weight = packed(w, {});
      for (const int64_t m : {1, 9, 17, 64, 128}) {
        if (m <= 16 && size < 0x1p-60f) continue;  // sums times scales are subnormal there
        const std::vector<float> x = normal_floats(m * w.k, 79);
        expect_product(w, x, m, product(weight, x, m), tolerance(w.k, m),
                       tensor::to_string(format) + " times " + std::to_string(size));
      }
    }
  }
}

TEST_F(Hopper, every_number_of_tokens_around_the_edges_is_right) {
  WeightFormat format = kAsymmetric;
  const tensor::QuantizedWeight w = random_weight(format, 320, 640, 77);
  const PackedWeight weight = packed(w, {});
  uint32_t seed = 300;
  for (const int64_t m : {1,   2,   3,   4,   5,   7,   8,   9,   15,   16,   17,   24,  31,  32,
                          33,  47,  48,  63,  64,  65,  80,  81,  96,   97,   112,  113, 127, 128,
                          129, 160, 193, 255, 256, 257, 320, 511, 1000, 2048, 4096, 4097}) {
    const std::vector<float> x = normal_floats(m * w.k, seed++);
    expect_product(w, x, m, product(weight, x, m), tolerance(w.k, m), "u4");
  }
}

TEST_F(Hopper, every_tile_is_right) {
  WeightFormat plain = {
      .element = Element::kS4, .scaled = true, .group_k = 128, .scale_type = DType::kBF16};
  WeightFormat bytes = plain;
  bytes.element = Element::kS8;
  uint32_t seed = 500;
  for (const WeightFormat& format : {plain, kAsymmetric, bytes}) {
    for (const ProductShape& shape : kEveryTile) {
      const tensor::QuantizedWeight w = random_weight(format, shape.n, shape.k, seed++);
      const std::vector<float> x = normal_floats(int64_t{shape.m} * shape.k, seed++);
      expect_product(w, x, shape.m, product(packed(w, {}), x, shape.m), tolerance(shape.k, shape.m),
                     tensor::to_string(format) + " of " + std::to_string(shape.n) + " rows, m " +
                         std::to_string(shape.m));
    }
  }
}

// Several blocks a strip, several strips a block.
TEST_F(Hopper, large_and_long_weights_are_right) {
  WeightFormat format = {
      .element = Element::kS4, .scaled = true, .group_k = 128, .scale_type = DType::kBF16};
  for (const auto& [n, k] : {std::pair{256, 14336}, {20000, 512}, {1024, 8192}, {70, 57344}}) {
    const tensor::QuantizedWeight w = random_weight(format, n, k, 9);
    const PackedWeight weight = packed(w, {});
    for (const int64_t m : {1, 4, 8, 13, 16, 40}) {
      const std::vector<float> x = normal_floats(m * k, static_cast<uint32_t>(m));
      expect_product(w, x, m, product(weight, x, m), tolerance(k, m), std::to_string(n));
    }
  }
}

// What a byte holds, although four bits never have it.
TEST_F(Hopper, zeros_beyond_the_codes_are_right) {
  tensor::QuantizedWeight w = random_weight(kAsymmetric, 200, 512, 21);
  for (size_t i = 0; i < w.zero.size(); ++i) w.zero[i] = static_cast<float>(i * 7 % 128);
  const PackedWeight weight = packed(w, {});
  for (const int64_t m : {1, 12, 20, 60, 200, 1030}) {
    const std::vector<float> x = normal_floats(m * w.k, static_cast<uint32_t>(m));
    expect_product(w, x, m, product(weight, x, m), tolerance(w.k, m), "zeros to 127");
  }
}

// q, k and v: one launch, each its own rows and result.
TEST_F(Hopper, weights_that_read_the_same_x_are_multiplied_together) {
  std::vector<tensor::QuantizedWeight> weights;
  std::vector<PackedWeight> held;
  std::vector<device::Memory> out;
  const int64_t rows[] = {500, 64, 130};
  const int64_t k = 512;
  for (const int64_t n : rows) {
    weights.push_back(random_weight(kAsymmetric, n, k, static_cast<uint32_t>(n)));
    held.push_back(packed(weights.back(), {}));
  }
  for (const int64_t m : {1, 6, 16, 20}) {
    const std::vector<float> x = normal_floats(m * k, 3);
    auto on_card = device::Floats::place(*stream_, x);
    ASSERT_TRUE(on_card);
    std::vector<MatmulTarget> targets;
    out.clear();
    for (size_t i = 0; i < held.size(); ++i) {
      std::vector<float> poison(static_cast<size_t>(m * rows[i]), NAN);
      auto memory = device::Memory::copy_of(*stream_, poison.data(), poison.size() * sizeof(float));
      ASSERT_TRUE(memory);
      out.push_back(std::move(*memory));
    }
    for (size_t i = 0; i < held.size(); ++i) {
      targets.push_back({&held[i], reinterpret_cast<float*>(out[i].data()), rows[i]});
    }
    matmul(*stream_, targets, on_card->data(), k, m);
    for (size_t i = 0; i < held.size(); ++i) {
      std::vector<float> y(static_cast<size_t>(m * rows[i]));
      const auto ok =
          device::copy_to_host(*stream_, y.data(), out[i].data(), y.size() * sizeof(float));
      ASSERT_TRUE(ok) << ok.error().message;
      expect_product(weights[i], x, m, y, tolerance(k, m), "together");
    }
  }
}

TEST_F(Hopper, rows_are_looked_up_exactly) {
  uint32_t seed = 900;
  for (const WeightFormat& format : formats()) {
    const tensor::QuantizedWeight w = random_weight(format, 150, 300, seed++);
    const PackedWeight weight = packed(w, {});
    std::vector<float> want(300);
    std::vector<float> got(300);
    for (const int64_t n : {0, 17, 149}) {
      tensor::dequantize_row(w, n, want.data());
      unpack_row(weight, n, got.data());
      ASSERT_EQ(got, want) << tensor::to_string(format) << " row " << n;
    }
  }
}

}  // namespace
}  // namespace nibble::kernels
