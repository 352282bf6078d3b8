#include <gtest/gtest.h>

#include <cmath>

#include "base/number.h"
#include "checkpoint/checkpoint.h"
#include "quant/golden_support.h"
#include "quant/test_support.h"

namespace nibble::quant {
namespace {

using tensor::DType;

const std::string kModule = "mlp.up_proj";
const LinearLayer kLayer{kModule, 2, 64, false, {}};
constexpr const char* kConfig = R"({"quant_method": "torchao"})";
constexpr const char* kDType = R"({"_type": "torch.dtype", "_data": "bfloat16"})";

std::string described(const std::string& type, const std::string& data,
                      const std::string& names = R"(["qdata", "scale", "zero_point"])") {
  return "{\"_type\": \"" + type + "\", \"_data\": {" + data +
         "}, \"_tensor_data_names\": " + names + "}";
}

std::string dtype(const std::string& name) {
  return R"({"_type": "torch.dtype", "_data": ")" + name + "\"}";
}

// Codes of `bits` bits with zero points, in groups of 32; `prefix` is how names are spelled.
TestCheckpoint intx(int bits, const std::string& prefix = "_weight_",
                    const std::string& inputs = "null") {
  TestCheckpoint out;
  std::vector<int8_t> codes(128, 1);
  codes[0] = -2;
  out.add(kModule + "." + prefix + "qdata", DType::kS8, {2, 64}, codes);
  out.add<float>(kModule + "." + prefix + "scale", DType::kF32, {2, 2}, {0.5f, 1, 2, 4});
  out.add<int8_t>(kModule + "." + prefix + "zero_point", DType::kS8, {2, 2}, {1, 0, 0, -1});
  out.metadata[kModule + ".weight"] = described(
      "IntxUnpackedToInt8Tensor", "\"target_dtype\": " + dtype("int" + std::to_string(bits)) +
                                      ", \"block_size\": [1, 32], \"dtype\": " + kDType +
                                      ", \"activation_quantization\": " + inputs);
  return out;
}

TEST(torchao, codes_less_zero_points_times_scales) {
  for (const char* prefix : {"_weight_", "weight:", "weight."}) {
    for (const int bits : {2, 3, 5, 8}) {
      const auto weight = load_layer(intx(bits, prefix), kConfig, kLayer);
      ASSERT_TRUE(weight) << message(weight);
      EXPECT_EQ(tensor::to_string(weight->format), "u" + std::to_string(bits) + "g32+zp");
      const std::vector<float> w = dequantize(*weight);
      EXPECT_EQ(w[0], -1.5f);
      EXPECT_EQ(w[1], 0.0f);
      EXPECT_EQ(w[32], 1.0f);
      EXPECT_EQ(w[127], 8.0f);
    }
  }
  const auto rounded = load_layer(intx(4, "_weight_", "\"int8_asym_per_token\""), kConfig, kLayer);
  ASSERT_TRUE(rounded) << message(rounded);
  EXPECT_EQ(tensor::to_string(rounded->activation), "s8 token asym");
}

TEST(torchao, zero_points_of_symmetric_weights_are_0) {
  const std::string symmetric =
      R"({"quant_method": "torchao", "quant_type": {"default": {"_type": "IntxWeightOnlyConfig",
          "_data": {"mapping_type": {"_type": "MappingType", "_data": "SYMMETRIC"}}}}})";
  EXPECT_EQ(message(load_layer(intx(4), symmetric, kLayer)),
            "_weight_zero_point: element (0, 0) is 1, but config.json calls the weights symmetric "
            "(mapping_type)");
  TestCheckpoint zeros = intx(4);
  zeros.add<int8_t>(kModule + "._weight_zero_point", DType::kS8, {2, 2}, {0, 0, 0, 0});
  const auto weight = load_layer(zeros, symmetric, kLayer);
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(tensor::to_string(weight->format), "s4g32");
  EXPECT_EQ(dequantize(*weight)[0], -1.0f);
}

TEST(torchao, codes_beyond_their_bits_are_refused) {
  TestCheckpoint wide = intx(4);
  std::vector<int8_t> codes(128, 7);
  codes[70] = 8;
  wide.add(kModule + "._weight_qdata", DType::kS8, {2, 64}, codes);
  EXPECT_EQ(message(load_layer(wide, kConfig, kLayer)),
            "_weight_qdata: element (1, 6) is 8; codes of 4 bits are from -8 to 7");
}

