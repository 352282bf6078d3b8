#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>

#include "quant/schemes/compressed_tensors_test_support.h"

namespace nibble::quant {
namespace {

TEST(compressed_tensors, packed_codes_are_one_stream_or_whole_words) {
  for (const int64_t bits : {2, 3, 4, 5, 6, 7, 8}) {
    for (const bool dense : {true, false}) {
      SCOPED_TRACE(fmt::format("{} bits, dense {}", bits, dense));
      const auto weight = load_layer(
          with_packed(3, 134, bits, 17, dense),  // the last group has 6 inputs
          dictionary(fmt::format(R"("num_bits": "{}", "group_size": "8")", bits)), layer(3, 134));
      ASSERT_TRUE(weight) << message(weight);
      EXPECT_EQ(tensor::to_string(weight->format), fmt::format("s{}g8", bits));
      expect_codes(*weight, bits, 8);
    }
  }
}

// 22 codes of 3 bits take three words either way.
TEST(compressed_tensors, where_both_packings_take_as_many_words_the_version_tells) {
  for (const bool dense : {true, false}) {
    const auto checkpoint = with_packed(2, 22, 3, 1, dense);
    const std::string weights = R"("num_bits": 3, "group_size": -1)";
    const auto weight = load_layer(
        checkpoint,
        dictionary(weights, "", dense ? R"("version": "0.18.0",)" : R"("version": "0.12.2",)"),
        layer(2, 22));
    ASSERT_TRUE(weight) << message(weight);
    expect_codes(*weight, 3, 22);
    EXPECT_EQ(message(load_layer(checkpoint, dictionary(weights), layer(2, 22))),
              kModule +
                  ".weight_packed (2, 3): 22 codes of 3 bits take as many words as one stream "
                  "and with whole codes in each word, and the dictionary has no version that "
                  "tells which");
  }
}

TEST(compressed_tensors, the_number_of_words_must_be_that_of_num_bits) {
  EXPECT_EQ(message(load_layer(with_packed(2, 32, 4, 4), dictionary(R"("num_bits": 8,
                               "group_size": 8)"),
                               layer(2, 32))),
            kModule + ".weight_packed (2, 4): " + kG +
                "weights: num_bits is 8, type is \"int\", and 32 codes of 8 bits take 8 words");
}

// Zero points 0 and 15 as they are stored, offset by 8.
TEST(compressed_tensors, zero_points_are_packed_along_the_outputs) {
  TestCheckpoint checkpoint = with_packed(9, 16, 4, 2);
  // (2, 2): outputs 0 to 7 of group 0 and 1, then output 8.
  checkpoint.add<uint32_t>(kModule + ".weight_zero_point", DType::kS32, {2, 2},
                           {0x76543210, 0xfedcba98, 0xf, 0x0});
  const auto weight =
      load_layer(checkpoint, dictionary(kInt4 + R"(, "symmetric": false)"), layer(9, 16));
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(tensor::to_string(weight->format), "u4g8+zp");
  const std::vector<float> got = dequantize(*weight);
  for (int64_t n = 0; n < 9; ++n) {
    for (int64_t k = 0; k < 16; ++k) {
      const int64_t zero = n == 8 ? (k < 8 ? 15 : 0) : n + (k < 8 ? 0 : 8);
      const float scale = 0.5f + static_cast<float>(n * 2 + k / 8);
      EXPECT_EQ(got[static_cast<size_t>(n * 16 + k)],
                static_cast<float>(code(n, k, 4) - zero) * scale);
    }
  }
}

TEST(compressed_tensors, zero_points_beside_symmetric_weights_must_be_zero) {
  TestCheckpoint checkpoint = with_packed(8, 16, 4, 2);
  checkpoint.add<uint32_t>(kModule + ".weight_zero_point", DType::kS32, {1, 2},
                           {0x88888888, 0x88888888});
  const auto weight = load_layer(checkpoint, dictionary(kInt4), layer(8, 16));
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(tensor::to_string(weight->format), "s4g8");
  checkpoint.add<uint32_t>(kModule + ".weight_zero_point", DType::kS32, {1, 2},
                           {0x88888888, 0x88888878});
  EXPECT_EQ(message(load_layer(checkpoint, dictionary(kInt4), layer(8, 16))),
            "weight_zero_point: element (1, 1) is -1, but symmetric is true");
}

TEST(compressed_tensors, asymmetric_weights_need_zero_points) {
  EXPECT_EQ(message(load_layer(with_packed(8, 16, 4, 2),
                               dictionary(kInt4 + R"(, "symmetric": false)"), layer(8, 16))),
            "missing " + kModule + ".weight_zero_point");
}

TEST(compressed_tensors, act_order_is_in_weight_g_idx) {
  TestCheckpoint checkpoint = with_packed(2, 8, 4, 2);
  checkpoint.add<int32_t>(kModule + ".weight_g_idx", DType::kS32, {8}, {1, 0, 0, 1, 1, 0, 1, 0});
  const std::string weights = R"("num_bits": 4, "group_size": 4, "actorder": "group")";
  const auto weight = load_layer(checkpoint, dictionary(weights), layer(2, 8));
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(tensor::to_string(weight->format), "s4g4+act");
  const std::vector<float> got = dequantize(*weight);
  const int64_t group[] = {1, 0, 0, 1, 1, 0, 1, 0};
  for (int64_t k = 0; k < 8; ++k) {
    EXPECT_EQ(got[static_cast<size_t>(8 + k)],
              static_cast<float>(code(1, k, 4) - 8) * (2.5f + static_cast<float>(group[k])));
  }
  // The index was never set: groups are neighbours.
  checkpoint.add<int32_t>(kModule + ".weight_g_idx", DType::kS32, {8}, std::vector<int32_t>(8, -1));
  const auto unset = load_layer(checkpoint, dictionary(weights), layer(2, 8));
  ASSERT_TRUE(unset) << message(unset);
  expect_codes(*unset, 4, 4);
  // An order that the config does not speak of.
  checkpoint.add<int32_t>(kModule + ".weight_g_idx", DType::kS32, {8}, {1, 0, 0, 1, 1, 0, 1, 0});
  EXPECT_EQ(
      message(load_layer(checkpoint, dictionary(R"("num_bits": 4, "group_size": 4)"), layer(2, 8))),
      "weight_g_idx: input 0 is in group 1, but without act-order that is 0; set actorder to "
      "\"group\" if the inputs are scattered");
  checkpoint.add<int32_t>(kModule + ".weight_g_idx", DType::kS32, {8}, {0, 0, 0, 0, 1, 1, 1, 2});
  EXPECT_EQ(message(load_layer(checkpoint, dictionary(weights), layer(2, 8))),
            "weight_g_idx: input 7 is in group 2, but there are groups 0 to 1");
}

TEST(compressed_tensors, integers_of_fewer_bits_may_lie_in_bytes) {
  TestCheckpoint checkpoint;
  checkpoint.add<int8_t>(kModule + ".weight", DType::kS8, {2, 4}, {-8, 7, 0, 1, 2, 3, 4, 5});
  checkpoint.add<float>(kModule + ".weight_scale", DType::kF32, {2, 2}, {1, 2, 0, 4});
  const std::string weights = R"("num_bits": 4, "group_size": 2)";
  const auto weight = load_layer(checkpoint, dictionary(weights), layer(2, 4));
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(tensor::to_string(weight->format), "s4g2");
  EXPECT_EQ(dequantize(*weight), (std::vector<float>{-8, 7, 0, 2, 0, 0, 16, 20}));  // a scale of 0
  checkpoint.add<int8_t>(kModule + ".weight", DType::kS8, {2, 4}, {-8, 7, 0, 1, 2, 3, 8, 5});
  EXPECT_EQ(message(load_layer(checkpoint, dictionary(weights), layer(2, 4))),
            "weight: element (1, 2) is 8, but num_bits is 4, which means -8 to 7");
}

TEST(compressed_tensors, the_shape_of_the_scale_decides_what_it_scales) {
  for (const int64_t scales : {1, 3}) {
    TestCheckpoint checkpoint;
    checkpoint.add<int8_t>(kModule + ".weight", DType::kS8, {3, 2}, {1, 2, 3, 4, 5, 6});
    checkpoint.add(kModule + ".weight_scale", DType::kF32, {scales},
                   std::vector<float>(static_cast<size_t>(scales), 0.5f));
    const auto weight = load_layer(checkpoint, dictionary(kInt8), layer(3, 2));
    ASSERT_TRUE(weight) << message(weight);
    EXPECT_EQ(tensor::to_string(weight->format), scales == 1 ? "s8t" : "s8c");
  }
  EXPECT_EQ(message(load_layer(with_packed(2, 32, 4, 2), dictionary(kInt4), layer(2, 32))),
            kModule + ".weight_scale (2, 2): one per 8 inputs is (2, 4), as " + kG +
                "weights says, and it is neither one for the tensor nor one per output");
}

TEST(compressed_tensors, a_scale_that_is_no_number_is_refused) {
  TestCheckpoint checkpoint = with_packed(1, 16, 4, 2);
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    checkpoint.add<float>(kModule + ".weight_scale", DType::kF32, {1, 2}, {1, bad});
    EXPECT_EQ(message(load_layer(checkpoint, dictionary(kInt4), layer(1, 16))),
              fmt::format("weight_scale: element (0, 1) is {}; the file is damaged", bad));
  }
}

TEST(compressed_tensors, weight_shape_must_be_the_models) {
  TestCheckpoint checkpoint = with_packed(2, 16, 4, 2);
  checkpoint.add<int64_t>(kModule + ".weight_shape", DType::kS64, {2}, {2, 16});
  ASSERT_TRUE(load_layer(checkpoint, dictionary(kInt4), layer(2, 16)));
  checkpoint.add<int64_t>(kModule + ".weight_shape", DType::kS64, {2}, {16, 2});
  EXPECT_EQ(message(load_layer(checkpoint, dictionary(kInt4), layer(2, 16))),
            "weight_shape says (16, 2), but config.json makes the weight (2, 16)");
}

TestCheckpoint with_fp8(std::vector<uint8_t> codes = {0x38, 0x40, 0xb8, 0x00}) {
  TestCheckpoint out;
  out.add(kModule + ".weight", DType::kE4M3, {2, 2}, codes);
  out.add<float>(kModule + ".weight_scale", DType::kF32, {1}, {0.5f});
  return out;
}

TEST(compressed_tensors, fp8_codes_that_are_no_numbers_are_refused) {
  const TestCheckpoint stored = with_fp8();  // whose codes the weight shows
  const auto weight = load_layer(stored, dictionary(kFp8), layer(2, 2));
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(dequantize(*weight), (std::vector<float>{0.5f, 1, -0.5f, 0}));
  EXPECT_EQ(message(load_layer(with_fp8({0, 0x7f, 0, 0}), dictionary(kFp8), layer(2, 2))),
            "weight: element (0, 1) is 0x7f, which is no number; the file is damaged or was "
            "quantized with a scale of zero");
}

TEST(compressed_tensors, what_is_stored_must_be_what_the_group_says) {
  EXPECT_EQ(
      message(load_layer(with_fp8(), dictionary(kInt8), layer(2, 2))),
      kModule + ".weight is stored as e4m3, but " + kG + "weights: num_bits is 8, type is \"int\"");
  EXPECT_EQ(message(load_layer(with_packed(2, 16, 4, 2), dictionary(kFp4), layer(2, 16))),
            kModule + ".weight_packed is stored as s32, but " + kG +
                "weights: num_bits is 4, type is \"float\"");
  TestCheckpoint checkpoint;
  checkpoint.add<uint16_t>(kModule + ".weight", DType::kU16, {1, 2}, {0, 0});
  EXPECT_EQ(message(load_layer(checkpoint, dictionary(kInt8), layer(1, 2))),
            kModule +
                ".weight is u16; compressed-tensors stores s32 and u8 under weight_packed, "
                "s8, e4m3 and floats under weight");
}

TestCheckpoint with_fp4(float global) {
  TestCheckpoint out;
  // 0 .5 -1 6 -6 1.5 -0 -4, twice
  out.add<uint8_t>(kModule + ".weight_packed", DType::kU8, {1, 8},
                   {0x10, 0x7a, 0x3f, 0xe8, 0x10, 0x7a, 0x3f, 0xe8});
  out.add<uint8_t>(kModule + ".weight_scale", DType::kE4M3, {1, 1}, {0x40});  // 2
  out.add<float>(kModule + ".weight_global_scale", DType::kF32, {1}, {global});
  return out;
}

TEST(compressed_tensors, the_global_scale_of_nvfp4_divides) {
  const auto weight = load_layer(with_fp4(8), dictionary(kFp4), layer(1, 16));
  ASSERT_TRUE(weight) << message(weight);
  const std::vector<float> got = dequantize(*weight);
  const std::vector<float> eight = {0, 0.125f, -0.25f, 1.5f, -1.5f, 0.375f, -0.0f, -1};
  EXPECT_EQ(std::vector<float>(got.begin(), got.begin() + 8), eight);
  EXPECT_TRUE(std::signbit(got[6]));
  for (const float bad : {0.0f, -1.0f}) {
    EXPECT_EQ(message(load_layer(with_fp4(bad), dictionary(kFp4), layer(1, 16))),
              fmt::format("weight_global_scale is {}; a scale is positive", bad));
  }
  TestCheckpoint without = with_fp4(8);
  without.remove(kModule + ".weight_global_scale");
  EXPECT_EQ(message(load_layer(without, dictionary(kFp4), layer(1, 16))),
            "missing " + kModule + ".weight_global_scale");
}

TEST(compressed_tensors, bytes_beside_floats_are_exponents) {
  TestCheckpoint checkpoint = with_fp4(8);
  checkpoint.remove(kModule + ".weight_global_scale");
  const std::string mx = R"("num_bits": 4, "type": "float", "group_size": 32,
                            "scale_dtype": "torch.uint8")";
  for (const DType dtype : {DType::kU8, DType::kE8M0}) {
    checkpoint.add<uint8_t>(kModule + ".weight_scale", dtype, {1, 1}, {128});
    const auto weight = load_layer(checkpoint, dictionary(mx), layer(1, 16));
    ASSERT_TRUE(weight) << message(weight);
    EXPECT_EQ(weight->format.scale_type, DType::kE8M0);
    EXPECT_EQ(dequantize(*weight)[3], 12.0f);
    checkpoint.add<uint8_t>(kModule + ".weight_scale", dtype, {1, 1}, {0});
    EXPECT_EQ(dequantize(*load_layer(checkpoint, dictionary(mx), layer(1, 16)))[3], 6 * 0x1p-127f);
    checkpoint.add<uint8_t>(kModule + ".weight_scale", dtype, {1, 1}, {255});
    EXPECT_EQ(message(load_layer(checkpoint, dictionary(mx), layer(1, 16))),
              "weight_scale is nan; the file is damaged");
  }
}

