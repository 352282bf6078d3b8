#include <gtest/gtest.h>

#include "base/number.h"
#include "quant/test_support.h"

namespace nibble::quant {
namespace {

using tensor::DType;

const std::string kModule = "mlp.up_proj";
const std::string kAt = "config.json: quantization_config: ";
const std::string kChannel = R"({"quant_method": "qoq", "wbits": 4, "group_size": -1})";
const std::string kGroups = R"({"quant_method": "qoq", "wbits": 4, "group_size": 128})";

std::vector<uint16_t> halves(size_t count, float value) {
  return std::vector<uint16_t>(count, base::f16_from_f32(value));
}

TestCheckpoint channel() {
  TestCheckpoint out;
  std::vector<uint8_t> bytes(64 * 32, 0);
  bytes[1890] = 0x0b;  // output 37, input 42: low half
  bytes[1891] = 0xd0;  // output 53, input 43: high half
  out.add(kModule + ".qweight", DType::kS8, {64, 32}, bytes);
  out.add(kModule + ".s1_scales", DType::kF16, {64}, halves(64, 0.5f));
  out.add(kModule + ".s1_szeros", DType::kF16, {64}, halves(64, 0.25f));
  return out;
}

TEST(qoq, codes_lie_in_tiles_and_the_zero_is_scaled_already) {
  const TestCheckpoint checkpoint = channel();
  const auto weight = load_layer(checkpoint, kChannel, {kModule, 64, 64, false, {}});
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(tensor::to_string(weight->format), "u4c+min");
  EXPECT_EQ(tensor::to_string(weight->activation), "s8 token");
  const std::vector<float> w = dequantize(*weight);
  for (size_t i = 0; i < w.size(); ++i) {
    const float q = i == 37 * 64 + 42 ? 11 : i == 53 * 64 + 43 ? 13 : 0;
    ASSERT_EQ(w[i], q * 0.5f - 0.25f) << i;
  }
}

// 32 outputs, 256 inputs; every code is 3.
TestCheckpoint groups(int8_t scale, int8_t zero) {
  TestCheckpoint out;
  out.add(kModule + ".qweight", DType::kS8, {32, 128}, std::vector<uint8_t>(32 * 128, 0x33));
  out.add(kModule + ".s1_scales", DType::kF16, {32}, halves(32, 0.5f));
  std::vector<int8_t> scales(64, 1), zeros(64, 0);
  // Output 9, group 1: among 32 outputs, position p holds output 8 (p mod 4) + p / 4.
  scales[32 + 5] = scale;
  zeros[32 + 5] = zero;
  out.add(kModule + ".s2_scales", DType::kS8, {2, 32}, scales);
  out.add(kModule + ".s2_zeros", DType::kS8, {2, 32}, zeros);
  return out;
}

TEST(qoq, the_second_level_makes_an_int8_before_the_first_scales_it) {
  const TestCheckpoint checkpoint = groups(10, -50);
  const auto weight = load_layer(checkpoint, kGroups, {kModule, 32, 256, false, {}});
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(tensor::to_string(weight->format), "u4g128+min");
  const std::vector<float> w = dequantize(*weight);
  for (size_t i = 0; i < w.size(); ++i) {
    const bool other = i / 256 == 9 && i % 256 >= 128;
    ASSERT_EQ(w[i], other ? (3 * 10 - 50) * 0.5f : 1.5f) << i;
  }
}

// Position 5 of a row is output 9 in QServe's order and output 10 in deepcompressor's.
TEST(qoq, deepcompressors_file_has_an_order_of_its_own) {
  const TestCheckpoint checkpoint = groups(10, -50);
  for (const auto& [file, output] :
       {std::pair<const char*, size_t>{"pytorch_model.bin", 9}, {"quant_model.pt", 10}}) {
    const auto weight = load_layer(checkpoint, "null", {kModule, 32, 256, false, {}}, {file});
    ASSERT_TRUE(weight) << message(weight);
    const std::vector<float> w = dequantize(*weight);
    for (size_t n = 0; n < 32; ++n) {
      ASSERT_EQ(w[n * 256 + 128], n == output ? -10.0f : 1.5f) << file << " " << n;
    }
  }
  const auto config = parse_config(checkpoint, "null", {"quant_model.pt"});
  ASSERT_TRUE(config) << message(config);
  EXPECT_EQ((*config)->notes,
            std::vector<std::string>{"quant_model.pt is what deepcompressor writes: s2_scales and "
                                     "s2_zeros are taken in its order, not in QServe's"});
}

TEST(qoq, bytes_of_the_second_level_wrap) {
  // 3 * 60 + 20 = 200 is no int8, as a byte it is -56: the zero was -236.
  const TestCheckpoint checkpoint = groups(60, 20);
  const auto weight = load_layer(checkpoint, kGroups, {kModule, 32, 256, false, {}});
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(dequantize(*weight)[9 * 256 + 128], -56 * 0.5f);
  TestCheckpoint wide = groups(127, 0);
  std::vector<uint8_t> bytes(32 * 128, 0x33);
  for (size_t i = 4 * 512; i < 8 * 512; ++i) bytes[i] = i % 2 == 0 ? 0 : 0x33;  // group 1: 0 and 3
  wide.add(kModule + ".qweight", DType::kS8, {32, 128}, bytes);
  EXPECT_EQ(message(load_layer(wide, kGroups, {kModule, 32, 256, false, {}})),
            "s2_scales: output 9, group 1: codes 0 to 3 times 127 plus 0 are no int8, also not as "
            "bytes that wrap");
}

TEST(qoq, a_group_size_that_the_tensors_contradict_is_refused) {
  EXPECT_EQ(message(load_layer(channel(), kGroups, {kModule, 64, 64, false, {}})),
            "config.json: quantization_config: group_size is 128, but mlp.up_proj.s1_szeros is "
            "stored, which belongs to -1");
  EXPECT_EQ(message(load_layer(groups(1, 0), kChannel, {kModule, 32, 256, false, {}})),
            "config.json: quantization_config: group_size is -1, but mlp.up_proj.s2_scales is "
            "stored, which belongs to 128");
}

TEST(qoq, sizes_and_bits_that_cannot_be_are_refused) {
  EXPECT_EQ(message(load_layer(channel(), kChannel, {kModule, 48, 64, false, {}})),
            "mlp.up_proj: 48 outputs and 64 inputs do not fill tiles of 32 x 32");
  EXPECT_EQ(message(load_layer(groups(1, 0), kGroups, {kModule, 32, 192, false, {}})),
            "mlp.up_proj: 32 outputs and 192 inputs do not fill tiles of 32 x 128");
  EXPECT_EQ(message(parse_config(TestCheckpoint(),
                                 R"({"quant_method": "qoq", "wbits": 8, "group_size": 128})")),
            kAt + "wbits is 8 and group_size 128; QoQ has 4 and -1 or 128");
  EXPECT_EQ(message(parse_config(TestCheckpoint(),
                                 R"({"quant_method": "qoq", "wbits": 4, "group_size": 64})")),
            kAt + "wbits is 4 and group_size 64; QoQ has 4 and -1 or 128");
  TestCheckpoint checkpoint = channel();
  checkpoint.remove(kModule + ".s1_szeros");
  EXPECT_EQ(message(load_layer(checkpoint, kChannel, {kModule, 64, 64, false, {}})),
            "missing mlp.up_proj.s1_szeros");
}

}  // namespace
}  // namespace nibble::quant
