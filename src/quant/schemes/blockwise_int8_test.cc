#include <gtest/gtest.h>

#include "quant/test_support.h"

namespace nibble::quant {
namespace {

using tensor::DType;

const std::string kModule = "mlp.up_proj";
const LinearLayer kLayer{kModule, 3, 6, false, {}};
const std::string kAt = "config.json: quantization_config: ";
const std::string kConfig = R"({"quant_method": "blockwise_int8", "activation_scheme": "dynamic",
                                "weight_block_size": [2, 4]})";

TEST(blockwise_int8, a_scale_per_block_with_short_last_ones) {
  for (const char* name : {"weight_scale_inv", "weight_scale"}) {
    TestCheckpoint checkpoint;
    checkpoint.add(kModule + ".weight", DType::kS8, {3, 6}, std::vector<int8_t>(18, -2));
    checkpoint.add<float>(kModule + "." + name, DType::kF32, {2, 2}, {1, 2, 3, 4});
    const auto weight = load_layer(checkpoint, kConfig, kLayer);
    ASSERT_TRUE(weight) << message(weight);
    EXPECT_EQ(tensor::to_string(weight->format), "s8b2x4");
    EXPECT_EQ(tensor::to_string(weight->activation), "s8 g4");
    const std::vector<float> w = dequantize(*weight);
    EXPECT_EQ(w[0], -2);
    EXPECT_EQ(w[5], -4);
    EXPECT_EQ(w[17], -8);
  }
}

TEST(blockwise_int8, scales_that_are_not_per_block_are_refused) {
  TestCheckpoint checkpoint;
  checkpoint.add(kModule + ".weight", DType::kS8, {3, 6}, std::vector<int8_t>(18, -2));
  checkpoint.add<float>(kModule + ".weight_scale", DType::kF32, {3, 1}, {1, 2, 3});
  EXPECT_EQ(message(load_layer(checkpoint, kConfig, kLayer)),
            "mlp.up_proj.weight_scale is (3, 1), but weight_block_size says blocks of 2 x 4, which "
            "makes (2, 2)");
}

TEST(blockwise_int8, blocks_are_required_and_activations_dynamic) {
  const auto refused = [](const std::string& keys) {
    return message(
        parse_config(TestCheckpoint(), R"({"quant_method": "blockwise_int8")" + keys + "}"));
  };
  EXPECT_EQ(refused(""), kAt + "weight_block_size is missing; blockwise_int8 needs it");
  EXPECT_EQ(refused(R"(, "weight_block_size": [2, 0])"),
            kAt + "weight_block_size: expected two positive integers, found [2,0]");
  EXPECT_EQ(refused(R"(, "weight_block_size": [2, 4], "activation_scheme": "static")"),
            kAt + "activation_scheme is \"static\"; known are: dynamic");
  CheckpointFacts facts;
  EXPECT_EQ(message((*detect_scheme(facts, "blockwise_int8"))->parse(facts)),
            "blockwise_int8 needs a quantization_config that says weight_block_size");
}

}  // namespace
}  // namespace nibble::quant
