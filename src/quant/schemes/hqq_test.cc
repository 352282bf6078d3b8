#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>

#include "base/number.h"
#include "quant/test_support.h"

namespace nibble::quant {
namespace {

using tensor::DType;

const std::string kModule = "model.layers.0.mlp.up_proj";
const std::string kConfig = R"({"quant_method": "hqq", "quant_config": {"weight_quant_params":
    {"nbits": 4, "group_size": 64, "axis": 1}}, "skip_modules": ["lm_head"]})";

// One layer, packed as the format says.
struct Encoder {
  int64_t n = 4, k = 64, group = 32, bits = 4;
  bool by_row = true;
  std::vector<uint8_t> code;  // (R, C)
  std::vector<float> scale, zero;

  int64_t rows() const { return by_row ? n * k / group : group; }
  int64_t columns() const { return n * k / rows(); }
  int64_t groups() const { return n * k / group; }

  void fill(uint32_t seed) {
    std::mt19937 random(seed);
    code.resize(static_cast<size_t>(n * k));
    for (uint8_t& c : code) c = static_cast<uint8_t>(random() & ((1u << bits) - 1));
    // f16 values, as the tool has them.
    const auto number = [&](float low, float high) {
      const float v = std::uniform_real_distribution<float>(low, high)(random);
      return base::f32_from_f16(base::f16_from_f32(v));
    };
    for (int64_t g = 0; g < groups(); ++g) {
      scale.push_back(number(0.01f, 0.3f));
      zero.push_back(number(0.1f, static_cast<float>(1 << bits)));
    }
  }

  TestCheckpoint checkpoint() const {
    TestCheckpoint out;
    const int64_t parts = bits == 3 ? 10 : 8 / bits;
    const int64_t step = (rows() + parts - 1) / parts;
    std::vector<uint32_t> words(static_cast<size_t>(step * columns()));
    for (int64_t r = 0; r < rows(); ++r) {
      for (int64_t c = 0; c < columns(); ++c) {
        const uint32_t q = code[static_cast<size_t>(r * columns() + c)];
        words[static_cast<size_t>(r % step * columns() + c)] |= q << bits * (parts - 1 - r / step);
      }
    }
    if (bits == 3) {
      out.add(kModule + ".W_q", DType::kS32, {step, columns()}, words);
    } else {
      out.add(kModule + ".W_q", DType::kU8, {step, columns()},
              std::vector<uint8_t>(words.begin(), words.end()));
    }
    const tensor::Shape shape = by_row ? tensor::Shape{groups(), 1} : tensor::Shape{1, groups()};
    out.add(kModule + ".scale", DType::kF32, shape, scale);
    out.add(kModule + ".zero", DType::kF32, shape, zero);
    out.add(kModule + ".nbits", DType::kS32, {1}, std::vector<int32_t>{static_cast<int32_t>(bits)});
    return out;
  }

  LinearLayer layer() const { return {kModule, n, k, false, {}}; }

  std::vector<float> expected() const {
    std::vector<float> out;
    for (int64_t i = 0; i < n * k; ++i) {
      const auto g = static_cast<size_t>(by_row ? i / group : i % columns());
      out.push_back((static_cast<float>(code[static_cast<size_t>(i)]) - zero[g]) * scale[g]);
    }
    return out;
  }
};

TEST(hqq, every_width_axis_and_group_is_decoded_as_it_was_encoded) {
  uint32_t seed = 20261130;
  for (int64_t bits : {8, 4, 3, 2, 1}) {
    for (const bool by_row : {true, false}) {
      for (const auto& [n, k, group] :
           {std::tuple<int64_t, int64_t, int64_t>{4, 64, 32}, {8, 96, 64}, {16, 16, 64}}) {
        Encoder e;
        e.bits = bits, e.by_row = by_row, e.n = n, e.k = k, e.group = group;
        e.fill(++seed);
        if (e.rows() % (bits == 3 ? 1 : 8 / bits) != 0) continue;
        const auto weight = load_layer(e.checkpoint(), kConfig, e.layer());
        ASSERT_TRUE(weight) << message(weight);
        ASSERT_EQ(dequantize(*weight), e.expected())
            << bits << " bits, axis " << by_row << ", " << n << "x" << k << " g" << group;
      }
    }
  }
}

