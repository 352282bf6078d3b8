#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>

#include "quant/awq_layout.h"
#include "quant/test_support.h"

namespace nibble::quant {
namespace {

using tensor::DType;

const std::string kModule = "model.layers.0.mlp.up_proj";

std::string config(const std::string& weight, const std::string& input = "null",
                   const std::string& more = "") {
  return fmt::format(R"({{"quant_method": "quark", "exclude": ["lm_head"], "global_quant_config":
      {{"weight": {}, "input_tensors": {}}}, "export": {{"pack_method": "reorder"}}{}}})",
                     weight, input, more);
}
const std::string kFp8 = R"({"dtype": "fp8_e4m3", "qscheme": "per_tensor"})";
const std::string kFp8Static =
    R"({"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": false})";
const std::string kInt8Token =
    R"({"dtype": "int8", "qscheme": "per_channel", "is_dynamic": true, "symmetric": true})";
const std::string kInt8Static = R"({"dtype": "int8", "qscheme": "per_tensor", "symmetric": )";
const std::string kMx = R"({"dtype": "fp4", "qscheme": "per_group", "group_size": 32,
    "scale_format": "e8m0", "is_dynamic": true, "scale_calculation_mode": "even"})";

// 4-bit codes of one row, eight to a word in AutoAWQ's order.
std::vector<uint32_t> pack(const std::vector<int>& codes) {
  std::vector<uint32_t> words(codes.size() / 8);
  for (size_t i = 0; i < codes.size(); ++i) {
    words[i / 8] |= (static_cast<uint32_t>(codes[i]) & 15) << kAwqShift[i % 8];
  }
  return words;
}

TestCheckpoint fp8_checkpoint() {
  TestCheckpoint out;
  out.add(kModule + ".weight", DType::kE4M3, {2, 1}, std::vector<uint8_t>{0x38, 0xc0});
  out.add(kModule + ".weight_scale", DType::kF32, {}, std::vector<float>{0.5f});
  out.add(kModule + ".input_scale", DType::kF32, {}, std::vector<float>{0.25f});
  return out;
}
const LinearLayer kFp8Layer{kModule, 2, 1, false, {}};

TEST(quark, fp8_layers_have_the_activations_of_the_config) {
  const TestCheckpoint checkpoint = fp8_checkpoint();
  for (const auto& [input, activation] :
       {std::pair{kFp8Static, "e4m3 tensor static"},
        {std::string(R"({"dtype": "fp8_e4m3", "qscheme": "per_channel", "is_dynamic": true})"),
         "e4m3 token"},
        {std::string(R"({"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": true})"),
         "e4m3 tensor"},
        {std::string(R"({"dtype": "fp8_e4m3", "qscheme": "per_group", "group_size": -1,
                         "is_dynamic": true})"),
         "e4m3 token"},
        {std::string("null"), "float"}}) {
    const auto weight = load_layer(checkpoint, config(kFp8, input), kFp8Layer);
    ASSERT_TRUE(weight) << message(weight);
    EXPECT_EQ(tensor::to_string(weight->activation), activation);
    EXPECT_EQ(dequantize(*weight), (std::vector<float>{0.5f, -1}));
  }
}

TEST(quark, layers_by_name_come_before_the_global_config) {
  const TestCheckpoint checkpoint = fp8_checkpoint();
  const auto weight = load_layer(
      checkpoint,
      config(kFp8, kFp8Static,
             fmt::format(R"(, "layer_quant_config": {{"*.mlp.*": {{"weight": {}}}}})", kFp8)),
      kFp8Layer);
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(tensor::to_string(weight->activation), "float");
}

