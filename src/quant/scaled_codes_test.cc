#include "quant/scaled_codes.h"

#include <gtest/gtest.h>

#include "quant/test_support.h"

namespace nibble::quant {
namespace {

using tensor::DType;
using tensor::Element;

const std::string kModule = "mlp.up_proj";

// The layer through the verbs, without a config.
Result<tensor::QuantizedWeight> load(const TestCheckpoint& checkpoint, const LinearLayer& layer,
                                     const ScaledCodes& codes) {
  const auto method = scaled_codes_method(layer, checkpoint.lookup(), codes);
  NIBBLE_ASSIGN(const RawWeights raw, load_whole(checkpoint, layer, *method));
  NIBBLE_ASSIGN(auto weight, method->process_weights_after_loading(layer.n, layer.k, raw));
  EXPECT_EQ(weight.format, method->weight_format());
  return weight;
}

TEST(scaled_codes, the_low_half_of_a_byte_is_the_even_input) {
  TestCheckpoint checkpoint;
  checkpoint.add<uint8_t>(kModule + ".weight", DType::kU8, {2, 2}, {0xf2, 0x10, 0x7a, 0x80});
  checkpoint.add<uint8_t>(kModule + ".weight_scale", DType::kU8, {2, 1}, {127, 126});
  const ScaledCodes codes{.element = Element::kE2M1,
                          .codes = Codes::kNibblesK,
                          .code_types = {DType::kU8},
                          .area = {1, 32}};
  const auto weight = load(checkpoint, {kModule, 2, 4, false, {}}, codes);
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(tensor::to_string(weight->format), "e2m1g32");
  EXPECT_EQ(weight->format.scale_type, DType::kE8M0);
  EXPECT_EQ(dequantize(*weight), (std::vector<float>{1, -6, 0, 0.5f, -0.5f, 3, 0, -0.0f}));
}

TEST(scaled_codes, the_low_half_of_a_byte_is_the_even_output_and_signed) {
  TestCheckpoint checkpoint;
  checkpoint.add<uint8_t>(kModule + ".weight", DType::kU8, {1, 3}, {0xf1, 0x87, 0x08});
  checkpoint.add<float>(kModule + ".weight_scale", DType::kF32, {2, 1}, {1, 0.5f});
  const ScaledCodes codes{.element = Element::kS4,
                          .codes = Codes::kNibblesN,
                          .code_types = {DType::kU8},
                          .area = {1, 128}};
  const auto weight = load(checkpoint, {kModule, 2, 3, false, {}}, codes);
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(dequantize(*weight), (std::vector<float>{1, 7, -8, -0.5f, -4, 0}));
}

TEST(scaled_codes, a_rank_never_has_a_fraction_of_a_part) {
  TestCheckpoint checkpoint;
  checkpoint.add<uint8_t>(kModule + ".weight", DType::kE4M3, {4, 1}, {1, 2, 3, 4});
  checkpoint.add<float>(kModule + ".weight_scale", DType::kF32, {2}, {1, 2});
  const ScaledCodes codes{
      .element = Element::kE4M3, .code_types = {DType::kE4M3}, .area = {1, 0, true}};
  const LinearLayer layer{kModule, 4, 1, false, {3, 1}};
  const auto method = scaled_codes_method(layer, checkpoint.lookup(), codes);
  auto raw = load_whole(checkpoint, layer, *method);
  ASSERT_TRUE(raw) << message(raw);
  tensor::TensorView half = *raw->get(Slot::kWeight);
  half.shape = {2, 1};
  half.bytes = 2;
  raw->set(Slot::kWeight, half);
  const auto weight = method->process_weights_after_loading(2, 1, *raw);
  EXPECT_EQ(message(weight),
            "a rank with 2 of 4 outputs would have a fraction of the 3 of part 0; use fewer ranks");
}

TEST(scaled_codes, blocks_of_32_inputs_are_16_bytes) {
  TestCheckpoint checkpoint;
  std::vector<uint8_t> bytes(2 * 2 * 16, 0);
  bytes[16] = 0x21;  // output 0, inputs 32 and 33
  bytes[63] = 0x70;  // output 1, input 63
  checkpoint.add(kModule + ".blocks", DType::kU8, {2, 2, 16}, bytes);
  checkpoint.add<uint8_t>(kModule + ".scales", DType::kU8, {2, 2}, {1, 128, 0, 129});
  const ScaledCodes codes{.element = Element::kE2M1,
                          .codes = Codes::kBlocks,
                          .code_types = {DType::kU8},
                          .weight = "blocks",
                          .scale = "scales",
                          .area = {1, 32}};
  const auto weight = load(checkpoint, {kModule, 2, 64, false, {}}, codes);
  ASSERT_TRUE(weight) << message(weight);
  const std::vector<float> w = dequantize(*weight);
  EXPECT_EQ(w[32], 1.0f);
  EXPECT_EQ(w[33], 2.0f);
  EXPECT_EQ(w[127], 24.0f);
  EXPECT_EQ(weight->scale[2], 0x1p-127f);  // byte 0 is no zero
}

TEST(scaled_codes, a_second_scale_multiplies_or_divides_the_first_in_float32) {
  TestCheckpoint checkpoint;
  checkpoint.add<uint8_t>(kModule + ".weight", DType::kU8, {1, 16}, std::vector<uint8_t>(16, 0x22));
  checkpoint.add<uint8_t>(kModule + ".weight_scale", DType::kE4M3, {1, 2}, {0x39, 0x00});
  checkpoint.add<float>(kModule + ".weight_scale_2", DType::kF32, {}, {0.3f});
  ScaledCodes codes{.element = Element::kE2M1,
                    .codes = Codes::kNibblesK,
                    .code_types = {DType::kU8},
                    .area = {1, 16},
                    .scale2 = "weight_scale_2"};
  const LinearLayer layer{kModule, 1, 32, false, {}};
  auto weight = load(checkpoint, layer, codes);
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(weight->scale, (std::vector<float>{1.125f * 0.3f, 0}));  // rounded to 0 by the writer
  EXPECT_EQ(weight->format.scale_type, DType::kF32);
  codes.scale2_divides = true;
  weight = load(checkpoint, layer, codes);
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(weight->scale, (std::vector<float>{1.125f / 0.3f, 0}));
  checkpoint.add<float>(kModule + ".weight_scale_2", DType::kF32, {}, {0});
  EXPECT_EQ(message(load(checkpoint, layer, codes)), "weight_scale_2 is 0; a scale is positive");
  checkpoint.remove(kModule + ".weight_scale_2");
  EXPECT_EQ(message(load(checkpoint, layer, codes)), "missing mlp.up_proj.weight_scale_2");
  checkpoint.add<uint8_t>(kModule + ".weight_scale", DType::kE4M3, {1, 2}, {0x39, 0x7f});
  checkpoint.add<float>(kModule + ".weight_scale_2", DType::kF32, {}, {1});
  EXPECT_EQ(message(load(checkpoint, layer, codes)),
            "weight_scale: element (0, 1) is nan; the file is damaged");
}

TEST(scaled_codes, an_input_factor_is_kept_for_the_inputs) {
  TestCheckpoint checkpoint;
  checkpoint.add<int8_t>(kModule + ".weight", DType::kS8, {1, 2}, {-128, 3});
  checkpoint.add<float>(kModule + ".weight_scale", DType::kF32, {1}, {0.5f});
  checkpoint.add<uint16_t>(kModule + ".pre_quant_scale", DType::kBF16, {2}, {0x3f80, 0x4000});
  const ScaledCodes codes{.element = Element::kS8,
                          .code_types = {DType::kS8},
                          .area = kPerOutput,
                          .input_factor = "pre_quant_scale"};
  const auto weight = load(checkpoint, {kModule, 1, 2, false, {}}, codes);
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(dequantize(*weight), (std::vector<float>{-64, 1.5f}));
  EXPECT_EQ(weight->input_factor, (std::vector<float>{1, 2}));
}

TEST(scaled_codes, a_scale_of_no_elements_is_no_scale_per_part) {
  tensor::TensorInfo scale;
  scale.name = "weight_scale";
  scale.shape = {0};
  EXPECT_EQ(message(area_of({kModule, 4, 8, false, {}}, scale, {}, "weight_block_size")),
            "weight_scale: (0) is neither one scale nor one per output (4), and weight_block_size "
            "is not given");
}

}  // namespace
}  // namespace nibble::quant
