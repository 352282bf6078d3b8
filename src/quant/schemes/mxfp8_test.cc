#include <gtest/gtest.h>

#include "quant/test_support.h"

namespace nibble::quant {
namespace {

using tensor::DType;

const std::string kModule = "mlp.up_proj";
const LinearLayer kLayer{kModule, 2, 48, false, {}};  // the last group has 16 inputs
const std::string kAt = "config.json: quantization_config: ";

TestCheckpoint stored(const std::string& scale, DType type) {
  TestCheckpoint out;
  out.add(kModule + ".weight", DType::kE4M3, {2, 48}, std::vector<uint8_t>(96, 0x3c));  // 1.5
  out.add<uint8_t>(kModule + "." + scale, type, {2, 2}, {127, 128, 0, 120});
  return out;
}

TEST(mxfp8, a_power_of_two_scales_32_inputs) {
  for (const char* name : {"weight_scale_inv", "weight_scale"}) {
    for (DType type : {DType::kU8, DType::kE8M0}) {
      const TestCheckpoint checkpoint = stored(name, type);
      const auto weight = load_layer(checkpoint, R"({"quant_method": "mxfp8"})", kLayer);
      ASSERT_TRUE(weight) << message(weight);
      EXPECT_EQ(tensor::to_string(weight->format), "e4m3g32");
      EXPECT_EQ(tensor::to_string(weight->activation), "e4m3 g32 x e8m0");
      const std::vector<float> w = dequantize(*weight);
      EXPECT_EQ(w[0], 1.5f);
      EXPECT_EQ(w[47], 3.0f);
      EXPECT_EQ(w[48], 1.5f * 0x1p-127f);
      EXPECT_EQ(w[95], 1.5f * 0x1p-7f);
    }
  }
}

TEST(mxfp8, scales_of_another_shape_are_refused) {
  TestCheckpoint checkpoint = stored("weight_scale", DType::kU8);
  checkpoint.add<float>(kModule + ".weight_scale", DType::kF32, {}, {1});
  EXPECT_EQ(message(load_layer(checkpoint, R"({"quant_method": "mxfp8"})", kLayer)),
            "mlp.up_proj.weight_scale is (), but the format says blocks of 1 x 32, which makes "
            "(2, 2)");
}

TEST(mxfp8, a_config_of_other_groups_is_refused) {
  const auto refused = [](const std::string& keys) {
    return message(parse_config(TestCheckpoint(), R"({"quant_method": "mxfp8", )" + keys + "}"));
  };
  EXPECT_EQ(refused(R"("weight_block_size": [1, 32], "group_size": 32, "ignored_layers": [])"),
            "no error");
  EXPECT_EQ(refused(R"("weight_block_size": [128, 128])"),
            kAt +
                "weight_block_size is [128, 128]; MXFP8 has one scale for 32 inputs of an output, "
                "[1, 32]");
  EXPECT_EQ(refused(R"("group_size": 16)"),
            kAt + "group_size is 16; MXFP8 has one scale for 32 inputs of an output, [1, 32]");
  EXPECT_EQ(refused(R"("activation_scheme": "static")"),
            kAt + "activation_scheme is \"static\"; known are: dynamic");
}

}  // namespace
}  // namespace nibble::quant
