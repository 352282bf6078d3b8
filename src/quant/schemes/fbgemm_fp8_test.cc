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

TEST(fbgemm_fp8, a_bound_may_be_a_string_and_is_transformers_own_where_none_is_given) {
  const auto read = [](const std::string& keys) {
    return parse_config(TestCheckpoint(), R"({"quant_method": "fbgemm_fp8")" + keys + "}");
  };
  const auto text = read(R"(, "activation_scale_ub": "1.2e3")");
  ASSERT_TRUE(text) << message(text);
  EXPECT_TRUE((*text)->notes.empty());
  const auto none = read("");
  ASSERT_TRUE(none) << message(none);
  EXPECT_EQ((*none)->notes,
            std::vector<std::string>{"config.json: quantization_config: activation_scale_ub is not "
                                     "given: taken as 1200"});
  CheckpointFacts facts;
  const auto scheme = detect_scheme(facts, "fbgemm_fp8");
  ASSERT_TRUE(scheme) << message(scheme);
  const auto lost = (*scheme)->parse(facts);
  ASSERT_TRUE(lost) << message(lost);
  EXPECT_EQ((*lost)->notes, std::vector<std::string>{
                                "no quantization_config: activation_scale_ub is taken as 1200"});
}

TEST(fbgemm_fp8, the_bound_is_positive) {
  const std::string at = "config.json: quantization_config: ";
  const auto refused = [](const std::string& keys) {
    return message(parse_config(TestCheckpoint(), R"({"quant_method": "fbgemm_fp8")" + keys + "}"));
  };
  EXPECT_EQ(refused(R"(, "activation_scale_ub": "12x")").rfind(at, 0), 0u);
  EXPECT_EQ(refused(R"(, "activation_scale_ub": 0)"),
            at + "activation_scale_ub: expected a positive number, found 0");
  EXPECT_EQ(refused(R"(, "activation_scale_ub": -1.5)"),
            at + "activation_scale_ub: expected a positive number, found -1.5");
}

}  // namespace
}  // namespace nibble::quant