// Two outputs of 64 inputs, one group, code 3 but for the first: -8.
TEST(torchao, int4_has_its_scales_turned_and_a_float_zero_point) {
  TestCheckpoint stored;
  std::vector<uint8_t> bytes(64, 0x33);
  bytes[0] = 0x38;
  stored.add(kModule + "._weight_qdata", DType::kS8, {2, 32}, bytes);
  stored.add<float>(kModule + "._weight_scale", DType::kF32, {2, 2}, {1, 2, 3, 4});
  stored.add<float>(kModule + "._weight_zero_point", DType::kF32, {2, 2}, {0.5f, 0, 0, -1});
  stored.metadata[kModule + ".weight"] = described("Int4Tensor",
                                                   "\"block_size\": [1, 32], \"shape\": [2, 64], "
                                                   "\"activation_dtype\": " +
                                                       dtype("float8_e4m3fn"));
  const auto weight = load_layer(stored, kConfig, kLayer);
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(tensor::to_string(weight->format), "s4g32+min");
  EXPECT_EQ(tensor::to_string(weight->activation), "e4m3 token");
  const std::vector<float> w = dequantize(*weight);
  EXPECT_EQ(w[0], -7.5f);
  EXPECT_EQ(w[1], 3.5f);
  EXPECT_EQ(w[32], 9.0f);  // second group of the first output
  EXPECT_EQ(w[64], 6.0f);
  EXPECT_EQ(w[127], 11.0f);
}

// Scale (r, c) of 128 x 4 stands at r % 32 * 16 + r / 32 * 4 + c.
TEST(torchao, scales_of_tensor_cores_are_put_in_order) {
  const LinearLayer layer{kModule, 66, 160, false, {}};  // five scales: two blocks of four
  TestCheckpoint stored;
  stored.add(kModule + "._weight_qdata", DType::kE4M3, {66, 160},
             std::vector<uint8_t>(66 * 160, 0x38));  // 1
  std::vector<uint8_t> scales(1024, 0);
  const auto at = [&](int r, int c) -> uint8_t& {
    return scales[static_cast<size_t>(c / 4 * 512 + r % 32 * 16 + r / 32 * 4 + c % 4)];
  };
  for (int r = 0; r < 66; ++r) {
    for (int c = 0; c < 5; ++c) at(r, c) = static_cast<uint8_t>(100 + r % 20 + c);
  }
  stored.add(kModule + "._weight_scale", DType::kE8M0, {32, 32}, scales);
  const std::string data = "\"elem_dtype\": " + dtype("float8_e4m3fn") +
                           ", \"block_size\": 32, \"is_swizzled_scales\": true, "
                           "\"act_quant_kwargs\": null";
  stored.metadata[kModule + ".weight"] = described("MXTensor", data, R"(["qdata", "scale"])");
  const auto weight = load_layer(stored, kConfig, layer);
  ASSERT_TRUE(weight) << message(weight);
  const std::vector<float> w = dequantize(*weight);
  for (const auto& [r, c] : {std::pair{0, 0}, {1, 0}, {33, 3}, {65, 4}}) {
    EXPECT_EQ(w[static_cast<size_t>(r * 160 + c * 32)], std::ldexp(1.0f, 100 + r % 20 + c - 127));
  }
  stored.add(kModule + "._weight_scale", DType::kE8M0, {66, 5}, std::vector<uint8_t>(330, 100));
  EXPECT_EQ(message(load_layer(stored, kConfig, layer)),
            "_weight_scale: expected (1024), found e8m0 (66, 5) of 330 bytes");
  // As many numbers, of four bytes each.
  stored.add(kModule + "._weight_scale", DType::kF32, {32, 32}, std::vector<float>(1024, 1));
  EXPECT_EQ(message(load_layer(stored, kConfig, layer)),
            kModule + "._weight_scale has the type f32");
  stored.metadata[kModule + ".weight"] = described(
      "MXTensor", "\"block_size\": 32, \"is_swizzled_scales\": 1", R"(["qdata", "scale"])");
  EXPECT_EQ(
      message(load_layer(stored, kConfig, layer)),
      "the description of " + kModule + ".weight has is_swizzled_scales 1; expected true or false");
}