TEST(quark, int4_groups_are_stored_turned_and_in_the_order_of_autoawq) {
  constexpr int64_t kN = 16, kK = 64, kG = 32;
  std::mt19937 random(5);
  for (const bool is_signed : {true, false}) {
    for (const bool symmetric : {true, false}) {
      TestCheckpoint checkpoint;
      std::vector<int> code(kK * kN), zero(kK / kG * kN);
      std::vector<float> scale(zero.size()), expected;
      for (int& c : code) c = static_cast<int>(random() % 16) - (is_signed ? 8 : 0);
      for (int& z : zero) z = symmetric ? 0 : static_cast<int>(random() % 16) - (is_signed ? 8 : 0);
      for (float& s : scale) s = static_cast<float>(1 + random() % 100) / 64;
      checkpoint.add(kModule + ".weight", DType::kS32, {kK, kN / 8}, pack(code));
      checkpoint.add(kModule + ".weight_zero_point", DType::kS32, {kK / kG, kN / 8}, pack(zero));
      checkpoint.add(kModule + ".weight_scale", DType::kF32, {kK / kG, kN}, scale);
      for (int64_t n = 0; n < kN; ++n) {
        for (int64_t k = 0; k < kK; ++k) {
          const auto at = static_cast<size_t>(k / kG * kN + n);
          expected.push_back(static_cast<float>(code[static_cast<size_t>(k * kN + n)] - zero[at]) *
                             scale[at]);
        }
      }
      const auto weight = load_layer(
          checkpoint,
          config(fmt::format(R"({{"dtype": "{}", "qscheme": "per_group", "symmetric": {}}})",
                             is_signed ? "int4" : "uint4", symmetric)),
          {kModule, kN, kK, false, {}});
      ASSERT_TRUE(weight) << message(weight);
      EXPECT_EQ(dequantize(*weight), expected) << is_signed << symmetric;
    }
  }
}

TEST(quark, outputs_are_quantized_in_a_kv_cache_alone) {
  const std::string outputs = fmt::format(
      R"(, "layer_type_quant_config": {{"Linear": {{"weight": {}, "output_tensors": {}}}}})", kFp8,
      kFp8Static);
  EXPECT_EQ(
      message(load_layer(fp8_checkpoint(), config(kFp8, "null", outputs), kFp8Layer)),
      kModule + ": its output_tensors are given; what a layer gives out is not quantized here");
  TestCheckpoint keys;
  const std::string k_proj = "model.layers.0.self_attn.k_proj";
  keys.add(k_proj + ".weight", DType::kE4M3, {2, 1}, std::vector<uint8_t>{0x38, 0xc0});
  keys.add(k_proj + ".weight_scale", DType::kF32, {}, std::vector<float>{0.5f});
  const LinearLayer layer{k_proj, 2, 1, false, {}};
  std::string old = config(kFp8, "null", outputs);
  const std::string method = R"("pack_method": "reorder")";
  old.replace(old.find(method), method.size(), R"("kv_cache_group": ["*k_proj", "*v_proj"])");
  for (const std::string& text :
       {old, config(kFp8, "null", outputs + R"(, "kv_cache_quant_config": {"*k_proj": {}})")}) {
    EXPECT_TRUE(load_layer(keys, text, layer)) << text;
  }
  EXPECT_EQ(
      message(load_layer(keys, config(kFp8, "null", outputs), layer)),
      k_proj + ": its output_tensors are given; what a layer gives out is not quantized here");
}

TEST(quark, each_layers_own_type_says_whether_its_codes_are_signed) {
  TestCheckpoint checkpoint;
  checkpoint.add(kModule + ".weight", DType::kS32, {8, 1},
                 pack({-8, -1, 0, 7, 1, 2, 3, 4, -8, -8, -8, -8, -8, -8, -8, -8, 0, 0, 0, 0, 0, 0,
                       0,  0,  0, 0, 0, 0, 0, 0, 0,  0,  0,  0,  0,  0,  0,  0,  0, 0, 0, 0, 0, 0,
                       0,  0,  0, 0, 0, 0, 0, 0, 0,  0,  0,  0,  0,  0,  0,  0,  0, 0, 0, 0}));
  checkpoint.add(kModule + ".weight_scale", DType::kF32, {8}, std::vector<float>(8, 1));
  const auto first = [&](const char* all, const char* own) {
    const auto weight = load_layer(
        checkpoint,
        config(
            fmt::format(R"({{"dtype": "{}", "qscheme": "per_channel", "symmetric": true}})", all),
            "null",
            fmt::format(R"(, "layer_quant_config": {{"*.mlp.*": {{"weight": {{"dtype": "{}",
                                "qscheme": "per_channel", "symmetric": true}}}}}})",
                        own)),
        {kModule, 8, 8, false, {}});
    EXPECT_TRUE(weight) << message(weight);
    return weight ? dequantize(*weight)[0] : 0;
  };
  EXPECT_EQ(first("uint4", "int4"), -8);
  EXPECT_EQ(first("int4", "uint4"), 8);
}