// Codes 0 to 31 and their negatives: eighths below 1, then three exponents.
TEST(compressed_tensors, e2m3_codes_are_held_as_the_e4m3_of_the_same_value) {
  TestCheckpoint checkpoint;
  std::vector<uint8_t> bytes;
  for (uint32_t code = 0; code < 64; code += 4) {
    const uint32_t word = code | (code + 1) << 6 | (code + 2) << 12 | (code + 3) << 18;
    for (int i = 0; i < 3; ++i) bytes.push_back(static_cast<uint8_t>(word >> (8 * i)));
  }
  checkpoint.add(kModule + ".weight_packed", DType::kU8, {1, 48}, bytes);
  checkpoint.add<uint8_t>(kModule + ".weight_scale", DType::kU8, {1, 2}, {127, 126});
  const auto weight = load_layer(
      checkpoint, dictionary(R"("num_bits": 6, "type": "float", "group_size": 32)"), layer(1, 64));
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(tensor::to_string(weight->format), "e2m3g32");
  const std::vector<float> got = dequantize(*weight);
  for (size_t i = 0; i < 32; ++i) {
    const auto m = static_cast<float>(i % 8) / 8;
    const float value = i < 8 ? m : (1 + m) * static_cast<float>(1 << (i / 8 - 1));
    EXPECT_EQ(got[i], value);
    EXPECT_EQ(got[32 + i], -value / 2);
    EXPECT_TRUE(std::signbit(got[32 + i]));
  }
}

