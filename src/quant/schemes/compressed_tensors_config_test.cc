#include <fmt/format.h>
#include <gtest/gtest.h>

#include "quant/schemes/compressed_tensors_test_support.h"

namespace nibble::quant {
namespace {

std::string two_groups(const std::string& a, const std::string& b) {
  return fmt::format(
      R"({{"quant_method": "compressed-tensors", "ignore": ["re:.*lm_head"], "config_groups": {{
          "a": {{"targets": [{}], "weights": {{"num_bits": 4, "group_size": 8}}}},
          "b": {{"targets": [{}], "weights": {{"num_bits": 4, "strategy": "channel"}}}}}}}})",
      a, b);
}

TEST(compressed_tensors, a_name_wins_over_a_pattern_and_a_pattern_over_a_class) {
  struct Case {
    const char* a;
    const char* b;
    const char* format;
  };
  for (const Case& c : {
           Case{R"("model.layers.0.mlp.up_proj")", R"("re:.*up_proj")", "s4g8"},
           Case{R"("re:.*up_proj")", R"("Linear")", "s4g8"},
           Case{R"("Linear")", R"("re:.*down_proj")", "s4g8"},
           Case{R"("re:.*down_proj")", R"("Linear")", "s4c"},
           Case{R"("model.layers.0.mlp.gate_up_proj")", R"("Linear")", "s4g8"},  // fused names
           Case{R"("re:.*gate_up_proj$")", R"("re:.*qkv_proj")", "s4g8"},
           Case{R"("Linear")", R"("Linear")", "s4c"},  // the last one counts
           Case{R"("re:model[.]layers[.]0[.]mlp.*")", R"("QKVParallelLinear")", "s4g8"},
       }) {
    TestCheckpoint checkpoint = with_packed(2, 16, 4, std::string(c.format) == "s4c" ? 1 : 2);
    const auto weight = load_layer(checkpoint, two_groups(c.a, c.b), layer(2, 16));
    ASSERT_TRUE(weight) << c.a << c.b << message(weight);
    EXPECT_EQ(tensor::to_string(weight->format), c.format) << c.a << c.b;
  }
}

// "re:.*up_proj$" also fits gate_up_proj, the name that a runtime would fuse gate_proj into.
TEST(compressed_tensors, a_class_wins_over_a_pattern_that_fits_the_fused_name_alone) {
  const std::string gate = "model.layers.0.mlp.gate_proj";
  const TestCheckpoint checkpoint = with_packed(2, 16, 4, 1, true, gate);
  const auto weight =
      load_layer(checkpoint, two_groups(R"("re:.*up_proj$")", R"("Linear")"), layer(2, 16, gate));
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(tensor::to_string(weight->format), "s4c");
}

TEST(compressed_tensors, a_quantized_layer_that_no_group_speaks_of_is_refused) {
  EXPECT_EQ(message(load_layer(with_packed(2, 16, 4, 2),
                               two_groups("\"re:.*q_proj\"", "\"re:.*k_proj\""), layer(2, 16))),
            kModule + " is stored quantized, but no target of config_groups is its name or class");
  // One group only: what is stored is enough.
  EXPECT_TRUE(load_layer(with_packed(2, 16, 4, 2), dictionary(kInt4, "", "", "\"re:.*q_proj\""),
                         layer(2, 16)));
  EXPECT_EQ(message(load_layer(with_packed(2, 16, 4, 2),
                               R"({"quant_method": "compressed-tensors", "ignore": ["up_proj"]})",
                               layer(2, 16))),
            kModule +
                " is stored quantized, but config_groups quantizes no weights, and it is in "
                "the ignore list");
}

TEST(compressed_tensors, a_layer_that_no_target_names_is_listed_as_left_alone) {
  const auto listed = [](const std::string& targets, const std::string& module) {
    const auto config = parse_config(TestCheckpoint(), dictionary(kInt4, "", "", targets));
    EXPECT_TRUE(config) << message(config);
    return *(*config)->listed(layer(8, 8, module));
  };
  const Listed other = listed("\"re:.*down_proj\"", kModule);
  EXPECT_EQ(other.says, Says::kLeftAlone);
  EXPECT_EQ(other.by, kGroups + "targets (by not naming it)");
  // Its codes are read all the same, as the only group says: the plan tells of it.
  const auto weight = load_layer(with_packed(4, 16, 4, 2),
                                 dictionary(kInt4, "", "", "\"re:.*down_proj\""), layer(4, 16));
  ASSERT_TRUE(weight) << message(weight);
  expect_codes(*weight, 4, 8);
  EXPECT_EQ(listed("\"re:.*up_proj\"", kModule).says, Says::kQuantized);
  EXPECT_EQ(listed("\"Linear\"", kModule).says, Says::kQuantized);
  EXPECT_EQ(listed("\"re:.*gate_up_proj\"", kModule).says, Says::kQuantized);  // fused
  EXPECT_EQ(listed("\"Linear\"", "model.embed_tokens").says, Says::kLeftAlone);
}

