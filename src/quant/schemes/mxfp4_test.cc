#include <gtest/gtest.h>

#include "quant/test_support.h"

namespace nibble::quant {
namespace {

using tensor::DType;

const std::string kModule = "mlp.up_proj";
const LinearLayer kLayer{kModule, 2, 64, false, {}};
const std::string kConfig = R"({"quant_method": "mxfp4"})";

TEST(mxfp4, the_names_and_shapes_of_every_writer_are_read) {
  struct Case {
    const char *codes, *scales;
    tensor::Shape shape;
  };
  for (const Case& c :
       {Case{"weight_blocks", "weight_scales", {2, 2, 16}}, Case{"blocks", "scales", {2, 2, 16}},
        Case{"weight", "weight_scale", {2, 32}}, Case{"weight", "weight_scale_inv", {2, 32}},
        Case{"weight_blocks", "weight_scales", {2, 32}}}) {
    TestCheckpoint checkpoint;
    std::vector<uint8_t> bytes(64, 0);
    bytes[0] = 0x7a;   // -1 in the low half, 6 in the high half
    bytes[16] = 0x01;  // input 32
    bytes[63] = 0x90;  // output 1, input 63
    checkpoint.add(kModule + "." + c.codes, DType::kU8, c.shape, bytes);
    checkpoint.add<uint8_t>(kModule + "." + c.scales, DType::kU8, {2, 2}, {126, 128, 0, 254});
    const auto weight = load_layer(checkpoint, kConfig, kLayer);
    ASSERT_TRUE(weight) << c.codes << ": " << message(weight);
    EXPECT_EQ(tensor::to_string(weight->format), "e2m1g32");
    EXPECT_EQ(weight->format.scale_type, DType::kE8M0);
    EXPECT_EQ(tensor::to_string(weight->activation), "float");
    const std::vector<float> w = dequantize(*weight);
    EXPECT_EQ(w[0], -0.5f);
    EXPECT_EQ(w[1], 3.0f);
    EXPECT_EQ(w[32], 1.0f);
    EXPECT_EQ(w[127], -0x1p126f);
  }
}

TEST(mxfp4, plain_layers_stay_plain) {
  TestCheckpoint checkpoint;
  checkpoint.add(kModule + ".weight", DType::kBF16, {2, 64}, std::vector<uint16_t>(128, 0x3f80));
  const auto weight = load_layer(checkpoint, kConfig, kLayer);
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(tensor::to_string(weight->format), "bf16");
}

TEST(mxfp4, what_is_missing_or_no_number_is_refused) {
  TestCheckpoint checkpoint;
  checkpoint.add(kModule + ".weight", DType::kU8, {2, 32}, std::vector<uint8_t>(64, 0));
  EXPECT_EQ(
      message(load_layer(checkpoint, kConfig, kLayer)),
      "mlp.up_proj.weight is u8, but has no scale: neither weight_scales, scales, weight_scale "
      "nor weight_scale_inv is stored");
  checkpoint.add<uint8_t>(kModule + ".weight_scale", DType::kU8, {2, 2}, {126, 128, 255, 254});
  EXPECT_EQ(message(load_layer(checkpoint, kConfig, kLayer)),
            "weight_scale: element (1, 0) is nan; the file is damaged");
  EXPECT_EQ(message(load_layer(checkpoint, kConfig, {kModule, 2, 48, false, {}})),
            "mlp.up_proj: 48 inputs do not fill whole groups of 32");
}

}  // namespace
}  // namespace nibble::quant