TEST(hqq, formats_are_groups_with_offsets_or_floats) {
  Encoder e;
  e.fill(1);
  EXPECT_EQ(tensor::to_string(load_layer(e.checkpoint(), kConfig, e.layer())->format), "u4g32+min");
  e.k = 96, e.group = 64;
  e.scale.clear(), e.zero.clear();
  e.fill(2);
  EXPECT_EQ(tensor::to_string(load_layer(e.checkpoint(), kConfig, e.layer())->format), "u4g32+min");
  e.by_row = false;
  EXPECT_EQ(tensor::to_string(load_layer(e.checkpoint(), kConfig, e.layer())->format),
            "hqq axis 0 as f32");
}

TEST(hqq, codes_may_be_viewed_as_floats) {
  Encoder e;
  e.fill(3);
  TestCheckpoint checkpoint = e.checkpoint();
  const tensor::TensorView view = checkpoint.view(kModule + ".W_q");
  checkpoint.add_bytes(kModule + ".W_q", DType::kBF16, {4, 16},
                       std::string(reinterpret_cast<const char*>(view.data), view.bytes));
  const auto weight = load_layer(checkpoint, kConfig, e.layer());
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(dequantize(*weight), e.expected());
}

TEST(hqq, three_and_four_bits_of_as_many_bytes_are_told_apart_by_the_config) {
  Encoder e;
  e.bits = 3;
  e.fill(6);
  TestCheckpoint checkpoint = e.checkpoint();
  const tensor::TensorView view = checkpoint.view(kModule + ".W_q");
  checkpoint.add_bytes(kModule + ".W_q", DType::kF16, {1, 64},
                       std::string(reinterpret_cast<const char*>(view.data), view.bytes));
  std::string config = kConfig;
  config.replace(config.find("\"nbits\": 4"), 10, "\"nbits\": 3");
  const auto weight = load_layer(checkpoint, config, e.layer());
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(dequantize(*weight), e.expected());
}

TEST(hqq, what_describes_the_layout_again_is_known_and_not_read) {
  Encoder e;
  e.fill(4);
  const TestCheckpoint checkpoint = e.checkpoint();
  const auto config = parse_config(checkpoint, kConfig);
  const auto method = (*config)->linear_method(e.layer(), checkpoint.lookup());
  ASSERT_TRUE(method) << message(method);
  const auto specs = (*method)->create_weights();
  EXPECT_EQ(specs.back().suffix, "nbits");
  EXPECT_EQ(specs.back().unused, "the shapes of W_q and scale say it");
}

TEST(hqq, a_layer_without_codes_is_unquantized) {
  TestCheckpoint checkpoint;
  checkpoint.add("lm_head.weight", DType::kF32, {1, 2}, std::vector<float>{1, 2});
  const auto config = parse_config(checkpoint, kConfig);
  EXPECT_EQ(
      (*(*config)->linear_method({"lm_head", 1, 2, false, {}}, checkpoint.lookup()))->scheme(),
      "unquantized");
}

