#include <gtest/gtest.h>

#include "quant/test_support.h"

namespace nibble::quant {
namespace {

using tensor::DType;

LinearLayer layer() { return {"model.layers.0.mlp.up_proj", 2, 3, false, {}}; }

Result<std::unique_ptr<QuantizationConfig>> parse_plain(const TestCheckpoint& checkpoint,
                                                        const base::Json* dictionary = nullptr) {
  CheckpointFacts facts;
  facts.quantization = dictionary;
  facts.quantization_where = "config.json: quantization_config";
  facts.tensors = checkpoint.lookup();
  NIBBLE_ASSIGN(const Scheme* scheme, detect_scheme(facts, ""));
  EXPECT_EQ(scheme->name, "unquantized");
  return scheme->parse(facts);
}

TEST(unquantized, bf16_is_used_where_it_lies) {
  TestCheckpoint checkpoint;
  checkpoint.add<uint16_t>("model.layers.0.mlp.up_proj.weight", DType::kBF16, {2, 3},
                           {0x3f80, 0x4000, 0xbf80, 0, 0x8000, 0x3f00});
  const auto config = parse_plain(checkpoint);
  ASSERT_TRUE(config);
  const auto method = (*config)->linear_method(layer(), checkpoint.lookup());
  ASSERT_TRUE(method);
  EXPECT_EQ(tensor::to_string((*method)->weight_format()), "bf16");
  const auto raw = load_whole(checkpoint, layer(), **method);
  ASSERT_TRUE(raw);
  const auto weight = (*method)->process_weights_after_loading(2, 3, *raw);
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(weight->code.data, checkpoint.view("model.layers.0.mlp.up_proj.weight").data);
  EXPECT_EQ(dequantize(*weight), (std::vector<float>{1, 2, -1, 0, -0.0f, 0.5f}));
}

TEST(unquantized, f64_is_rounded_to_f32_and_says_so) {
  TestCheckpoint checkpoint;
  checkpoint.add<double>("model.layers.0.mlp.up_proj.weight", DType::kF64, {2, 3},
                         {0.1, 1, 2, 3, 4, 5});
  const auto config = parse_plain(checkpoint);
  ASSERT_TRUE(config);
  const auto method = (*config)->linear_method(layer(), checkpoint.lookup());
  ASSERT_TRUE(method);
  EXPECT_EQ(tensor::to_string((*method)->weight_format()), "f64 as f32");
  const auto raw = load_whole(checkpoint, layer(), **method);
  const auto weight = (*method)->process_weights_after_loading(2, 3, *raw);
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(dequantize(*weight), (std::vector<float>{0.1f, 1, 2, 3, 4, 5}));
}

TEST(unquantized, quantized_tensors_without_a_config_are_refused) {
  TestCheckpoint checkpoint;
  checkpoint.add<int32_t>("model.layers.0.mlp.up_proj.qweight", DType::kS32, {1, 2}, {0, 0});
  EXPECT_EQ(
      message(parse_plain(checkpoint)),
      "the checkpoint has no quantization_config, but model.layers.0.mlp.up_proj.qweight is "
      "stored as s32 (1, 2); name the scheme with --quantization, or give its lost config with "
      "--quantization-config");
  const base::Json stub = json(R"({"version": "0.6.0"})");
  EXPECT_EQ(message(parse_plain(checkpoint, &stub)),
            "config.json: quantization_config has no quant_method, but "
            "model.layers.0.mlp.up_proj.qweight is stored as s32 (1, 2); name the scheme with "
            "--quantization");
}

TEST(unquantized, tensors_of_gptq_and_awq_without_a_config_are_known_by_their_names) {
  TestCheckpoint checkpoint;
  const auto add = [&](const std::string& suffix, tensor::Shape shape) {
    checkpoint.add("a." + suffix, DType::kS32, shape,
                   std::vector<int32_t>(static_cast<size_t>(*tensor::element_count(shape))));
  };
  const std::string start =
      "the checkpoint has no quantization_config, but a.qweight is stored as s32 (8, 2); name the "
      "scheme with --quantization, or give its lost config with --quantization-config";
  add("qweight", {8, 2});
  EXPECT_EQ(message(parse_plain(checkpoint)), start);
  add("scales", {1, 16});
  EXPECT_EQ(message(parse_plain(checkpoint)),
            start +
                "; its tensors are named as awq's, which --quantization awq reads by their "
                "shapes");
  add("g_idx", {16});
  EXPECT_EQ(message(parse_plain(checkpoint)),
            start +
                "; its tensors are named as gptq's, which --quantization gptq reads by their "
                "shapes");
}

TEST(unquantized, a_scale_of_no_elements_makes_nothing_quantized) {
  TestCheckpoint checkpoint;
  checkpoint.add<uint16_t>("model.layers.0.mlp.up_proj.weight_scale", DType::kBF16, {0}, {});
  const auto config = parse_plain(checkpoint, nullptr);
  EXPECT_TRUE(config) << message(config);
}

TEST(unquantized, an_empty_claim_over_plain_tensors_is_noted) {
  TestCheckpoint checkpoint;
  checkpoint.add<uint16_t>("model.norm.weight", DType::kBF16, {2}, {0x3f80, 0x3f80});
  const base::Json stub = json(R"({"version": "0.6.0"})");
  const auto config = parse_plain(checkpoint, &stub);
  ASSERT_TRUE(config) << message(config);
  EXPECT_EQ((*config)->notes,
            (std::vector<std::string>{
                "config.json: quantization_config has no quant_method and no tensor is quantized: "
                "read as an unquantized checkpoint"}));
}

TEST(unquantized, a_bias_that_only_the_checkpoint_has_is_optional) {
  TestCheckpoint checkpoint;
  checkpoint.add<uint16_t>("model.layers.0.mlp.up_proj.weight", DType::kBF16, {2, 3},
                           std::vector<uint16_t>(6));
  auto specs_for = [&](bool declared) {
    LinearLayer with = layer();
    with.bias = declared;
    return (*unquantized_method(with, checkpoint.lookup()))->create_weights();
  };
  EXPECT_EQ(specs_for(false).size(), 1u);
  ASSERT_EQ(specs_for(true).size(), 2u);
  EXPECT_TRUE(specs_for(true)[1].required);
  checkpoint.add<uint16_t>("model.layers.0.mlp.up_proj.bias", DType::kBF16, {2}, {0, 0});
  ASSERT_EQ(specs_for(false).size(), 2u);
  EXPECT_FALSE(specs_for(false)[1].required);
  EXPECT_EQ(specs_for(false)[1].slot, Slot::kBias);
}

}  // namespace
}  // namespace nibble::quant