TEST(quark, int4_over_fp8_has_a_scale_for_all_beside_those_of_the_outputs) {
  TestCheckpoint checkpoint;
  checkpoint.add(kModule + ".weight", DType::kS32, {2, 1},
                 pack({0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1}));
  checkpoint.add(kModule + ".weight_scale", DType::kF32, {}, std::vector<float>{0.5f});
  checkpoint.add(kModule + ".weight_scale_2", DType::kF32, {2}, std::vector<float>{2, 4});
  const auto weight = load_layer(
      checkpoint, config(R"([{"dtype": "fp8_e4m3"}, {"dtype": "int4", "qscheme": "per_channel"}])"),
      {kModule, 2, 8, false, {}});
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(dequantize(*weight),
            (std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7, -16, -14, -12, -10, -8, -6, -4, -2}));
}

TestCheckpoint int8_checkpoint() {
  TestCheckpoint out;
  out.add(kModule + ".weight", DType::kS8, {2, 2}, std::vector<int8_t>{1, -2, 3, -128});
  out.add(kModule + ".weight_scale", DType::kF32, {2}, std::vector<float>{0.5f, 2});
  out.add(kModule + ".weight_zero_point", DType::kS8, {2}, std::vector<int8_t>{0, 0});
  out.add(kModule + ".input_scale", DType::kF32, {}, std::vector<float>{0.25f});
  out.add(kModule + ".input_zero_point", DType::kS8, {}, std::vector<int8_t>{0});
  return out;
}
const LinearLayer kInt8Layer{kModule, 2, 2, false, {}};

TEST(quark, int8_weights_and_activations) {
  TestCheckpoint checkpoint = int8_checkpoint();
  const std::string weights = R"({"dtype": "int8", "qscheme": "per_channel", "symmetric": true})";
  const auto token = load_layer(checkpoint, config(weights, kInt8Token), kInt8Layer);
  ASSERT_TRUE(token) << message(token);
  EXPECT_EQ(dequantize(*token), (std::vector<float>{0.5f, -1, 6, -256}));
  EXPECT_EQ(tensor::to_string(token->activation), "s8 token");
  const auto fixed = load_layer(checkpoint, config(weights, kInt8Static + "true}"), kInt8Layer);
  ASSERT_TRUE(fixed) << message(fixed);
  EXPECT_EQ(tensor::to_string(fixed->activation), "s8 tensor static");
  EXPECT_EQ(fixed->input_scale, 0.25f);
  checkpoint.add(kModule + ".input_zero_point", DType::kS8, {}, std::vector<int8_t>{-3});
  const auto moved = load_layer(checkpoint, config(weights, kInt8Static + "false}"), kInt8Layer);
  ASSERT_TRUE(moved) << message(moved);
  EXPECT_EQ(moved->input_zero, -3);
  EXPECT_EQ(message(load_layer(checkpoint, config(weights, kInt8Static + "true}"), kInt8Layer)),
            "input_zero_point is -3, but input_tensors are symmetric, which means 0");
  checkpoint.add(kModule + ".weight_zero_point", DType::kS8, {2}, std::vector<int8_t>{0, 5});
  EXPECT_EQ(message(load_layer(checkpoint, config(weights, kInt8Token), kInt8Layer)),
            "weight_zero_point: number 1 is 5, but symmetric is true, which means 0");
  const auto asymmetric = load_layer(
      checkpoint, config(R"({"dtype": "int8", "symmetric": false})", kInt8Token), kInt8Layer);
  ASSERT_TRUE(asymmetric) << message(asymmetric);
  EXPECT_EQ(dequantize(*asymmetric), (std::vector<float>{0.5f, -1, -4, -266}));
}

