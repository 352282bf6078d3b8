#include <gtest/gtest.h>

#include <random>

#include "base/number.h"
#include "quant/test_support.h"

namespace nibble::quant {
namespace {

using tensor::DType;

const std::string kModule = "mlp.up_proj";
const std::string kAt = "config.json: quantization_config: ";
const std::string kConfig = R"({"quant_method": "eetq", "weights": "int8"})";
constexpr int64_t kN = 64, kK = 128;
const LinearLayer kLayer{kModule, kN, kK, false, {}};

// What the tool does to codes (K, N), step by step: rows permuted among 16, transposed, two columns
// interleaved in pieces of 64, 128 added, bytes 1 and 2 of each four swapped.
std::vector<uint8_t> as_on_tensor_cores(const std::vector<int8_t>& code) {
  constexpr int kRow[16] = {0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15};
  std::vector<uint8_t> out(code.size());
  for (int64_t n = 0; n < kN; ++n) {
    for (int64_t k = 0; k < kK; ++k) {
      const int64_t from = k / 16 * 16 + kRow[k % 16];
      const int64_t to = n / 2 * 2 * kK + k / 64 * 128 + n % 2 * 64 + k % 64;
      out[static_cast<size_t>(to)] =
          static_cast<uint8_t>(code[static_cast<size_t>(from * kN + n)] + 128);
    }
  }
  for (size_t i = 0; i < out.size(); i += 4) std::swap(out[i + 1], out[i + 2]);
  return out;
}

std::vector<uint8_t> as_on_a_v100(const std::vector<int8_t>& code) {
  std::vector<uint8_t> out;
  for (int8_t c : code) out.push_back(static_cast<uint8_t>(c + 128));
  for (size_t i = 0; i < out.size(); i += 4) std::swap(out[i + 1], out[i + 2]);
  return out;
}

// Codes (K, N) with one -128 or 127 for each output, as the tool's scale gives.
std::vector<int8_t> random_codes(int most = 126) {
  std::mt19937 random(20261130);
  std::vector<int8_t> code(kN * kK);
  for (int8_t& c : code) c = static_cast<int8_t>(static_cast<int>(random() % 253) - 126);
  for (int8_t& c : code) c = static_cast<int8_t>(c * most / 126);
  if (most < 126) return code;
  for (size_t n = 0; n < kN; ++n) code[random() % kK * kN + n] = n % 3 == 0 ? 127 : -128;
  return code;
}

TestCheckpoint checkpoint_of(const std::vector<uint8_t>& bytes) {
  TestCheckpoint out;
  out.add(kModule + ".weight", DType::kS8, {kK, kN}, bytes);
  std::vector<uint16_t> scales;
  for (int n = 0; n < kN; ++n) scales.push_back(base::f16_from_f32(static_cast<float>(n) / 1024));
  out.add(kModule + ".weight_scales", DType::kF16, {kN}, scales);
  return out;
}

std::vector<float> expected(const std::vector<int8_t>& code) {
  std::vector<float> out;
  for (size_t n = 0; n < kN; ++n) {
    for (size_t k = 0; k < kK; ++k) {
      out.push_back(static_cast<float>(code[k * kN + n]) * (static_cast<float>(n) / 1024));
    }
  }
  return out;
}

TEST(eetq, codes_come_back_from_the_order_of_the_tensor_cores) {
  const std::vector<int8_t> code = random_codes();
  const auto weight = load_layer(checkpoint_of(as_on_tensor_cores(code)), kConfig, kLayer);
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(tensor::to_string(weight->format), "s8c");
  EXPECT_EQ(tensor::to_string(weight->activation), "float");
  EXPECT_EQ(dequantize(*weight), expected(code));
}

TEST(eetq, codes_without_extreme_ones_are_read_all_the_same) {
  const std::vector<int8_t> code = random_codes(100);
  const auto weight = load_layer(checkpoint_of(as_on_tensor_cores(code)), kConfig, kLayer);
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(dequantize(*weight), expected(code));
}

TEST(eetq, an_output_of_zeros_which_the_tool_gives_codes_of_127_has_codes_of_0) {
  std::vector<int8_t> code = random_codes();
  for (size_t k = 0; k < kK; ++k) code[k * kN] = 127;  // output 0, whose scale is 0
  const auto weight = load_layer(checkpoint_of(as_on_tensor_cores(code)), kConfig, kLayer);
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(weight->code.data), kK),
            std::string(kK, '\0'));
}