TEST(hqq, scales_and_zero_points_that_are_codes_are_computed_in_the_type_of_their_scale) {
  Encoder e;
  e.fill(7);
  TestCheckpoint checkpoint = e.checkpoint();
  const std::vector<float> first = e.expected();
  std::vector<uint8_t> codes, joined;
  const float unit = base::f32_from_f16(base::f16_from_f32(0.031f)), zero = 2.5f;
  for (size_t i = 0; i < e.zero.size(); ++i) {
    codes.push_back(static_cast<uint8_t>(40 + 23 * i));
    const float above = static_cast<float>(codes.back()) - zero;
    e.zero[i] = base::f32_from_f16(base::f16_from_f32(above * unit));
  }
  checkpoint.remove(kModule + ".zero");
  checkpoint.add(kModule + ".meta.zero_q", DType::kU8, {8, 1}, codes);
  checkpoint.add(kModule + ".meta.meta_zero.scale", DType::kF16, {},
                 std::vector<uint16_t>{base::f16_from_f32(unit)});
  checkpoint.add(kModule + ".meta.meta_zero.zero", DType::kF16, {},
                 std::vector<uint16_t>{base::f16_from_f32(zero)});
  auto weight = load_layer(checkpoint, "{}", e.layer());
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(dequantize(*weight), e.expected());
  EXPECT_NE(dequantize(*weight), first);

  // Both in one tensor, their scales for every second code.
  for (size_t i = 0; i < e.scale.size(); ++i) {
    joined.push_back(static_cast<uint8_t>(3 + 5 * i));
    const float scale = i % 2 == 0 ? 0.5f : 0.25f;
    e.scale[i] = static_cast<float>(joined.back()) * scale;
  }
  codes.insert(codes.end(), joined.begin(), joined.end());
  checkpoint.remove(kModule + ".scale");
  checkpoint.remove(kModule + ".meta.zero_q");
  checkpoint.add(kModule + ".meta.zero_scale", DType::kU8, {2, 4, 2}, codes);
  checkpoint.add(kModule + ".meta.meta_scale.scale", DType::kF16, {1, 2},
                 std::vector<uint16_t>{base::f16_from_f32(0.5f), base::f16_from_f32(0.25f)});
  checkpoint.add(kModule + ".meta.meta_scale.zero", DType::kF16, {1, 2}, std::vector<uint16_t>(2));
  weight = load_layer(checkpoint, "{}", e.layer());
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(dequantize(*weight), e.expected());
}

TEST(hqq, tensors_that_do_not_fit_are_refused_with_their_numbers) {
  Encoder e;
  e.fill(5);
  TestCheckpoint checkpoint = e.checkpoint();
  checkpoint.add(kModule + ".W_q", DType::kU8, {3, 32}, std::vector<uint8_t>(96));
  EXPECT_EQ(message(load_layer(checkpoint, kConfig, e.layer())),
            "model.layers.0.mlp.up_proj.W_q u8 (3, 32): its bytes are those of no width of 8, 4, "
            "3, 2 or 1 bits for 256 weights in groups of 32");
  checkpoint = e.checkpoint();
  checkpoint.add(kModule + ".scale", DType::kF32, {7, 1}, std::vector<float>(7, 1.0f));
  EXPECT_EQ(message(load_layer(checkpoint, kConfig, e.layer())),
            "model.layers.0.mlp.up_proj.scale (7, 1): 256 weights do not divide into 7 groups");
  checkpoint.remove(kModule + ".scale");
  EXPECT_EQ(message(load_layer(checkpoint, kConfig, e.layer())),
            "model.layers.0.mlp.up_proj.W_q is stored, but model.layers.0.mlp.up_proj.scale is "
            "missing");
  checkpoint = e.checkpoint();
  checkpoint.remove(kModule + ".zero");
  EXPECT_EQ(message(load_layer(checkpoint, kConfig, e.layer())),
            "model.layers.0.mlp.up_proj.W_q is stored, but model.layers.0.mlp.up_proj.zero is "
            "missing");
  checkpoint.add(kModule + ".zero_q", DType::kU8, {8, 1}, std::vector<uint8_t>(8));
  EXPECT_EQ(message(load_layer(checkpoint, kConfig, e.layer())),
            "missing model.layers.0.mlp.up_proj.meta_zero.scale");
  checkpoint.add(kModule + ".meta_zero.scale", DType::kF16, {1, 3}, std::vector<uint16_t>(3));
  checkpoint.add(kModule + ".meta_zero.zero", DType::kF16, {1, 3}, std::vector<uint16_t>(3));
  EXPECT_EQ(message(load_layer(checkpoint, kConfig, e.layer())),
            "meta_zero.scale (1, 3): 8 codes do not divide into 3 groups");
  checkpoint = e.checkpoint();
  checkpoint.add(kModule + ".zero", DType::kF32, {4, 1}, std::vector<float>(4, 1.0f));
  EXPECT_EQ(message(load_layer(checkpoint, kConfig, e.layer())),
            "zero: expected (8), found f32 (4, 1) of 16 bytes");
}

}  // namespace
}  // namespace nibble::quant
