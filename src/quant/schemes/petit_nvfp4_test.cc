#include <gtest/gtest.h>

#include "quant/test_support.h"

namespace nibble::quant {
namespace {

using tensor::DType;

const std::string kModule = "mlp.up_proj";
const LinearLayer kLayer{kModule, 4, 32, false, {}};

std::string nested(const std::string& algo) {
  return R"({"quant_method": "petit_nvfp4", "quantization": {"quant_algo": ")" + algo +
         R"(", "group_size": 16, "kv_cache_quant_algo": null, "exclude_modules": ["lm_head"]}})";
}

TestCheckpoint nvfp4() {
  TestCheckpoint out;
  out.add(kModule + ".weight", DType::kU8, {4, 16}, std::vector<uint8_t>(64, 0x72));
  out.add(kModule + ".weight_scale", DType::kE4M3, {4, 2}, std::vector<uint8_t>(8, 0x39));
  out.add<float>(kModule + ".weight_scale_2", DType::kF32, {}, {0.3f});
  out.add<float>(kModule + ".input_scale", DType::kF32, {}, {0.25f});
  return out;
}

TEST(petit_nvfp4, weights_are_nvfp4_and_activations_stay_floats) {
  const TestCheckpoint checkpoint = nvfp4();
  const auto weight = load_layer(checkpoint, nested("NVFP4"), kLayer);
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(tensor::to_string(weight->format), "e2m1g16");
  EXPECT_EQ(tensor::to_string(weight->activation), "float");
  EXPECT_EQ(dequantize(*weight)[0], 1.0f * (1.125f * 0.3f));
  EXPECT_EQ(dequantize(*weight)[1], 6.0f * (1.125f * 0.3f));
  const auto config = parse_config(checkpoint, nested("NVFP4"));
  ASSERT_TRUE(config) << message(config);
  EXPECT_EQ((*config)->warnings, std::vector<std::string>{});
  const auto method = (*config)->linear_method(kLayer, checkpoint.lookup());
  EXPECT_EQ((*method)->scheme(), "petit_nvfp4");
  const WeightSpec input_scale = (*method)->create_weights().back();
  EXPECT_EQ(input_scale.slot, Slot::kUnused);
  EXPECT_EQ(input_scale.unused, "the activations are not quantized");
}

TEST(petit_nvfp4, another_type_in_the_nested_config_is_refused) {
  EXPECT_EQ(message(parse_config(nvfp4(), nested("FP8"))),
            "config.json: quantization_config: quantization: quant_algo is \"FP8\", but "
            "quant_method petit_nvfp4 is for NVFP4");
  EXPECT_EQ(message(parse_config(nvfp4(), R"({"quant_method": "petit_nvfp4"})")),
            "config.json: quantization_config: quant_algo is \"\", but quant_method petit_nvfp4 is "
            "for NVFP4");
}

TEST(petit_nvfp4, a_sidecar_that_says_something_else_is_refused_with_both_sides) {
  const auto sidecar =
      base::parse_json(R"({"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}})",
                       "hf_quant_config.json");
  const auto own = base::parse_json(nested("NVFP4"), "config.json: quantization_config");
  ASSERT_TRUE(sidecar && own);
  const TestCheckpoint checkpoint = nvfp4();
  CheckpointFacts facts;
  facts.quantization = &*own;
  facts.quantization_where = "config.json: quantization_config";
  facts.method = "petit_nvfp4";
  facts.hf_quant_config = &*sidecar;
  facts.tensors = checkpoint.lookup();
  const auto scheme = detect_scheme(facts, "");
  ASSERT_TRUE(scheme) << message(scheme);
  EXPECT_EQ(message((*scheme)->parse(facts)),
            "config.json: quantization_config: quantization: quant_algo is NVFP4 with group_size "
            "16, but hf_quant_config.json: quantization says FP8; keep the one that is true");
}

TEST(petit_nvfp4, the_name_may_be_asked_for_over_a_folder_of_modelopt) {
  CheckpointFacts facts;
  facts.method = "modelopt";
  facts.quantization_where = "config.json: quantization_config";
  const auto scheme = detect_scheme(facts, "petit_nvfp4");
  ASSERT_TRUE(scheme) << message(scheme);
  EXPECT_EQ((*scheme)->name, "modelopt");
  facts.method = "awq";
  EXPECT_EQ(message(detect_scheme(facts, "petit_nvfp4")),
            "the scheme \"petit_nvfp4\" was asked for, but config.json: quantization_config says "
            "\"awq\"");
}

}  // namespace
}  // namespace nibble::quant
