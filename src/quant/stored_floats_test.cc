#include "quant/stored_floats.h"

#include "quant/test_support.h"

namespace nibble::quant {
namespace {

using tensor::DType;
using tensor::Shape;

const std::string kModule = "model.layers.0.mlp.up_proj";

tensor::TensorInfo info(const char* suffix, DType dtype, Shape shape) {
  tensor::TensorInfo out;
  out.name = kModule + "." + suffix;
  out.dtype = dtype;
  out.shape = std::move(shape);
  return out;
}

struct Read {
  Result<FloatScales> scales;
  ScaledCodes codes;
};

Read read(const LinearLayer& layer, DType type, Shape codes, DType scale_type, Shape scale,
          const FloatClaims& claims = {{}, "block_size", ""}) {
  ScaledCodes out;
  auto scales = read_stored_floats(layer, info("weight", type, std::move(codes)),
                                   info("weight_scale", scale_type, std::move(scale)), claims, out);
  return {std::move(scales), std::move(out)};
}

const LinearLayer kLayer = {kModule, 16, 72, false, {}};

void expect(const Read& read, FloatScales scales, Codes codes, int64_t group_n, int64_t group_k) {
  ASSERT_TRUE(read.scales) << message(read.scales);
  EXPECT_EQ(*read.scales, scales);
  EXPECT_EQ(read.codes.codes, codes);
  EXPECT_EQ(read.codes.area.n, group_n);
  EXPECT_EQ(read.codes.area.k, group_k);
}

TEST(stored_floats, types_and_shapes_tell_the_formats_apart_also_with_a_short_last_group) {
  using S = FloatScales;
  using C = Codes;
  expect(read(kLayer, DType::kE4M3, {16, 72}, DType::kF32, {}), S::kPlain, C::kBytes, 0, 0);
  expect(read(kLayer, DType::kE5M2, {16, 72}, DType::kBF16, {16, 1}), S::kPlain, C::kBytes, 1, 0);
  expect(read(kLayer, DType::kE4M3, {16, 72}, DType::kF32, {2, 2}, {{8, 64}, "block_size", ""}),
         S::kPlain, C::kBytes, 8, 64);
  expect(read(kLayer, DType::kE4M3, {16, 72}, DType::kU8, {16, 3}), S::kPowersOfTwo, C::kBytes, 1,
         32);
  expect(read(kLayer, DType::kU8, {16, 36}, DType::kE8M0, {16, 3}), S::kPowersOfTwo, C::kNibblesK,
         1, 32);
  expect(read(kLayer, DType::kU8, {16, 36}, DType::kE4M3, {16, 5}), S::kE4M3, C::kNibblesK, 1, 16);
  expect(read(kLayer, DType::kU8, {16, 36}, DType::kF16, {16, 3}), S::kPlain, C::kNibblesK, 1, 24);
  expect(read(kLayer, DType::kU8, {16, 54}, DType::kU8, {16, 3}, {{}, "block_size", "e2m3"}),
         S::kPowersOfTwo, C::kE2M3, 1, 32);
  expect(read(kLayer, DType::kU8, {16, 54}, DType::kF32, {16}, {{}, "block_size", "e3m2"}),
         S::kPlain, C::kE3M2, 1, 0);
}

TEST(stored_floats, what_is_none_of_them_is_refused_with_the_sizes) {
  EXPECT_EQ(message(read(kLayer, DType::kU8, {16, 72}, DType::kF32, {}).scales),
            kModule +
                ".weight u8 (16, 72): of floats of a byte or less fp8 (N, K), and as u8 fp6 (N, "
                "3K/4) and fp4 (N, K/2) are read; N is 16 and K 72");
  EXPECT_EQ(message(read(kLayer, DType::kU8, {16, 54}, DType::kU8, {16, 3}).scales),
            kModule +
                ".weight u8 (16, 54) has 6 bits for each of 72 inputs, but its dtype is \"\", "
                "neither fp6_e2m3 nor fp6_e3m2");
  EXPECT_EQ(message(read(kLayer, DType::kU8, {16, 36}, DType::kU8, {16, 5}).scales),
            kModule +
                ".weight_scale is (16, 5), but a scale that is a power of two says blocks of 1 x "
                "32, which makes (16, 3)");
  EXPECT_EQ(message(read(kLayer, DType::kU8, {16, 36}, DType::kE4M3, {16, 3}).scales),
            kModule +
                ".weight_scale is (16, 3), but a scale of e4m3 says blocks of 1 x 16, which "
                "makes (16, 5)");
  EXPECT_EQ(message(read(kLayer, DType::kU8, {16, 36}, DType::kF32, {16, 7}).scales),
            kModule + ".weight_scale (16, 7): 7 groups of one size do not cover 72 inputs");
}

}  // namespace
}  // namespace nibble::quant