TEST(quark, mxfp4_has_scales_of_e8m0_and_activations_in_groups) {
  TestCheckpoint checkpoint;
  checkpoint.add(kModule + ".weight", DType::kU8, {1, 16}, std::vector<uint8_t>(16, 0xf2));
  checkpoint.add(kModule + ".weight_scale", DType::kU8, {1, 1}, std::vector<uint8_t>{128});
  const auto weight = load_layer(checkpoint, config(kMx, kMx), {kModule, 1, 32, false, {}});
  ASSERT_TRUE(weight) << message(weight);
  const std::vector<float> values = dequantize(*weight);
  EXPECT_EQ(values[0], 2);
  EXPECT_EQ(values[1], -12);
  EXPECT_EQ(weight->activation.scale_rule, tensor::ActivationFormat::ScaleRule::kE8M0Nearest);
  EXPECT_EQ(weight->activation.group, 32);
  checkpoint.add(kModule + ".weight", DType::kU8, {1, 17}, std::vector<uint8_t>(17));
  EXPECT_EQ(
      message(load_layer(checkpoint, config(kMx, kMx), {kModule, 1, 32, false, {}})),
      "model.layers.0.mlp.up_proj.weight u8 (1, 17): of floats of a byte or less fp8 (N, K), and "
      "as u8 fp6 (N, 3K/4) and fp4 (N, K/2) are read; N is 1 and K 32");
}

std::string mx6(const char* dtype, const char* mode = "even") {
  return std::string(R"({"dtype": ")") + dtype +
         R"(", "qscheme": "per_group", "group_size": 32, "is_dynamic": true,
             "scale_format": "e8m0", "scale_calculation_mode": ")" +
         mode + "\"}";
}

TEST(quark, mxfp6_has_four_codes_in_three_bytes) {
  TestCheckpoint checkpoint;
  // The codes 1, 31, 32 + 9 and 16, lowest bits first, and zeros.
  std::vector<uint8_t> bytes(24);
  const uint32_t four = 1u | 31u << 6 | 41u << 12 | 16u << 18;
  for (size_t i = 0; i < 3; ++i) bytes[i] = static_cast<uint8_t>(four >> (8 * i));
  checkpoint.add(kModule + ".weight", DType::kU8, {1, 24}, bytes);
  checkpoint.add(kModule + ".weight_scale", DType::kU8, {1, 1}, std::vector<uint8_t>{128});
  const LinearLayer layer = {kModule, 1, 32, false, {}};
  using A = tensor::ActivationFormat;
  auto weight = load_layer(checkpoint, config(mx6("fp6_e2m3"), mx6("fp6_e3m2", "ceil")), layer);
  ASSERT_TRUE(weight) << message(weight);
  std::vector<float> values = dequantize(*weight);
  values.resize(4);
  EXPECT_EQ(values, (std::vector<float>{0.25f, 15, -2.25f, 4}));
  EXPECT_EQ(weight->activation.type, A::Type::kE3M2);
  EXPECT_EQ(weight->activation.scale_rule, A::ScaleRule::kE8M0Above);
  weight = load_layer(checkpoint, config(mx6("fp6_e3m2"), mx6("fp6_e2m3", "floor")), layer);
  ASSERT_TRUE(weight) << message(weight);
  values = dequantize(*weight);
  values.resize(4);
  EXPECT_EQ(values, (std::vector<float>{0.125f, 56, -0.625f * 2, 4}));
  EXPECT_EQ(tensor::to_string(weight->activation), "e2m3 g32 x e8m0");
  EXPECT_EQ(message(load_layer(checkpoint, config(kMx, kMx), layer)),
            "model.layers.0.mlp.up_proj.weight u8 (1, 24) has 6 bits for each of 32 inputs, but "
            "its dtype is \"fp4\", neither fp6_e2m3 nor fp6_e3m2");
}

std::string mx(const char* element, const char* more = "") {
  return fmt::format(R"({{"dtype": "mx", "mx_element_dtype": "{}", "qscheme": null,
      "group_size": 32, "is_dynamic": false{}}})",
                     element, more);
}