TEST(compressed_tensors, embeddings_have_their_own_class) {
  TestCheckpoint checkpoint = with_packed(2, 16, 4, 1);
  for (const char* suffix : {".weight_packed", ".weight_scale"}) {
    const tensor::TensorView view = checkpoint.view(kModule + suffix);
    checkpoint.add_bytes(std::string("model.embed_tokens") + suffix, view.dtype, view.shape,
                         {reinterpret_cast<const char*>(view.data), view.bytes});
  }
  const auto weight = load_layer(checkpoint, two_groups("\"Linear\"", "\"Embedding\""),
                                 layer(2, 16, "model.embed_tokens"));
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(tensor::to_string(weight->format), "s4c");
}

std::string refusal(const std::string& text) {
  const auto config = parse_config(TestCheckpoint(), text);
  return message(config);
}

TEST(compressed_tensors, combinations_that_make_no_sense_name_both_keys) {
  const std::string w = kG + "weights: ", in = kG + "input_activations: ";
  const auto weights = [](const std::string& members) { return refusal(dictionary(members)); };
  const auto inputs = [](const std::string& members) {
    return refusal(dictionary(kInt8, members));
  };
  EXPECT_EQ(weights(R"("num_bits": 4, "strategy": "group", "group_size": -1, "actorder": "group")"),
            w + "actorder is \"group\", but group_size is -1; one group of all inputs has no order "
                "of groups");
  EXPECT_EQ(weights(R"("num_bits": 4, "strategy": "channel", "actorder": true)"),
            w + "actorder is true, but strategy is \"channel\"; only groups have an order");
  EXPECT_EQ(weights(R"("num_bits": 4, "strategy": "group")"),
            w + "strategy is \"group\", but group_size is not given; groups have a size");
  EXPECT_EQ(weights(R"("num_bits": 4, "strategy": "channel", "group_size": 128)"),
            w + "group_size is 128, but strategy is \"channel\"; only groups have a size");
  EXPECT_EQ(weights(R"("strategy": "block")"),
            w + "strategy is \"block\", but block_structure is not given; blocks, and only they, "
                "have a structure");
  EXPECT_EQ(weights(R"("num_bits": 5, "type": "float")"),
            w + "num_bits is 5, but type is \"float\"; floats of 4, 6 and 8 bits are read");
  EXPECT_EQ(weights(R"("num_bits": 16)"),
            w + "num_bits is 16, but type is not given; integers of 2 to 8 bits are read");
  EXPECT_EQ(weights(R"("type": "float", "symmetric": false)"),
            w + "symmetric is false, but type is \"float\"; floats have no zero points");
  EXPECT_EQ(weights(R"("dynamic": "local")"),
            w + "dynamic is \"local\", but strategy is not given; only groups below one scale of "
                "the tensor are");
  EXPECT_EQ(weights(R"("dynamic": true, "strategy": "channel")"),
            w + "dynamic is true; the scales of weights are stored, never dynamic");
  EXPECT_EQ(weights(R"("strategy": "token")"),
            w + "strategy is \"token\", which weights do not have");
  EXPECT_EQ(
      refusal(dictionary(R"("type": "float", "strategy": "block",
                                   "block_structure": "128x128")",
                         R"("type": "float", "strategy": "tensor", "dynamic": false)")),
      kG.substr(0, kG.size() - 2) +
          ": weights: strategy is \"block\", but input_activations: dynamic is false; weights "
          "in blocks have dynamic activations");
  EXPECT_EQ(inputs(R"("strategy": "token")"),
            in + "strategy is \"token\", but dynamic is not given; stored scales of inputs are one "
                 "for the whole tensor");
  EXPECT_EQ(inputs(R"("strategy": "channel", "dynamic": true)"),
            in + "strategy is \"channel\", which inputs do not have");
  EXPECT_EQ(inputs(R"("num_bits": 6, "type": "float", "strategy": "token", "dynamic": true)"),
            in + "num_bits is 6, but type is \"float\"; of floats, inputs of 4 and 8 bits are "
                 "known");
  EXPECT_EQ(inputs(R"("strategy": "tensor_group", "group_size": 16, "dynamic": true)"),
            in + "strategy is \"tensor_group\", but num_bits is not given; groups below one scale "
                 "of the tensor are fp4");
  EXPECT_EQ(inputs(R"("type": "float", "group_size": 16, "dynamic": true,
                      "scale_dtype": "torch.uint8")"),
            in +
                "scale_dtype is \"torch.uint8\", but group_size is 16; exponents are the scales of "
                "32 floats");
  EXPECT_EQ(inputs(R"("dynamic": true, "strategy": "token", "actorder": "group")"),
            in + "actorder is \"group\"; only weights have it");
}