TEST(eetq, the_order_of_a_v100_is_refused) {
  EXPECT_EQ(message(load_layer(checkpoint_of(as_on_a_v100(random_codes())), kConfig, kLayer)),
            "weight: 18 of 64 outputs have no code of 127 or -128, but all have one when the bytes "
            "are taken in rows, as EETQ writes them on a V100; only the order of newer GPUs "
            "(compute capability 7.5 to 8.9) is read: quantize again there");
}

TEST(eetq, a_layer_stored_as_floats_is_unquantized_and_a_stored_one_outranks_the_list) {
  TestCheckpoint checkpoint = checkpoint_of(as_on_tensor_cores(random_codes()));
  checkpoint.add("lm_head.weight", DType::kF32, {1, 2}, std::vector<float>{1, 2});
  const auto parsed = parse_config(checkpoint, R"({"quant_method": "eetq", "weights": "int8",
      "modules_to_not_convert": ["lm_head", "mlp.up_proj", "visual"]})");
  ASSERT_TRUE(parsed) << message(parsed);
  EXPECT_EQ(
      (*(*parsed)->linear_method({"lm_head", 1, 2, false, {}}, checkpoint.lookup()))->scheme(),
      "unquantized");
  EXPECT_EQ((*(*parsed)->linear_method(kLayer, checkpoint.lookup()))->scheme(), "eetq");
  for (const LinearLayer& layer : {kLayer, LinearLayer{"lm_head", 1, 2, false, {}}}) {
    EXPECT_EQ((*parsed)->listed(layer)->says, Says::kLeftAlone) << layer.module;
  }
  EXPECT_EQ((*parsed)->matchers()[0]->rules_that_matched_nothing(),
            std::vector<std::string>{"visual"});
}

TEST(eetq, sizes_and_types_that_cannot_be_are_refused) {
  TestCheckpoint checkpoint = checkpoint_of(as_on_tensor_cores(random_codes()));
  EXPECT_EQ(message(load_layer(checkpoint, kConfig, {kModule, 32, 128, false, {}})),
            "mlp.up_proj: 32 outputs and 128 inputs do not fill tiles of 64 x 64");
  EXPECT_EQ(message(load_layer(checkpoint, kConfig, {kModule, 64, 96, false, {}})),
            "mlp.up_proj: 64 outputs and 96 inputs do not fill tiles of 64 x 64");
  EXPECT_EQ(message(load_layer(checkpoint, kConfig, {kModule, 128, 64, false, {}})),
            "mlp.up_proj.weight: EETQ stores s8 (64, 128), inputs first; found s8 (128, 64)");
  checkpoint.add(kModule + ".weight", DType::kE4M3, {kK, kN}, std::vector<uint8_t>(kN * kK));
  EXPECT_EQ(message(load_layer(checkpoint, kConfig, kLayer)),
            "mlp.up_proj.weight: EETQ stores s8 (128, 64), inputs first; found e4m3 (128, 64)");
  checkpoint = checkpoint_of(as_on_tensor_cores(random_codes()));
  checkpoint.remove(kModule + ".weight_scales");
  EXPECT_EQ(message(load_layer(checkpoint, kConfig, kLayer)), "missing mlp.up_proj.weight_scales");
  std::vector<uint16_t> scales(kN, base::f16_from_f32(1));
  scales[7] = 0x7e00;
  checkpoint.add(kModule + ".weight_scales", DType::kF16, {kN}, scales);
  EXPECT_EQ(message(load_layer(checkpoint, kConfig, kLayer)),
            "weight_scales: element (7) is nan; the file is damaged");
}

TEST(eetq, what_its_own_exporter_writes_is_refused) {
  TestCheckpoint checkpoint;
  checkpoint.add(kModule + ".qweight", DType::kS8, {kK, kN}, std::vector<uint8_t>(kN * kK));
  EXPECT_EQ(message(load_layer(checkpoint, kConfig, kLayer)),
            "mlp.up_proj.qweight is as EETQ's own exporter writes it: the layers that it joins are "
            "cut apart after their bytes were reordered, which is not read; quantize with "
            "transformers (EetqConfig)");
}

TEST(eetq, other_weights_than_int8_are_refused) {
  EXPECT_EQ(message(parse_config({}, R"({"quant_method": "eetq", "weights": "int4"})")),
            kAt + "weights is \"int4\"; known are: int8");
}

}  // namespace
}  // namespace nibble::quant
