#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/number.h"
#include "quant/test_support.h"

namespace nibble::quant {
namespace {

using tensor::DType;
using tensor::Shape;

const std::string kModule = "model.layers.0.mlp.up_proj";
const LinearLayer kLayer{kModule, 4, 64, false, {}};
const std::string kAt = "config.json: quantization_config: ";

std::string flat(const std::string& algo, const std::string& more = "") {
  return R"({"quant_method": "modelopt", "quant_algo": ")" + algo + "\"" + more + "}";
}

// One layer in each of the ways that ModelOpt stores it.
TestCheckpoint fp8(const Shape& scale = {}) {
  TestCheckpoint out;
  out.add(kModule + ".weight", DType::kE4M3, {4, 64}, std::vector<uint8_t>(256, 0x38));
  const auto count = static_cast<size_t>(*tensor::element_count(scale));
  out.add(kModule + ".weight_scale", DType::kF32, scale, std::vector<float>(count, 0.5f));
  return out;
}
TestCheckpoint nvfp4() {
  TestCheckpoint out;
  out.add(kModule + ".weight", DType::kU8, {4, 32}, std::vector<uint8_t>(128, 0x72));
  out.add(kModule + ".weight_scale", DType::kE4M3, {4, 4}, std::vector<uint8_t>(16, 0x39));
  out.add<float>(kModule + ".weight_scale_2", DType::kF32, {}, {0.3f});
  return out;
}
TestCheckpoint mx(DType weight, const Shape& shape) {
  TestCheckpoint out;
  const auto count = static_cast<size_t>(*tensor::element_count(shape));
  out.add(kModule + ".weight", weight, shape, std::vector<uint8_t>(count, 0x38));
  out.add(kModule + ".weight_scale", DType::kU8, {4, 2}, std::vector<uint8_t>(8, 126));
  return out;
}
TestCheckpoint int4() {
  TestCheckpoint out;
  out.add(kModule + ".weight", DType::kU8, {2, 64}, std::vector<uint8_t>(128, 0x8f));
  out.add(kModule + ".weight_scale", DType::kF32, {4, 2}, std::vector<float>(8, 0.5f));
  return out;
}
TestCheckpoint int8() {
  TestCheckpoint out;
  out.add(kModule + ".weight", DType::kS8, {4, 64}, std::vector<int8_t>(256, -3));
  out.add(kModule + ".weight_scale", DType::kF32, {4}, std::vector<float>(4, 0.5f));
  return out;
}
TestCheckpoint with_input_scale(TestCheckpoint checkpoint) {
  checkpoint.add<float>(kModule + ".input_scale", DType::kF32, {}, {0.25f});
  return checkpoint;
}

// "e4m3t, e4m3 tensor static": what a layer is read as, or the refusal.
std::string read_as(const TestCheckpoint& checkpoint, const std::string& dictionary) {
  const auto weight = load_layer(checkpoint, dictionary, kLayer);
  if (!weight) return weight.error().message;
  return fmt::format("{}, {}", tensor::to_string(weight->format),
                     tensor::to_string(weight->activation));
}

TEST(modelopt, each_algorithm_has_its_weights_and_activations) {
  EXPECT_EQ(read_as(with_input_scale(fp8()), flat("FP8")), "e4m3t, e4m3 tensor static");
  EXPECT_EQ(read_as(fp8({4}), flat("FP8_PER_CHANNEL_PER_TOKEN")), "e4m3c, e4m3 token");
  EXPECT_EQ(read_as(fp8({1, 1, 1, 1}), flat("fp8_pb_wo")), "e4m3t, float");
  EXPECT_EQ(read_as(nvfp4(), flat("W4A16_NVFP4")), "e2m1g16, float");
  EXPECT_EQ(read_as(with_input_scale(nvfp4()), flat("NVFP4")), "e2m1g16, e2m1 g16 x e4m3");
  EXPECT_EQ(read_as(nvfp4(), flat("NVFP4")), "missing " + kModule + ".input_scale");
  EXPECT_EQ(read_as(mx(DType::kE4M3, {4, 64}), flat("MXFP8")), "e4m3g32, e4m3 g32 x e8m0");
  EXPECT_EQ(read_as(mx(DType::kU8, {4, 32}), flat("mxfp4")), "e2m1g32, e2m1 g32 x e8m0");
  EXPECT_EQ(read_as(mx(DType::kU8, {4, 32}), flat("W4A8_MXFP4_FP8")), "e2m1g32, e4m3 token");
  EXPECT_EQ(read_as(with_input_scale(nvfp4()), flat("W4A8_NVFP4_FP8")),
            "e2m1g16, e4m3 tensor static");
  EXPECT_EQ(read_as(int4(), flat("W4A16_AWQ")), "s4g32, float");
  EXPECT_EQ(read_as(with_input_scale(int4()), flat("W4A8_AWQ")), "s4g32, e4m3 tensor static");
  EXPECT_EQ(read_as(int8(), flat("W8A16")), "s8c, float");
  EXPECT_EQ(read_as(with_input_scale(int8()), flat("W8A8_SQ_PER_CHANNEL")),
            "s8c, s8 tensor static");
}

TEST(modelopt, blocks_of_fp8_have_a_scale_of_four_dimensions) {
  TestCheckpoint checkpoint;
  checkpoint.add(kModule + ".weight", DType::kE4M3, {130, 256},
                 std::vector<uint8_t>(130 * 256, 0x38));
  checkpoint.add<float>(kModule + ".weight_scale", DType::kF32, {2, 1, 2, 1}, {1, 2, 3, 4});
  const auto weight = load_layer(checkpoint, flat("fp8_pb_wo"), {kModule, 130, 256, false, {}});
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(tensor::to_string(weight->format), "e4m3b128x128");
  const std::vector<float> w = dequantize(*weight);
  EXPECT_EQ(w[0], 1);
  EXPECT_EQ(w[128], 2);
  EXPECT_EQ(w[129 * 256 + 128], 4);
}

TEST(modelopt, the_input_factor_is_read_and_the_second_scale_of_w4a8_awq_is_not) {
  TestCheckpoint checkpoint = with_input_scale(int4());
  checkpoint.add(kModule + ".pre_quant_scale", DType::kBF16, {64},
                 std::vector<uint16_t>(64, 0x4000));
  checkpoint.add<float>(kModule + ".weight_scale_2", DType::kF32, {}, {0.01f});
  const auto weight = load_layer(checkpoint, flat("W4A8_AWQ"), kLayer);
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(weight->input_factor, std::vector<float>(64, 2));
  EXPECT_EQ(dequantize(*weight)[0], -0.5f);   // the low half, 15, is -1
  EXPECT_EQ(dequantize(*weight)[64], -4.0f);  // the high half, 8, is -8
  const auto config = parse_config(checkpoint, flat("W4A8_AWQ"));
  const auto method = (*config)->linear_method(kLayer, checkpoint.lookup());
  bool found = false;
  for (const WeightSpec& spec : (*method)->create_weights()) {
    if (spec.suffix != "weight_scale_2") continue;
    found = true;
    EXPECT_EQ(spec.slot, Slot::kUnused);
    EXPECT_EQ(spec.unused, "it belongs to the step from int4 to e4m3 in hardware");
  }
  EXPECT_TRUE(found);
}

TEST(modelopt, an_algorithm_that_the_tensors_contradict_is_refused_with_both) {
  EXPECT_EQ(read_as(nvfp4(), flat("W4A16_AWQ")),
            "config.json: quantization_config says W4A16_AWQ, but the layer is stored as NVFP4: " +
                kModule + ".weight u8 (4, 32) with " + kModule + ".weight_scale e4m3 (4, 4)");
  EXPECT_EQ(read_as(int8(), flat("FP8")),
            "config.json: quantization_config says FP8, but the layer is stored as INT8: " +
                kModule + ".weight s8 (4, 64) with " + kModule + ".weight_scale f32 (4)");
  EXPECT_EQ(read_as(nvfp4(), flat("W4A16_NVFP4", R"(, "group_size": 32)")),
            kModule +
                ".weight_scale is (4, 4), but config.json: quantization_config says group_size 32, "
                "which makes (4, 2)");
  TestCheckpoint ragged = int4();
  ragged.add(kModule + ".weight_scale", DType::kF32, {4, 65}, std::vector<float>(260, 1));
  EXPECT_EQ(read_as(ragged, flat("W4A16_AWQ")),
            kModule +
                ".weight_scale is (4, 65), but no group_size is given, and groups of equal size "
                "would have 1, which makes (4, 64)");
}

TEST(modelopt, missing_tensors_are_refused_by_name) {
  EXPECT_EQ(read_as(fp8(), flat("FP8")), "missing " + kModule + ".input_scale");
  TestCheckpoint checkpoint = nvfp4();
  checkpoint.remove(kModule + ".weight_scale_2");
  EXPECT_EQ(read_as(checkpoint, flat("W4A16_NVFP4")), "missing " + kModule + ".weight_scale_2");
  checkpoint.remove(kModule + ".weight_scale");
  EXPECT_EQ(read_as(checkpoint, flat("W4A16_NVFP4")),
            kModule +
                ".weight is u8, but has no scale: neither weight_scale_inv nor weight_scale is "
                "stored");
  checkpoint.add<float>(kModule + ".weight_scale", DType::kF32, {}, {1});
  EXPECT_EQ(read_as(checkpoint, flat("W4A16_NVFP4")),
            kModule + ".weight u8 (4, 32) with " + kModule +
                ".weight_scale f32 () is nothing that ModelOpt stores for 4 outputs and 64 inputs");
}

TEST(modelopt, plain_layers_stay_plain_and_listed_codes_stay_codes) {
  TestCheckpoint plain;
  plain.add(kModule + ".weight", DType::kBF16, {4, 64}, std::vector<uint16_t>(256, 0x3f80));
  EXPECT_EQ(read_as(plain, flat("NVFP4_W4A16")).rfind(kAt, 0), 0u);
  EXPECT_EQ(read_as(plain, flat("FP8")), "bf16, float");
  EXPECT_EQ(read_as(int8(), flat("W8A16", R"(, "ignore": ["*mlp*"])")), "s8c, float");
}

const std::string kMixed =
    R"(, "quantized_layers": {"model.layers.0.mlp.up_proj": {"quant_algo": "W4A16_AWQ",
       "group_size": 32}, "model.layers.1.mlp.up_proj": {"quant_algo": "FP8"}})";