TEST(compressed_tensors, unknown_values_are_refused_wherever_they_stand) {
  const std::string w = kG + "weights: ";
  EXPECT_EQ(refusal(dictionary(R"("type": "posit")")),
            w + "type is \"posit\"; known are: int, float");
  EXPECT_EQ(
      refusal(dictionary(R"("strategy": "row")")),
      w + "strategy is \"row\"; known are: tensor, channel, group, tensor_group, block, token, "
          "attn_head");
  EXPECT_EQ(refusal(dictionary(kFp8 + R"(, "scale_dtype": "torch.float6")")),
            w + "scale_dtype is \"torch.float6\", which is not known");
  EXPECT_EQ(refusal(R"({"quant_method": "compressed-tensors", "config_groups": {
                "g": {"targets": ["Linear"], "weights": {}}, "h": {"weights": {}}}})"),
            kGroups + "h: targets is missing, and it is not the only group");
  EXPECT_EQ(refusal(dictionary(R"("actorder": 3)")),
            w + "actorder is 3; known are: false, true, group, dynamic, weight, static");
  EXPECT_EQ(refusal(dictionary(R"("strategy": "block", "block_structure": [128])")),
            w + "block_structure: expected two positive integers, found [128]");
  EXPECT_EQ(refusal(dictionary(R"("strategy": "block", "block_structure": "128x0")")),
            w + "block_structure: expected two positive integers, found \"128x0\"");
  EXPECT_EQ(refusal(dictionary(R"("num_bits": "four")")),
            w + "num_bits: expected an integer, found a string (\"four\")");
  EXPECT_EQ(refusal(dictionary(kInt8, "", R"("format": "zip",)")),
            "config.json: quantization_config: format is \"zip\"; known are: dense, int-quantized, "
            "float-quantized, naive-quantized, pack-quantized, nvfp4-pack-quantized, "
            "mxfp4-pack-quantized, mxfp6-pack-quantized, mxfp8-quantized, mixed-precision, "
            "marlin-24, sparse-24-bitmask, sparse-bitmask, fakequant");
  EXPECT_EQ(
      refusal(R"({"quant_method": "compressed-tensors", "config_groups": ["g"]})"),
      "config.json: quantization_config: config_groups: expected an object, found a list of 1");
  EXPECT_EQ(
      refusal(R"({"quant_method": "compressed-tensors", "config_groups": {"W4A16": ["Linear"]}})"),
      kGroups + "W4A16: expected an object, found a list of 1");
  EXPECT_EQ(
      refusal(R"({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": 4}}})"),
      kGroups + "g: weights: expected an object, found the integer 4");
  EXPECT_EQ(
      refusal(dictionary(kInt8, "", R"("sparsity_config": {"format": "sparse-csr"},)")),
      "config.json: quantization_config: sparsity_config: format is \"sparse-csr\"; known are: "
      "dense, sparse-24-bitmask, sparse-bitmask");
}

std::string transform(const std::string& scheme) {
  return dictionary(kInt4, "",
                    R"("transform_config": {"config_groups": {"R": {)" + scheme + "}}},");
}