TEST(compressed_tensors, inputs_are_held_as_the_group_says) {
  struct Case {
    const char* inputs;
    const char* shown;
  };
  for (const Case& c : {
           Case{R"("num_bits": 8, "strategy": "token", "dynamic": true)", "s8 token"},
           Case{R"("num_bits": 8, "strategy": "tensor", "dynamic": true)", "s8 tensor"},
           Case{R"("num_bits": 8, "strategy": "token", "dynamic": true, "symmetric": false)",
                "s8 token asym"},
           Case{R"("num_bits": 4, "strategy": "token", "dynamic": true)", "s4 token"},
           Case{R"("num_bits": 8, "group_size": 32, "dynamic": true)", "s8 g32"},
           Case{R"("num_bits": 8, "type": "float", "strategy": "token", "dynamic": true)",
                "e4m3 token"},
           Case{R"("num_bits": 8, "type": "float", "group_size": 32, "dynamic": true,
                   "scale_dtype": "torch.uint8")",
                "e4m3 g32 x e8m0"},
           Case{R"("num_bits": 4, "type": "FLOAT", "strategy": "tensor_group", "group_size": 16,
                   "dynamic": true)",
                "e2m1 g16 x e4m3"},
       }) {
    const auto weight =
        load_layer(with_packed(2, 16, 4, 2), dictionary(kInt4, c.inputs), layer(2, 16));
    ASSERT_TRUE(weight) << message(weight);
    EXPECT_EQ(tensor::to_string(weight->activation), c.shown);
    EXPECT_EQ(
        weight->activation.half_range,
        std::string(c.shown)[0] == 's' && std::string(c.shown).find("asym") == std::string::npos);
  }
}