TEST(modelopt, a_mixture_names_the_algorithm_of_each_layer) {
  EXPECT_EQ(read_as(int4(), flat("MIXED_PRECISION", kMixed)), "s4g32, float");
  EXPECT_EQ(read_as(with_input_scale(fp8()), flat("MIXED_PRECISION", kMixed)),
            "config.json: quantization_config: quantized_layers says W4A16_AWQ, but the layer is "
            "stored as FP8: " +
                kModule + ".weight e4m3 (4, 64) with " + kModule + ".weight_scale f32 ()");
  EXPECT_EQ(
      message(parse_config(TestCheckpoint(), flat("MIXED_PRECISION", R"(, "quantized_layers":
        {"a": {"quant_algo": "MIXED_PRECISION"}})")))
          .rfind(kAt + "quantized_layers: a: quant_algo is \"MIXED_PRECISION\"; known are: FP8, ",
                 0),
      0u);
  EXPECT_EQ(message(parse_config(TestCheckpoint(),
                                 flat("MIXED_PRECISION", R"(, "quantized_layers": ["a"])"))),
            kAt + "quantized_layers: expected an object, found a list of 1");
}

TEST(modelopt, a_mixture_without_layers_is_read_as_its_tensors_are_stored) {
  for (const std::string& dictionary :
       {flat("MIXED_PRECISION"), flat("MIXED_PRECISION", R"(, "quantized_layers": {})"),
        std::string(R"({"quant_method": "w4afp8"})")}) {
    EXPECT_EQ(read_as(with_input_scale(fp8()), dictionary), "e4m3t, e4m3 tensor static");
    EXPECT_EQ(read_as(fp8(), dictionary), "e4m3t, float");
    EXPECT_EQ(read_as(fp8({4}), dictionary), "e4m3c, e4m3 token");
    EXPECT_EQ(read_as(int8(), dictionary), "s8c, float");
    EXPECT_EQ(read_as(with_input_scale(int8()), dictionary), "s8c, s8 tensor static");
    EXPECT_EQ(read_as(nvfp4(), dictionary), "e2m1g16, float");
    EXPECT_EQ(read_as(with_input_scale(nvfp4()), dictionary), "e2m1g16, e2m1 g16 x e4m3");
    EXPECT_EQ(read_as(mx(DType::kE4M3, {4, 64}), dictionary), "e4m3g32, e4m3 g32 x e8m0");
    EXPECT_EQ(read_as(mx(DType::kU8, {4, 32}), dictionary), "e2m1g32, e2m1 g32 x e8m0");
    const auto config = parse_config(TestCheckpoint(), dictionary);
    ASSERT_TRUE(config) << message(config);
    const bool named = dictionary.find("MIXED") != std::string::npos;
    EXPECT_EQ((*config)->notes,
              (std::vector<std::string>{std::string("config.json: quantization_config names no ") +
                                        (named ? "quantized layers" : "algorithm") +
                                        ": every layer is read as its tensors are stored"}));
  }
}

TEST(modelopt, what_the_tensors_of_an_unlisted_layer_leave_open_is_refused) {
  const std::string dictionary =
      flat("MIXED_PRECISION", R"(, "quantized_layers": {"lm_head": {"quant_algo": "FP8"},
                              "model.layers.9": {"quant_algo": "NO_QUANT"}})");
  EXPECT_EQ(read_as(with_input_scale(fp8()), dictionary), "e4m3t, e4m3 tensor static");
  EXPECT_EQ(read_as(fp8(), dictionary), "e4m3t, float");
  EXPECT_EQ(read_as(fp8({4}), dictionary), "e4m3c, e4m3 token");
  EXPECT_EQ(read_as(with_input_scale(int8()), dictionary), "s8c, s8 tensor static");
  EXPECT_EQ(read_as(int4(), dictionary), "s4g32, float");
  EXPECT_EQ(read_as(with_input_scale(int4()), dictionary), "s4g32, e4m3 tensor static");
  EXPECT_EQ(read_as(nvfp4(), dictionary), "e2m1g16, float");
  EXPECT_EQ(read_as(with_input_scale(nvfp4()), dictionary), "e2m1g16, e2m1 g16 x e4m3");
  EXPECT_EQ(read_as(mx(DType::kE4M3, {4, 64}), dictionary), "e4m3g32, e4m3 g32 x e8m0");
  EXPECT_EQ(read_as(mx(DType::kU8, {4, 32}), dictionary),
            kAt + "quantized_layers does not name this layer, but it is stored quantized (" +
                kModule + ".weight u8 (4, 32) with " + kModule +
                ".weight_scale u8 (4, 2)), as MXFP4 and W4A8_MXFP4_FP8 do it, whose inputs differ; "
                "name its algorithm there");
  const auto config = parse_config(TestCheckpoint(), dictionary);
  ASSERT_TRUE(config) << message(config);
  EXPECT_EQ((*config)->listed(kLayer)->by, kAt + "quantized_layers (by not naming it)");
  EXPECT_EQ((*config)->listed({"model.layers.9.mlp.up_proj", 4, 64, false, {}})->says,
            Says::kLeftAlone);
  EXPECT_EQ((*config)->listed({"lm_head", 4, 64, false, {}})->says, Says::kQuantized);
}

TEST(modelopt, w4afp8_has_int4_along_the_inputs_and_fp8_blocks) {
  TestCheckpoint checkpoint;
  checkpoint.add(kModule + ".weight", DType::kS8, {4, 128},
                 std::vector<uint8_t>(512, 0xe3));  // 3, -2
  checkpoint.add(kModule + ".weight_scale_inv", DType::kBF16, {4, 2},
                 std::vector<uint16_t>(8, 0x3f00));
  checkpoint.add<float>(kModule + ".input_scale", DType::kF32, {}, {0.25f});
  const LinearLayer layer{kModule, 4, 256, false, {}};
  const auto weight = load_layer(checkpoint, R"({"quant_method": "w4afp8"})", layer);
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(tensor::to_string(weight->format), "s4g128");
  EXPECT_EQ(tensor::to_string(weight->activation), "e4m3 tensor static");
  EXPECT_EQ(dequantize(*weight)[0], 1.5f);
  EXPECT_EQ(dequantize(*weight)[1], -1.0f);
  TestCheckpoint blocks;
  blocks.add(kModule + ".weight", DType::kE4M3, {4, 256}, std::vector<uint8_t>(1024, 0x38));
  blocks.add<float>(kModule + ".weight_scale_inv", DType::kF32, {1, 2}, {1, 2});
  const auto fp8_weight = load_layer(blocks, R"({"quant_method": "w4afp8"})", layer);
  ASSERT_TRUE(fp8_weight) << message(fp8_weight);
  EXPECT_EQ(tensor::to_string(fp8_weight->format), "e4m3b128x128");
  EXPECT_EQ(tensor::to_string(fp8_weight->activation), "e4m3 g128");
}

TEST(modelopt, both_spellings_say_the_same) {
  const std::string nested = R"({"quant_method": "modelopt", "producer": {"name": "modelopt"},
      "quantization": {"quant_algo": "W8A16", "exclude_modules": ["lm_head"],
                       "kv_cache_quant_algo": null}})";
  EXPECT_EQ(read_as(int8(), nested), "s8c, float");
  const auto config = parse_config(TestCheckpoint(), nested);
  ASSERT_TRUE(config) << message(config);
  EXPECT_EQ((*config)->warnings, std::vector<std::string>{});
  // A dictionary without quant_method shows by its keys whose it is.
  EXPECT_EQ(read_as(int8(), R"({"quant_algo": "W8A16"})"), "s8c, float");
}