TEST(quark, the_dtype_mx_has_signed_exponents_and_splits_codes_of_6_bits) {
  TestCheckpoint four;
  four.add(kModule + ".weight", DType::kU8, {1, 16}, std::vector<uint8_t>(16, 0xf2));
  four.add(kModule + ".weight_scale", DType::kU8, {1, 1}, std::vector<uint8_t>{0xfe});
  const LinearLayer layer = {kModule, 1, 32, false, {}};
  auto weight = load_layer(four, config(mx("fp4"), mx("fp8_e4m3")), layer);
  ASSERT_TRUE(weight) << message(weight);
  std::vector<float> values = dequantize(*weight);
  EXPECT_EQ(values[0], 0.25f);  // 1 * 2^-2
  EXPECT_EQ(values[1], -1.5f);
  EXPECT_EQ(tensor::to_string(weight->activation), "e4m3 g32 x e8m0");
  EXPECT_FALSE(weight->activation.is_static);
  TestCheckpoint six;
  // The codes 1, 31, 32 + 9 and 16: 0|01 1|1111 10|1001 01|0000.
  std::vector<uint8_t> bytes(24);
  bytes[0] = 0b00'01'10'01, bytes[1] = 0x1f, bytes[2] = 0x90;
  six.add(kModule + ".weight", DType::kU8, {1, 24}, bytes);
  six.add(kModule + ".weight_scale", DType::kU8, {1, 1}, std::vector<uint8_t>{1});
  weight = load_layer(six, config(mx("fp6_e2m3"), mx("fp6_e3m2")), layer);
  ASSERT_TRUE(weight) << message(weight);
  values = dequantize(*weight);
  values.resize(4);
  EXPECT_EQ(values, (std::vector<float>{0.25f, 15, -2.25f, 4}));
  EXPECT_EQ(tensor::to_string(weight->format), "e2m3g32");
  weight = load_layer(six, config(mx("fp6_e3m2"), mx("fp4")), layer);
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(dequantize(*weight)[1], 56);
}

TEST(quark, what_the_dtype_mx_cannot_be_is_refused) {
  TestCheckpoint checkpoint;
  checkpoint.add(kModule + ".weight", DType::kU8, {1, 16}, std::vector<uint8_t>(16, 0xf2));
  checkpoint.add(kModule + ".weight_scale", DType::kU8, {1, 1}, std::vector<uint8_t>{0x80});
  const LinearLayer layer = {kModule, 1, 32, false, {}};
  EXPECT_EQ(message(load_layer(checkpoint, config(mx("fp4")), layer)),
            "weight_scale is the exponent -128; those of scales begin at -127");
  checkpoint.add(kModule + ".weight_scale", DType::kF32, {1, 1}, std::vector<float>{1});
  EXPECT_EQ(message(load_layer(checkpoint, config(mx("fp4")), layer)),
            kModule +
                ".weight_scale is f32, but the dtype is mx, of which fp4 and fp6 with scales "
                "of u8 are read");
  const std::string at = "config.json: quantization_config: global_quant_config: input_tensors: ";
  const auto inputs = [&](const std::string& spec) {
    return message(parse_config(checkpoint, config(mx("fp4"), spec)));
  };
  EXPECT_EQ(inputs(R"({"dtype": "mx"})"), at + "key \"mx_element_dtype\" is missing");
  EXPECT_EQ(inputs(mx("int8")),
            at + "mx_element_dtype is \"int8\"; known are: fp4, fp6_e2m3, fp6_e3m2, fp8_e4m3");
  EXPECT_EQ(inputs(R"({"dtype": "mx", "mx_element_dtype": "fp4", "group_size": 16})"),
            at + "group_size is 16, but dtype mx has groups of 32");
}