TEST(compressed_tensors, fp4_inputs_beside_mx_weights_are_mx_also_where_no_scale_dtype_says_so) {
  TestCheckpoint checkpoint;
  checkpoint.add(kModule + ".weight_packed", DType::kU8, {1, 16}, std::vector<uint8_t>(16, 0x21));
  checkpoint.add<uint8_t>(kModule + ".weight_scale", DType::kU8, {1, 1}, {127});
  const std::string fp4 = R"("num_bits": 4, "type": "float", "group_size": 32)";
  const auto shown = [&](const std::string& inputs) {
    const auto weight = load_layer(checkpoint, dictionary(fp4, inputs), layer(1, 32));
    return weight ? tensor::to_string(weight->activation) : message(weight);
  };
  EXPECT_EQ(shown(fp4 + R"(, "dynamic": true)"), "e2m1 g32 x e8m0");
  EXPECT_EQ(shown(fp4 + R"(, "dynamic": true, "scale_dtype": "torch.bfloat16")"), "e2m1 g32");
  EXPECT_EQ(shown(R"("num_bits": 8, "type": "float", "group_size": 32, "dynamic": true)"),
            "e4m3 g32");
}

TEST(compressed_tensors, static_inputs_need_their_scale_and_zero_point) {
  const std::string inputs = R"("num_bits": 8, "dynamic": false, "symmetric": false)";
  TestCheckpoint checkpoint = with_packed(2, 16, 4, 2);
  EXPECT_EQ(message(load_layer(checkpoint, dictionary(kInt4, inputs), layer(2, 16))),
            "missing " + kModule + ".input_scale");
  checkpoint.add<uint16_t>(kModule + ".input_scale", DType::kBF16, {1}, {0x3f00});
  EXPECT_EQ(message(load_layer(checkpoint, dictionary(kInt4, inputs), layer(2, 16))),
            "missing " + kModule + ".input_zero_point");
  checkpoint.add<int8_t>(kModule + ".input_zero_point", DType::kS8, {1}, {-7});
  const auto weight = load_layer(checkpoint, dictionary(kInt4, inputs), layer(2, 16));
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(tensor::to_string(weight->activation), "s8 tensor static asym");
  EXPECT_EQ(weight->input_scale, 0.5f);
  EXPECT_EQ(weight->input_zero, -7);
  EXPECT_EQ(message(load_layer(checkpoint, dictionary(kInt4, R"("num_bits": 8)"), layer(2, 16))),
            "input_zero_point is -7, but symmetric is true");
  checkpoint.add<int32_t>(kModule + ".input_zero_point", DType::kS32, {1}, {300});
  EXPECT_EQ(message(load_layer(checkpoint, dictionary(kInt4, inputs), layer(2, 16))),
            "input_zero_point is 300; a zero point of int8 inputs is a whole number from -128 to "
            "127");
  checkpoint.add<float>(kModule + ".input_scale", DType::kF32, {1}, {0});
  EXPECT_EQ(message(load_layer(checkpoint, dictionary(kInt4, inputs), layer(2, 16))),
            "input_scale is 0; a scale is positive");
}

