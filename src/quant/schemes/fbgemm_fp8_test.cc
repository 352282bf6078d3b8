#include <gtest/gtest.h>

#include "quant/test_support.h"

namespace nibble::quant {
namespace {

using tensor::DType;

const std::string kModule = "mlp.up_proj";
const LinearLayer kLayer{kModule, 2, 4, false, {}};
const std::string kConfig = R"({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0,
                                "modules_to_not_convert": ["lm_head"]})";

TEST(fbgemm_fp8, a_scale_per_output_and_tokens_up_to_a_bound) {
  TestCheckpoint checkpoint;
  checkpoint.add(kModule + ".weight", DType::kE4M3, {2, 4}, std::vector<uint8_t>(8, 0x38));
  checkpoint.add<float>(kModule + ".weight_scale", DType::kF32, {2, 1}, {0.5f, 2});
  const auto weight = load_layer(checkpoint, kConfig, kLayer);
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(tensor::to_string(weight->format), "e4m3c");
  EXPECT_EQ(tensor::to_string(weight->activation), "e4m3 token");
  EXPECT_EQ(weight->activation.upper_bound, 1200.0f);
  EXPECT_EQ(dequantize(*weight), (std::vector<float>{0.5f, 0.5f, 0.5f, 0.5f, 2, 2, 2, 2}));
}

TEST(fbgemm_fp8, the_bound_is_required_and_positive) {
  const std::string at = "config.json: quantization_config: ";
  const auto refused = [](const std::string& keys) {
    return message(parse_config(TestCheckpoint(), R"({"quant_method": "fbgemm_fp8")" + keys + "}"));
  };
  EXPECT_EQ(refused(""), at + "key \"activation_scale_ub\" is missing");
  EXPECT_EQ(refused(R"(, "activation_scale_ub": 0)"),
            at + "activation_scale_ub: expected a positive number, found 0");
  EXPECT_EQ(refused(R"(, "activation_scale_ub": -1.5)"),
            at + "activation_scale_ub: expected a positive number, found -1.5");
  CheckpointFacts facts;
  const auto scheme = detect_scheme(facts, "fbgemm_fp8");
  ASSERT_TRUE(scheme) << message(scheme);
  EXPECT_EQ(message((*scheme)->parse(facts)),
            "fbgemm_fp8 needs a quantization_config that says activation_scale_ub");
}

}  // namespace
}  // namespace nibble::quant