TEST(torchao, a_layer_of_plain_floats_is_unquantized) {
  TestCheckpoint plain;
  plain.add(kModule + ".weight", DType::kF32, {2, 64}, std::vector<float>(128, 2));
  plain.metadata[kModule + ".weight"] = R"({"_type": "Tensor"})";
  plain.metadata["format"] = "pt";
  plain.metadata["tensor_names"] = R"(["mlp.up_proj.weight"])";
  const auto weight = load_layer(plain, kConfig, kLayer);
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(dequantize(*weight)[127], 2.0f);
}

std::string refusal(const std::string& type, const std::string& data) {
  TestCheckpoint stored = intx(4);
  stored.metadata[kModule + ".weight"] = described(type, data);
  return message(load_layer(stored, kConfig, kLayer));
}

TEST(torchao, what_is_not_read_is_refused_by_name) {
  const std::string is = kModule + ".weight is TorchAO's ";
  EXPECT_EQ(refusal("Int4PreshuffledTensor", ""),
            is + "Int4PreshuffledTensor: they are in the order of one GPU kernel");
  EXPECT_EQ(refusal("NewTensor", ""), is + "NewTensor: this class is not read");
  EXPECT_EQ(refusal("Int8Tensor", "\"block_size\": [1, 48]"),
            is + "Int8Tensor: block_size is [1,48], and the weight (2, 64)");
  EXPECT_EQ(refusal("Int8Tensor", ""), is + "Int8Tensor: block_size is missing, and the weight "
                                            "(2, 64)");
  EXPECT_EQ(refusal("IntxUnpackedToInt8Tensor", "\"target_dtype\": " + dtype("int9")),
            is + "IntxUnpackedToInt8Tensor: its target_dtype is \"int9\"");
  EXPECT_EQ(refusal("IntxUnpackedToInt8Tensor",
                    "\"target_dtype\": " + dtype("int4") +
                        ", \"block_size\": [1, 32], \"activation_quantization\": \"int4\""),
            is + "IntxUnpackedToInt8Tensor, whose inputs have the quantization \"int4\", which is "
                 "not done");
  EXPECT_EQ(
      refusal("Int8Tensor", R"("block_size": [1, 32], "act_quant_kwargs": "dynamic")"),
      is + "Int8Tensor, whose inputs have act_quant_kwargs of \"dynamic\", which is not done");
  EXPECT_EQ(refusal("MXTensor", "\"block_size\": 16"),
            is + "MXTensor: only blocks of 32 inputs are read");
  EXPECT_EQ(refusal("MXTensor", "\"block_size\": 32, \"elem_dtype\": \"fp6_e3m2\""),
            is + "MXTensor: only e4m3, e5m2 and e2m1 elements are read");
  EXPECT_EQ(refusal("NVFP4Tensor", "\"block_size\": 32"),
            is + "NVFP4Tensor: only blocks of 16 inputs are read");
  EXPECT_EQ(refusal("AffineQuantizedTensor", ""),
            is + "AffineQuantizedTensor: it has no tensor_impl");
  EXPECT_EQ(refusal("LinearActivationQuantizedTensor", ""),
            is + "LinearActivationQuantizedTensor: it wraps no tensor of TorchAO's");
}