// config.json with `inside` as its quantization_config, and hf_quant_config.json beside it.
Result<std::unique_ptr<QuantizationConfig>> parse_both(const std::string& inside,
                                                       const std::string& beside) {
  const base::Json config = json("{\"quantization_config\": " + inside + "}", "config.json");
  const base::Json hf = json(beside, "hf_quant_config.json");
  NIBBLE_ASSIGN(const QuantizationSource source, find_quantization(&config, &hf, nullptr, ""));
  CheckpointFacts facts;
  facts.config = &config;
  facts.quantization = source.dictionary;
  facts.quantization_where = source.where;
  facts.method = source.method;
  facts.hf_quant_config = &hf;
  NIBBLE_ASSIGN(const Scheme* scheme, detect_scheme(facts, ""));
  return scheme->parse(facts);
}

std::string quantization(const std::string& keys) {
  return R"({"producer": {"name": "modelopt"}, "quantization": {)" + keys + "}}";
}

TEST(modelopt, two_files_that_agree_are_fine_and_what_one_leaves_out_the_other_says) {
  const auto config = parse_both(
      flat("NVFP4_AWQ_NO"), quantization(R"("quant_algo": "FP8")"));  // each is checked by itself
  EXPECT_FALSE(config);
  for (const std::string& inside :
       {flat("FP8", R"(, "ignore": ["lm_head", "a"], "kv_cache_scheme": {"type": "float",
                        "num_bits": 8, "dynamic": false}, "config_groups": {})"),
        flat("fp8"), std::string(R"({"quant_method": "modelopt"})")}) {
    EXPECT_EQ(message(parse_both(inside,
                                 quantization(R"("quant_algo": "FP8", "kv_cache_quant_algo": "FP8",
                                          "exclude_modules": ["a", "lm_head"])"))),
              "no error")
        << inside;
  }
}

TEST(modelopt, two_files_that_differ_are_refused_with_the_difference) {
  const std::string a = "config.json: quantization_config: ";
  const std::string b = "hf_quant_config.json: quantization says ";
  EXPECT_EQ(message(parse_both(flat("FP8"), quantization(R"("quant_algo": "W8A16")"))),
            a + "quant_algo is FP8, but " + b + "W8A16; keep the one that is true");
  EXPECT_EQ(message(parse_both(flat("W4A16_AWQ", R"(, "group_size": 64)"),
                               quantization(R"("quant_algo": "W4A16_AWQ", "group_size": 128)"))),
            a + "quant_algo is W4A16_AWQ with group_size 64, but " + b +
                "W4A16_AWQ with group_size 128; keep the one that is true");
  EXPECT_EQ(
      message(parse_both(flat("FP8", R"(, "kv_cache_scheme": {"type": "int", "num_bits": 8})"),
                         quantization(R"("quant_algo": "FP8", "kv_cache_quant_algo": "FP8")"))),
      a + "the KV cache is INT8, but " + b + "FP8; keep the one that is true");
  EXPECT_EQ(message(parse_both(flat("FP8", R"(, "ignore": ["lm_head", "a"])"),
                               quantization(R"("quant_algo": "FP8",
                                               "exclude_modules": ["lm_head"])"))),
            a + "\"a\" is excluded, but " + b + "nothing of it; keep the one that is true");
  EXPECT_EQ(message(parse_both(flat("FP8", R"(, "ignore": ["lm_head"])"),
                               quantization(R"("quant_algo": "FP8",
                                               "exclude_modules": ["lm_head", "a"])"))),
            a + "\"a\" is not excluded, but " + b + "it is; keep the one that is true");
  EXPECT_EQ(message(parse_both(
                flat("MIXED_PRECISION", R"(, "quantized_layers": {"a": {"quant_algo": "FP8"}})"),
                quantization(R"("quant_algo": "MIXED_PRECISION",
                                "quantized_layers": {"a": {"quant_algo": "MXFP8"}})"))),
            a + "layer a is FP8, but " + b + "MXFP8; keep the one that is true");
  EXPECT_EQ(message(parse_both(R"({"quant_method": "fp8", "activation_scheme": "dynamic"})",
                               quantization(R"("quant_algo": "MIXED_PRECISION")"))),
            "config.json: quantization_config says \"fp8\", but hf_quant_config.json says "
            "\"modelopt\"; keep the one that is true");
}

TEST(modelopt, algorithms_that_cannot_be_read_are_refused) {
  EXPECT_EQ(
      message(parse_config(TestCheckpoint(), flat("INT3")))
          .rfind(kAt + "quant_algo is \"INT3\"; known are: FP8, FP8_PER_CHANNEL_PER_TOKEN, ", 0),
      0u);
  EXPECT_EQ(message(parse_config(TestCheckpoint(), flat("NVFP4_SVD"))),
            kAt +
                "quant_algo is NVFP4_SVD, whose low-rank part (svdquant_lora_a, svdquant_lora_b) "
                "is not computed here");
  EXPECT_EQ(message(parse_config(TestCheckpoint(), flat("W4A16_AWQ", R"(, "group_size": -1)"))),
            kAt + "group_size: expected a positive number, found -1");
  EXPECT_EQ(message(parse_config(TestCheckpoint(),
                                 R"({"quant_method": "modelopt", "quantization": "FP8"})")),
            kAt + "quantization: expected an object, found a string (\"FP8\")");
}

}  // namespace
}  // namespace nibble::quant
