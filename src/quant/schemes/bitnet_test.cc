#include <fmt/format.h>
#include <gtest/gtest.h>

#include "quant/test_support.h"

namespace nibble::quant {
namespace {

using tensor::DType;

const std::string kModule = "model.layers.0.mlp.up_proj";
const std::string kBit = R"({"quant_method": "bitnet", "modules_to_not_convert": ["lm_head"]})";
const std::string kAuto = R"({"quant_method": "bitnet", "linear_class": "autobitlinear"})";
const std::string kOnline = R"({"quant_method": "bitnet", "linear_class": "autobitlinear",
    "quantization_mode": "online", "modules_to_not_convert": ["lm_head", "layers.1"]})";

TEST(bitnet, a_byte_holds_a_row_of_each_quarter) {
  TestCheckpoint checkpoint;
  // transformers' own example, columns apart: 0b10100001 is 0, -1, 1, 1 for rows 0, 2, 4 and 6.
  checkpoint.add(kModule + ".weight", DType::kU8, {2, 2},
                 std::vector<uint8_t>{0b10100001, 0b00011000, 0b10010000, 0b00001010});
  checkpoint.add(kModule + ".weight_scale", DType::kF32, {1}, std::vector<float>{4});
  const LinearLayer layer{kModule, 8, 2, false, {}};
  std::vector<float> digits = {0, -1, -1, 1, -1, 1, -1, 1, 1, 0, 0, -1, 1, -1, 1, -1};
  const auto multiplied = load_layer(checkpoint, kAuto, layer);
  ASSERT_TRUE(multiplied) << message(multiplied);
  for (float& d : digits) d *= 4;
  EXPECT_EQ(dequantize(*multiplied), digits);
  const auto divided = load_layer(checkpoint, kBit, layer);
  ASSERT_TRUE(divided) << message(divided);
  for (float& d : digits) d /= 16;
  EXPECT_EQ(dequantize(*divided), digits);
  EXPECT_EQ(tensor::to_string(divided->format), "s2t");
  EXPECT_EQ(tensor::to_string(divided->activation), "s8 token");
}

TEST(bitnet, the_last_quarter_may_be_short) {
  TestCheckpoint checkpoint;
  checkpoint.add(kModule + ".weight", DType::kU8, {2, 1}, std::vector<uint8_t>{0b100100, 0b001001});
  checkpoint.add(kModule + ".weight_scale", DType::kF32, {}, std::vector<float>{1});
  const auto weight = load_layer(checkpoint, kAuto, {kModule, 5, 1, false, {}});
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(dequantize(*weight), (std::vector<float>{-1, 0, 0, 1, 1}));
}

TEST(bitnet, digits_may_be_stored_as_floats) {
  TestCheckpoint checkpoint;
  checkpoint.add(kModule + ".weight", DType::kF32, {1, 3}, std::vector<float>{-1, 0, 1});
  checkpoint.add(kModule + ".weight_scale", DType::kF32, {1}, std::vector<float>{0.5f});
  const LinearLayer layer{kModule, 1, 3, false, {}};
  const auto weight = load_layer(checkpoint, kAuto, layer);
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(dequantize(*weight), (std::vector<float>{-0.5f, 0, 0.5f}));
  checkpoint.add(kModule + ".weight", DType::kF32, {1, 3}, std::vector<float>{-1, 0.25f, 1});
  EXPECT_EQ(message(load_layer(checkpoint, kAuto, layer)),
            "weight: element (0, 1) is 0.25; beside a weight_scale, weights are -1, 0 or 1");
}

TEST(bitnet, online_rounds_floats_by_their_mean_but_for_those_left_alone) {
  TestCheckpoint checkpoint;
  const std::vector<float> floats = {0.1f, -0.9f, 1.0f, 0.0f};
  for (const char* module :
       {"model.layers.0.mlp.up_proj", "model.layers.1.mlp.up_proj", "lm_head"}) {
    checkpoint.add(std::string(module) + ".weight", DType::kF32, {1, 4}, floats);
  }
  const auto weight = load_layer(checkpoint, kOnline, {kModule, 1, 4, false, {}});
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(dequantize(*weight), (std::vector<float>{0, -0.5f, 0.5f, 0}));
  for (const char* module : {"model.layers.1.mlp.up_proj", "lm_head"}) {
    const auto config = parse_config(checkpoint, kOnline);
    EXPECT_EQ((*(*config)->linear_method({module, 1, 4, false, {}}, checkpoint.lookup()))->scheme(),
              "unquantized");
  }
}

TEST(bitnet, what_is_no_ternary_weight_is_refused) {
  TestCheckpoint checkpoint;
  checkpoint.add(kModule + ".weight", DType::kU8, {1, 1}, std::vector<uint8_t>{0b11010000});
  checkpoint.add(kModule + ".weight_scale", DType::kF32, {1}, std::vector<float>{0});
  const LinearLayer layer{kModule, 4, 1, false, {}};
  EXPECT_EQ(message(load_layer(checkpoint, kBit, layer)),
            "weight: the digit of output 3, input 0 is 3; ternary digits are 0, 1 and 2");
  checkpoint.add(kModule + ".weight", DType::kU8, {1, 1}, std::vector<uint8_t>{0});
  EXPECT_EQ(message(load_layer(checkpoint, kBit, layer)),
            "weight_scale is 0, but the weights are divided by it");
  EXPECT_TRUE(load_layer(checkpoint, kAuto, layer));
  EXPECT_EQ(
      message(parse_config(checkpoint, R"({"quant_method": "bitnet", "use_rms_norm": true})")),
      "config.json: quantization_config: use_rms_norm is true: a norm in front of every "
      "linear layer is not done yet");
  EXPECT_EQ(
      message(parse_config(checkpoint, R"({"quant_method": "bitnet", "linear_class": "other"})")),
      "config.json: quantization_config: linear_class is \"other\"; known are: bitlinear, "
      "autobitlinear");
  CheckpointFacts facts;
  EXPECT_EQ(message(find_scheme("bitnet")->parse(facts)),
            "bitnet needs a quantization_config that says linear_class: it decides whether "
            "weight_scale multiplies or divides");
}

}  // namespace
}  // namespace nibble::quant