// What torchao 0.9 saved: four weights of 4 x 64.
TEST(torchao, affine_quantized_tensors_of_old_releases_are_read) {
  const std::string folder = kGolden + "checkpoint/torchao_old";
  const auto opened = checkpoint::Checkpoint::open(folder);
  ASSERT_TRUE(opened) << message(opened);
  TestCheckpoint stored;
  stored.metadata = opened->metadata();
  for (const tensor::TensorInfo& info : opened->tensors()) {
    const tensor::TensorView view = *opened->view(info);
    stored.add_bytes(info.name, info.dtype, info.shape,
                     std::string(reinterpret_cast<const char*>(view.data), view.bytes));
  }
  const auto format = [&](const std::string& name) {
    const auto weight = load_layer(stored, kConfig, {name, 4, 64, false, {}});
    return weight ? tensor::to_string(weight->format) + ", " + tensor::to_string(weight->activation)
                  : message(weight);
  };
  EXPECT_EQ(format("a"), "u8c+zp, float");
  EXPECT_EQ(format("b"), "u4g32+zp, s8 token asym");
  EXPECT_EQ(format("c"),
            "c.weight is TorchAO's AffineQuantizedTensor: its tensor_impl is UintxAQTTensorImpl, "
            "which is not read");
  EXPECT_EQ(format("d"), "e4m3c, float");
  // The first code of each times its scale: 0x54 x bf16 0x3cb3, 0xfc x f32 0x3eadfa5f.
  EXPECT_EQ(dequantize(*load_layer(stored, kConfig, {"a", 4, 64, false, {}}))[0],
            84 * base::f32_from_bits(0x3cb30000));
  EXPECT_EQ(dequantize(*load_layer(stored, kConfig, {"b", 4, 64, false, {}}))[0],
            -4 * base::f32_from_bits(0x3eadfa5f));
}

TEST(torchao, inputs_are_rounded_as_their_arguments_say) {
  const auto inputs = [](const std::string& granularity, const std::string& more) {
    TestCheckpoint stored;
    stored.add(kModule + "._weight_qdata", DType::kE4M3, {2, 64}, std::vector<uint8_t>(128, 0x38));
    stored.add<float>(kModule + "._weight_scale", DType::kF32, {2, 1}, {1, 2});
    stored.metadata[kModule + ".weight"] =
        described("Float8Tensor",
                  "\"block_size\": [1, 64], \"act_quant_kwargs\": {\"_type\": "
                  "\"QuantizeTensorToFloat8Kwargs\", "
                  "\"_data\": {\"float8_dtype\": " +
                      dtype("float8_e4m3fn") + ", \"granularity\": " + granularity + more + "}}",
                  R"(["qdata", "scale"])");
    const auto weight = load_layer(stored, kConfig, kLayer);
    return weight ? tensor::to_string(weight->activation) : message(weight);
  };
  EXPECT_EQ(inputs(R"({"_type": "PerRow", "_data": {"dim": -1}})", ""), "e4m3 token");
  EXPECT_EQ(inputs(R"({"_type": "PerTensor", "_data": {}})", ""), "e4m3 tensor");
  EXPECT_EQ(inputs(R"({"_type": "PerBlock", "_data": {"block_size": [1, 32]}})", ""), "e4m3 g32");
  const std::string is = kModule + ".weight is TorchAO's Float8Tensor, whose inputs have ";
  EXPECT_EQ(inputs(R"({"_type": "PerBlock", "_data": {"block_size": [2, 32]}})", ""),
            is + R"(the granularity {"_type":"PerBlock","_data":{"block_size":[2,32]}}, )"
                 "which is not done");
  EXPECT_EQ(inputs(R"({"_type": "PerRow", "_data": {"dim": 0}})", ""),
            is + R"(the granularity {"_type":"PerRow","_data":{"dim":0}}, which is not done)");
  EXPECT_EQ(inputs(R"({"_type": "PerRow", "_data": {}})", ", \"hp_value_lb\": 0.5"),
            is + "a lower bound, which is not done");
}