TEST(compressed_tensors, the_global_scale_of_the_inputs_divides) {
  TestCheckpoint checkpoint = with_fp4(8);
  const std::string inputs = R"("num_bits": 4, "type": "float", "strategy": "tensor_group",
                                "group_size": 16, "dynamic": "local")";
  EXPECT_EQ(message(load_layer(checkpoint, dictionary(kFp4, inputs), layer(1, 16))),
            "missing " + kModule + ".input_global_scale");
  checkpoint.add<float>(kModule + ".input_global_scale", DType::kF32, {1}, {4});
  const auto weight = load_layer(checkpoint, dictionary(kFp4, inputs), layer(1, 16));
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(weight->input_scale, 0.25f);
}

TEST(compressed_tensors, scales_that_nothing_reads_are_unused_and_say_why) {
  TestCheckpoint checkpoint = with_packed(2, 16, 4, 2);
  checkpoint.add<float>(kModule + ".input_scale", DType::kF32, {1}, {4});
  const auto config = parse_config(checkpoint, dictionary(kInt4));
  const auto method = (*config)->linear_method(layer(2, 16), checkpoint.lookup());
  ASSERT_TRUE(method) << message(method);
  bool found = false;
  for (const WeightSpec& spec : (*method)->create_weights()) {
    if (spec.suffix != "input_scale") continue;
    found = true;
    EXPECT_EQ(spec.slot, Slot::kUnused);
    EXPECT_EQ(spec.unused, "the config leaves the inputs of this layer alone");
  }
  EXPECT_TRUE(found);
}

