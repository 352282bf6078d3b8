#include <gtest/gtest.h>

#include "quant/test_support.h"

namespace nibble::quant {
namespace {

using tensor::DType;

const std::string kModule = "mlp.up_proj";
const LinearLayer kLayer{kModule, 2, 2, false, {}};
const std::string kConfig = R"({"quant_method": "w8a8_int8"})";

TestCheckpoint stored() {
  TestCheckpoint out;
  out.add(kModule + ".weight", DType::kS8, {2, 2}, std::vector<int8_t>(4, -3));
  out.add<float>(kModule + ".weight_scale", DType::kF32, {2, 1}, {0.5f, 2});
  return out;
}

std::string activation(const TestCheckpoint& checkpoint, const std::string& config) {
  const auto weight = load_layer(checkpoint, config, kLayer);
  return weight ? tensor::to_string(weight->activation) : weight.error().message;
}

TEST(w8a8_int8, a_scale_per_output_and_activations_per_token) {
  const TestCheckpoint checkpoint = stored();
  const auto weight = load_layer(checkpoint, kConfig, kLayer);
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(tensor::to_string(weight->format), "s8c");
  EXPECT_EQ(tensor::to_string(weight->activation), "s8 token");
  EXPECT_EQ(dequantize(*weight), (std::vector<float>{-3 * 0.5f, -3 * 0.5f, -3 * 2.0f, -3 * 2.0f}));
}

TEST(w8a8_int8, stored_input_scales_mean_static_activations_unless_the_config_says_otherwise) {
  TestCheckpoint checkpoint = stored();
  checkpoint.add<float>(kModule + ".input_scale", DType::kF32, {1}, {0.25f});
  EXPECT_EQ(activation(checkpoint, kConfig), "s8 tensor static");
  EXPECT_EQ(activation(checkpoint, R"({"quant_method": "w8a8_int8", "is_dynamic": false})"),
            "s8 tensor static");
  EXPECT_EQ(activation(checkpoint, R"({"quant_method": "w8a8_int8", "is_dynamic": true})"),
            "s8 token");
  EXPECT_EQ(activation(stored(), R"({"quant_method": "w8a8_int8", "activation_scheme": "static"})"),
            "missing mlp.up_proj.input_scale");
}

TEST(w8a8_int8, a_folder_that_does_not_say_is_read_when_the_scheme_is_named) {
  const TestCheckpoint checkpoint = stored();
  CheckpointFacts facts;
  facts.tensors = checkpoint.lookup();
  const auto scheme = detect_scheme(facts, "w8a8_int8");
  ASSERT_TRUE(scheme) << message(scheme);
  const auto config = (*scheme)->parse(facts);
  ASSERT_TRUE(config) << message(config);
  const auto method = (*config)->linear_method(kLayer, facts.tensors);
  ASSERT_TRUE(method) << message(method);
  EXPECT_EQ(tensor::to_string((*method)->weight_format()), "s8c");
}

TEST(w8a8_int8, weights_of_another_type_are_refused) {
  TestCheckpoint checkpoint = stored();
  checkpoint.add(kModule + ".weight", DType::kU8, {2, 2}, std::vector<uint8_t>(4, 1));
  EXPECT_EQ(activation(checkpoint, kConfig),
            "mlp.up_proj.weight: expected s8 or a plain float, found u8");
}

}  // namespace
}  // namespace nibble::quant