// A stored act_per_tensor_scale counts only where none is found for each call.
TEST(torchao, inputs_of_blocks_have_the_scales_that_their_arguments_say) {
  const auto inputs = [](const std::string& type, const std::string& arguments, bool stored) {
    TestCheckpoint has;
    const bool nvfp4 = type == "NVFP4";
    has.add(kModule + "._weight_qdata", nvfp4 ? DType::kU8 : DType::kE4M3, {2, nvfp4 ? 32 : 64},
            std::vector<uint8_t>(nvfp4 ? 64 : 128, 0x22));
    has.add(kModule + "._weight_scale", nvfp4 ? DType::kE4M3 : DType::kE8M0, {2, nvfp4 ? 4 : 2},
            std::vector<uint8_t>(nvfp4 ? 8 : 4, 0x38));
    if (stored) has.add<float>(kModule + "._weight_act_per_tensor_scale", DType::kF32, {}, {0.5f});
    has.metadata[kModule + ".weight"] = described(
        type + "Tensor",
        (nvfp4 ? "\"block_size\": 16"
               : "\"block_size\": 32, \"elem_dtype\": " + dtype("float8_e4m3fn")) +
            std::string(R"(, "act_quant_kwargs": {"_type": "Arguments", "_data": {)") + arguments +
            "}}",
        stored ? R"(["qdata", "scale", "act_per_tensor_scale"])" : R"(["qdata", "scale"])");
    const auto weight = load_layer(has, kConfig, kLayer);
    return weight ? tensor::to_string(weight->activation) : message(weight);
  };
  const std::string dynamic = "\"use_dynamic_per_tensor_scale\": ";
  EXPECT_EQ(inputs("NVFP4", dynamic + "false", true), "e2m1 g16 x e4m3");
  const std::string is = kModule + ".weight is TorchAO's NVFP4Tensor, whose inputs have ";
  for (const bool stored : {false, true}) {
    EXPECT_EQ(inputs("NVFP4", dynamic + "true", stored),
              is + "a scale of the whole call beside those of blocks, which is not done");
  }
  EXPECT_EQ(inputs("NVFP4", dynamic + "false", false), "e2m1 g16 x e4m3");  // of 1
  EXPECT_EQ(inputs("NVFP4", "\"block_size\": 32", true), is + "blocks of 32, which is not done");
  const std::string mx = kModule + ".weight is TorchAO's MXTensor, whose inputs have ";
  EXPECT_EQ(inputs("MX", "\"block_size\": 16", false), mx + "blocks of 16, which is not done");
  EXPECT_EQ(inputs("MX", "\"elem_dtype\": \"fp6_e2m3\"", false),
            mx + "elements of \"fp6_e2m3\", which is not done");
  EXPECT_EQ(inputs("MX", "", false), mx + "no elem_dtype, which is not done");
}

// An MXTensor's elem_dtype is the type of its codes.
TEST(torchao, codes_of_another_type_than_described_are_refused) {
  TestCheckpoint stored;
  stored.add(kModule + "._weight_qdata", DType::kE4M3, {2, 64}, std::vector<uint8_t>(128, 0x38));
  stored.add(kModule + "._weight_scale", DType::kE8M0, {2, 2}, std::vector<uint8_t>(4, 127));
  stored.metadata[kModule + ".weight"] =
      described("MXTensor", "\"block_size\": 32, \"elem_dtype\": " + dtype("float8_e5m2"),
                R"(["qdata", "scale"])");
  EXPECT_EQ(message(load_layer(stored, kConfig, kLayer)),
            kModule + "._weight_qdata has the type e4m3");
}

// An AffineQuantizedTensor with this code everywhere, in groups of 32, and codes from `least`.
TestCheckpoint affine(const std::string& impl, int8_t code, const std::vector<int8_t>& zeros,
                      int least, int most) {
  TestCheckpoint out;
  const std::string inner = kModule + ".weight.tensor_impl.";
  out.add(inner + "int_data", DType::kS8, {2, 64}, std::vector<int8_t>(128, code));
  out.add<float>(inner + "scale", DType::kF32, {2, 2}, {0.5f, 1, 2, 4});
  out.add(inner + "zero_point", DType::kS8, {2, 2}, zeros);
  out.metadata[kModule + ".weight"] = described(
      "AffineQuantizedTensor",
      "\"block_size\": [1, 32], \"quant_min\": " + std::to_string(least) +
          ", \"quant_max\": " + std::to_string(most) +
          ", \"tensor_impl\": " + described(impl, "", R"(["int_data", "scale", "zero_point"])"),
      "[]");
  return out;
}

// torchao 0.11 to 0.13 saved weights of 1 to 8 bits with it.
TEST(torchao, tensors_that_stand_for_quantize_and_dequantize_are_read) {
  const auto weight =
      load_layer(affine("QDQTensorImpl", -4, {1, 0, 0, -1}, -4, 3), kConfig, kLayer);
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(tensor::to_string(weight->format), "u3g32+zp");
  EXPECT_EQ(dequantize(*weight)[0], -2.5f);
  EXPECT_EQ(dequantize(*weight)[127], -12.0f);
}