TEST(compressed_tensors, transforms_that_are_not_known_are_refused_by_name) {
  const std::string where =
      "config.json: quantization_config: transform_config: config_groups: R: ";
  EXPECT_EQ(refusal(transform(R"("type": "random-hadamard",
                                 "apply": [{"location": "input", "targets": ["Linear"]}])")),
            where +
                "a transform of type \"random-hadamard\" at \"input\" is applied while the model "
                "runs; of those only type \"hadamard\", not randomized, at \"input\" is known "
                "here");
  EXPECT_EQ(refusal(transform(R"("type": "hadamard", "randomize": true,
                                 "apply": [{"location": "q_attn", "targets": "x"}])")),
            where +
                "a transform of type \"hadamard\", randomized, at \"q_attn\" is applied while "
                "the model runs; of those only type \"hadamard\", not randomized, at \"input\" "
                "is known here");
  EXPECT_EQ(refusal(transform(R"("type": "hadamard", "head_dim": 24,
                                 "apply": [{"location": "input", "targets": ["Linear"]}])")),
            where + "head_dim is 24; a Hadamard matrix is made for powers of two");
  EXPECT_EQ(refusal(transform(R"("apply": {})")),
            where + "apply: expected a list, found an object");
}

TEST(compressed_tensors, a_rotation_of_the_inputs_is_applied_to_its_targets) {
  const std::string rotated = transform(R"("type": "hadamard",
      "apply": [{"location": "input", "targets": ["re:.*up_proj"]},
                {"location": "weight_input", "targets": ["re:.*up_proj"], "inverse": true}])");
  const auto weight = load_layer(with_packed(2, 16, 4, 2), rotated, layer(2, 16));
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(weight->input_hadamard, 16);
  EXPECT_EQ(message(load_layer(with_packed(2, 24, 4, 3), rotated, layer(2, 24))),
            kModule +
                ": the transform R has size 24, but it has 24 inputs and Hadamard matrices are "
                "made for powers of two");
  TestCheckpoint plain;
  plain.add<uint16_t>(kModule + ".weight", DType::kBF16, {1, 2}, {0x3f80, 0x4000});
  EXPECT_EQ(message(load_layer(plain, rotated, layer(1, 2))),
            kModule +
                ": a transform applies to its inputs, but it is not quantized; only the "
                "inputs of quantized layers are rotated here");
}

TEST(compressed_tensors, two_rotations_of_the_same_inputs_are_refused) {
  const std::string one = R"("type": "hadamard",
      "apply": [{"location": "input", "targets": ["re:.*up_proj"]},
                {"location": "weight_input", "targets": ["re:.*up_proj"], "inverse": true}])";
  const std::string twice = transform(one + R"(}, "S": {)" + one);
  EXPECT_EQ(message(load_layer(with_packed(2, 16, 4, 2), twice, layer(2, 16))),
            kModule + ": two transforms apply to its inputs");
}

TEST(compressed_tensors, outputs_are_not_quantized_here) {
  EXPECT_EQ(
      message(load_layer(with_packed(2, 16, 4, 2),
                         R"({"quant_method": "compressed-tensors", "config_groups": {"g": {
                                   "targets": ["Linear"], "weights": {"num_bits": 4, "group_size": 8},
                                   "output_activations": {"num_bits": 8}}}})",
                         layer(2, 16))),
      kGroups + "g: output_activations is given; what a layer gives out is not quantized here");
}

TEST(compressed_tensors, keys_are_found_in_odd_places_and_unknown_ones_are_warned_about) {
  // No quant_method: the keys show it.
  const auto config = parse_config(
      TestCheckpoint(),
      R"({"config_groups": {"g": {"targets": ["Linear"], "weights": {"num_bits": 8, "color": 1}},
                            "kv": {"targets": ["LlamaAttention"],
                                   "input_activations": {"num_bits": 8}}},
          "kv_cache_scheme": null, "quantization_status": "compressed", "size": 3})");
  ASSERT_TRUE(config) << message(config);
  EXPECT_EQ(
      (*config)->warnings,
      (std::vector<std::string>{
          "config.json: quantization_config: the key \"size\" (the integer 3) is not known and "
          "has no effect",
          kG + "weights: the key \"color\" (the integer 1) is not known and has no effect"}));
  EXPECT_EQ((*config)->notes,
            (std::vector<std::string>{
                kGroups + "kv: quantizes no weights: nothing of it is applied to a layer"}));
}

TEST(compressed_tensors, a_weight_of_no_outputs_counts_as_missing) {
  EXPECT_EQ(message(load_layer(with_packed(0, 16, 4, 2), dictionary(kInt4), layer(0, 16))),
            "missing " + layer(0, 16).module + ".weight");
}

}  // namespace
}  // namespace nibble::quant