TEST(quark, what_is_not_read_is_refused_by_name) {
  const TestCheckpoint checkpoint = fp8_checkpoint();
  const std::string at = "config.json: quantization_config: global_quant_config: ";
  EXPECT_EQ(message(parse_config(checkpoint, config(kFp8, R"({"dtype": "fp8_e5m2"})"))),
            at + "input_tensors: dtype is \"fp8_e5m2\"; known are: fp8_e4m3, int8, fp4, fp6_e2m3, "
                 "fp6_e3m2, mx, float16, bfloat16");
  EXPECT_EQ(message(parse_config(
                checkpoint, config(kFp8, R"({"dtype": "fp8_e4m3", "qscheme": "per_channel"})"))),
            "config.json: quantization_config: global_quant_config: input_tensors are per_channel "
            "and static; static ones are read per tensor");
  EXPECT_EQ(message(parse_config(checkpoint, R"({"quant_method": "quark", "global_quant_config":
                {"weight": {"dtype": "int8"}, "bias": {"dtype": "int8"}}})")),
            "config.json: quantization_config: global_quant_config: the bias is quantized, which "
            "is not read");
  const std::string types =
      "int8, uint8, int4, uint4, fp8_e4m3, fp8_e5m2, fp6_e2m3, fp6_e3m2, fp4, mx, float16, "
      "bfloat16, float32";
  EXPECT_EQ(message(parse_config(checkpoint, config(R"({"dtype": "mx6"})"))),
            at + "weight: dtype is \"mx6\"; known are: " + types);
  EXPECT_EQ(
      message(parse_config(checkpoint, config(R"({"dtype": "fp4", "scale_format": "e5m3"})"))),
      at + "weight: scale_format is \"e5m3\"; known are: float32, e8m0, e4m3, float16, "
           "bfloat16");
  EXPECT_EQ(message(parse_config(checkpoint, config(R"({"qscheme": "per_tensor"})"))),
            at + "weight: key \"dtype\" is missing");
  EXPECT_EQ(message(parse_config(checkpoint, config(kFp8, R"({"qscheme": "per_tensor"})"))),
            at + "input_tensors: key \"dtype\" is missing");
  TestCheckpoint bare;
  bare.add(kModule + ".weight", DType::kE4M3, {2, 1}, std::vector<uint8_t>{0x38, 0xc0});
  EXPECT_EQ(
      message(load_layer(bare, config(kFp8), kFp8Layer)),
      "model.layers.0.mlp.up_proj.weight is e4m3, but has no scale: neither weight_scale_inv nor "
      "weight_scale is stored");
  TestCheckpoint nibbles;
  nibbles.add(kModule + ".weight", DType::kU8, {1, 16}, std::vector<uint8_t>(16));
  nibbles.add(kModule + ".weight_scale", DType::kU8, {1, 1}, std::vector<uint8_t>{127});
  for (const char* dtype : {"int4", "fp6_e2m3"}) {
    EXPECT_EQ(message(load_layer(nibbles, config(fmt::format(R"({{"dtype": "{}"}})", dtype)),
                                 {kModule, 1, 32, false, {}})),
              fmt::format("model.layers.0.mlp.up_proj.weight u8 (1, 16) has 4 bits for each input, "
                          "but its dtype is \"{}\"; of such bytes fp4 is read",
                          dtype));
  }
  TestCheckpoint int8 = int8_checkpoint();
  int8.add(kModule + ".weight_scale", DType::kF32, {3}, std::vector<float>{1, 1, 1});
  EXPECT_EQ(message(load_layer(int8, config(R"({"dtype": "int8"})"), kInt8Layer)),
            "model.layers.0.mlp.up_proj.weight_scale: (3) is neither one scale nor one per output "
            "(2) nor one per group and output");
  TestCheckpoint ragged;
  ragged.add(kModule + ".weight", DType::kS32, {2, 1}, std::vector<int32_t>{1, 2});
  ragged.add(kModule + ".weight_scale", DType::kF32, {2}, std::vector<float>{1, 1});
  EXPECT_EQ(
      message(load_layer(ragged, config(R"({"dtype": "int4"})"), {kModule, 2, 12, false, {}})),
      "model.layers.0.mlp.up_proj: 12 inputs do not fill whole words of eight 4-bit codes");
  CheckpointFacts facts;
  EXPECT_EQ(message(find_scheme("quark")->parse(facts)),
            "quark needs a quantization_config: only it says what is done to activations");
}

}  // namespace
}  // namespace nibble::quant