// Codes that are never negative, in bytes that could be.
TEST(torchao, a_range_from_0_has_no_sign) {
  const auto weight =
      load_layer(affine("PlainAQTTensorImpl", 15, {8, 8, 8, 7}, 0, 15), kConfig, kLayer);
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(dequantize(*weight)[0], 3.5f);
  EXPECT_EQ(dequantize(*weight)[127], 32.0f);
}

// Both outputs stand in the first tile of 8; with N filled up to 16 an empty one comes after it.
TEST(torchao, tiles_may_be_filled_up_to_an_even_number) {
  std::vector<float> w[2];
  for (const int64_t tiles : {1, 2}) {
    TestCheckpoint stored;
    std::vector<int32_t> words(static_cast<size_t>(tiles * 8 * 32 * 4));
    for (size_t i = 0; i < 8 * 32 * 4; ++i) words[i] = static_cast<int32_t>(i * 2654435761u);
    stored.add(kModule + "._weight_qdata", DType::kS32, {tiles, 8, 32, 4}, words);
    std::vector<float> pairs(static_cast<size_t>(32 * tiles * 8 * 2), 100);
    for (size_t g = 0; g < 2; ++g) {
      for (size_t n = 0; n < 2; ++n) {
        const size_t at = 2 * (g * static_cast<size_t>(tiles) * 8 + n);
        pairs[at] = static_cast<float>(1 + g + 2 * n);
        pairs[at + 1] = static_cast<float>(g);
      }
    }
    stored.add(kModule + "._weight_scale_and_zero", DType::kF32, {32, 8 * tiles, 2}, pairs);
    stored.metadata[kModule + ".weight"] =
        described("Int4TilePackedTo4dTensor", R"("block_size": [1, 32], "shape": [2, 64])",
                  R"(["qdata", "scale_and_zero"])");
    const auto weight = load_layer(stored, kConfig, kLayer);
    ASSERT_TRUE(weight) << message(weight);
    w[tiles - 1] = dequantize(*weight);
  }
  EXPECT_EQ(w[0], w[1]);
  EXPECT_NE(w[0], std::vector<float>(128, w[0][0]));
}

TEST(torchao, tiles_that_amds_cards_may_have_written_are_a_warning) {
  const auto warnings = [](const std::string& ntile) {
    const auto config =
        parse_config(intx(4), R"({"quant_method": "torchao", "quant_type": {"default": {"_type": )"
                              R"("Int4WeightOnlyConfig", "_data": {"int4_tile_packed_ntile": )" +
                                  ntile + "}}}}");
    EXPECT_TRUE(config) << message(config);
    return config ? (*config)->warnings : std::vector<std::string>();
  };
  EXPECT_TRUE(warnings("8").empty());
  ASSERT_EQ(warnings("16").size(), 1u);
  EXPECT_EQ(warnings("16")[0],
            "config.json: quantization_config: int4_tile_packed_ntile is 16, which AMD's cards "
            "need; tiles that one of them wrote are in another order, which nothing in the files "
            "tells from the one that is read");
}

TEST(torchao, what_the_description_names_must_be_stored) {
  TestCheckpoint stored = intx(4);
  stored.remove(kModule + "._weight_zero_point");
  EXPECT_EQ(message(load_layer(stored, kConfig, kLayer)),
            "missing " + kModule + "._weight_zero_point");
}

TEST(torchao, inner_tensors_without_a_description_are_refused) {
  TestCheckpoint stored = intx(4);
  stored.metadata.clear();
  EXPECT_EQ(message(load_layer(stored, kConfig, kLayer)),
            kModule +
                "._weight_qdata is stored, but the metadata of the headers does not say what " +
                kModule +
                ".weight is; TorchAO writes it there, and tools that copy tensors alone "
                "lose it");
  stored.metadata[kModule + ".weight"] = R"({"_type": "Int8Tensor"})";
  EXPECT_EQ(message(load_layer(stored, kConfig, kLayer)),
            "metadata: " + kModule + ".weight: the description of its Int8Tensor has no _data");
  stored.metadata[kModule + ".weight"] = "[1]";
  EXPECT_EQ(
      message(load_layer(stored, kConfig, kLayer)),
      "metadata: " + kModule +
          ".weight: expected the description of a tensor ({\"_type\": ...}), found a list of 1");
}

}  // namespace
}  // namespace nibble::quant