TEST(compressed_tensors, a_layer_stored_as_floats_is_left_alone_whatever_targets_say) {
  TestCheckpoint checkpoint;
  checkpoint.add<uint16_t>(kModule + ".weight", DType::kBF16, {1, 2}, {0x3f80, 0x4000});
  const auto config = parse_config(checkpoint, dictionary(kInt4));
  const auto method = (*config)->linear_method(layer(1, 2), checkpoint.lookup());
  ASSERT_TRUE(method) << message(method);
  EXPECT_EQ((*method)->scheme(), "unquantized");
  checkpoint.add<float>(kModule + ".weight_scale", DType::kF32, {1}, {1});
  EXPECT_EQ(
      message((*config)->linear_method(layer(1, 2), checkpoint.lookup())),
      kModule + ".weight is bf16, but " + kModule +
          ".weight_scale is stored beside it: the checkpoint was saved before its weights were "
          "compressed; save it with save_compressed=True");
}

// Two groups: which one a layer belongs to.

TEST(compressed_tensors, the_mask_keeps_half_of_every_row) {
  TestCheckpoint checkpoint;
  checkpoint.add<uint16_t>(kModule + ".compressed", DType::kBF16, {1, 4},
                           {0x3f80, 0x4000, 0x4040, 0x4080});
  checkpoint.add<uint8_t>(kModule + ".bitmask", DType::kU8, {1, 1}, {0b01101001});
  checkpoint.add<int64_t>(kModule + ".shape", DType::kS64, {2, 1}, {1, 8});
  const std::string sparse = R"({"quant_method": "compressed-tensors",
      "sparsity_config": {"format": "sparse-24-bitmask"}})";
  const auto weight = load_layer(checkpoint, sparse, layer(1, 8));
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(dequantize(*weight), (std::vector<float>{1, 0, 0, 2, 0, 3, 4, 0}));
  checkpoint.add<uint8_t>(kModule + ".bitmask", DType::kU8, {1, 1}, {0b01101000});
  EXPECT_EQ(message(load_layer(checkpoint, sparse, layer(1, 8))),
            "bitmask: row 0 keeps 3 of 8 inputs, expected 4");
  checkpoint.remove(kModule + ".compressed");
  EXPECT_EQ(message(load_layer(checkpoint, sparse, layer(1, 8))),
            kModule + ".bitmask is stored, but " + kModule + ".compressed is not");
}

TEST(compressed_tensors, a_mask_with_offsets_keeps_any_inputs) {
  TestCheckpoint checkpoint;
  checkpoint.add<uint16_t>(kModule + ".compressed", DType::kBF16, {3}, {0x3f80, 0x4000, 0x4040});
  checkpoint.add<uint8_t>(kModule + ".bitmask", DType::kU8, {3, 2}, {0x01, 0x02, 0, 0, 0x80, 0});
  checkpoint.add<int64_t>(kModule + ".row_offsets", DType::kS64, {3}, {0, 2, 2});
  checkpoint.add<int64_t>(kModule + ".shape", DType::kS64, {2}, {3, 10});
  const std::string sparse = R"({"quant_method": "compressed-tensors",
      "sparsity_config": {"format": "sparse-bitmask"}})";
  const auto weight = load_layer(checkpoint, sparse, layer(3, 10));
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(dequantize(*weight), (std::vector<float>{1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0,
                                                     0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0}));
  TestCheckpoint older = checkpoint;
  for (const char* suffix : {"compressed", "bitmask", "row_offsets", "shape"}) {
    const tensor::TensorView view = checkpoint.view(kModule + "." + suffix);
    older.add_bytes(kModule + ".weight." + suffix, view.dtype, view.shape,
                    {reinterpret_cast<const char*>(view.data), view.bytes});
    older.remove(kModule + "." + suffix);
  }
  const auto same = load_layer(older, sparse, layer(3, 10));
  ASSERT_TRUE(same) << message(same);
  EXPECT_EQ(dequantize(*same), dequantize(*weight));
  checkpoint.add<int64_t>(kModule + ".row_offsets", DType::kS64, {3}, {0, 1, 2});
  EXPECT_EQ(message(load_layer(checkpoint, sparse, layer(3, 10))),
            "bitmask: row 0 keeps 2 inputs, and row_offsets leaves it the values 0 to 1 of 3");
  checkpoint.add<int64_t>(kModule + ".row_offsets", DType::kS64, {3}, {0, 2, -1});
  EXPECT_EQ(message(load_layer(checkpoint, sparse, layer(3, 10))),
            "bitmask: row 1 keeps 0 inputs, and row_offsets leaves it the values 2 to -1 of 3");
  checkpoint.add<uint8_t>(kModule + ".bitmask", DType::kU8, {3, 2}, {0x01, 0x04, 0, 0, 0x80, 0});
  EXPECT_EQ(message(load_layer(checkpoint, sparse, layer(3, 10))),
            "bitmask: row 0 has bits beyond its 10 inputs");
  checkpoint.remove(kModule + ".row_offsets");
  EXPECT_EQ(message(load_layer(checkpoint, sparse, layer(3, 10))),
            kModule + ".compressed (3) holds what a bit mask keeps, one row after the other, but " +
                kModule + ".row_offsets is missing");
}

TEST(compressed_tensors, marlin_24_needs_whole_tiles_and_places_that_differ) {
  TestCheckpoint checkpoint;
  checkpoint.add(kModule + ".weight_packed", DType::kS32, {1, 128}, std::vector<int32_t>(128));
  checkpoint.add(kModule + ".meta", DType::kS16, {1, 128}, std::vector<int16_t>(128));
  checkpoint.add(kModule + ".scale_packed", DType::kF16, {1, 64}, std::vector<uint16_t>(64));
  const std::string weights = R"("num_bits": 4, "group_size": -1)";
  EXPECT_EQ(message(load_layer(checkpoint, dictionary(weights), layer(64, 32))),
            "meta: output 0, inputs 0 to 3: both kept codes have place 0");
  EXPECT_EQ(message(load_layer(checkpoint, dictionary(weights), layer(60, 32))),
            kModule +
                ": 60 outputs and 32 inputs do not fill whole tiles of 64 by 32, of which "
                "marlin-24 is made");
}

// What parse says about a dictionary.

}  // namespace
}  // namespace nibble::quant
