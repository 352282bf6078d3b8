#include "models/config.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "models/architecture.h"

namespace nibble::models {
namespace {

// A config of a usual model with one key changed; `value` is JSON, "" removes the key.
base::Json config_with(std::string_view key, std::string_view value) {
  auto json = base::parse_json(R"({
    "architectures": ["LlamaForCausalLM"], "hidden_size": 576, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "intermediate_size": 1536,
    "vocab_size": 49152, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5,
    "rope_theta": 100000, "tie_word_embeddings": true, "hidden_act": "silu"})",
                               "config.json");
  if (!key.empty()) {
    json->set(std::string(key),
              value.empty() ? base::Json() : *base::parse_json(value, "config.json"));
    json->set_where("config.json");
  }
  return *json;
}

TEST(config, a_usual_config_is_read_whole) {
  auto spec = declare_model(config_with("", ""));
  ASSERT_TRUE(spec) << spec.error().message;
  EXPECT_EQ(spec->architecture, "LlamaForCausalLM");
  EXPECT_EQ(spec->head_dim, 64);
  EXPECT_EQ(spec->kv_heads, 3);
  EXPECT_EQ(spec->rope.theta, 100000.0);
  EXPECT_FLOAT_EQ(spec->attention_scale, 0.125f);
  EXPECT_TRUE(spec->tied_embeddings);
}

struct Lie {
  const char* key;
  const char* value;
  const char* sentence;
};

class ConfigLies : public testing::TestWithParam<Lie> {};

TEST_P(ConfigLies, are_refused_with_their_sentence) {
  auto spec = declare_model(config_with(GetParam().key, GetParam().value));
  ASSERT_FALSE(spec);
  EXPECT_EQ(spec.error().message, GetParam().sentence);
}

INSTANTIATE_TEST_SUITE_P(
    all, ConfigLies,
    testing::Values(
        Lie{"hidden_size", "", "config.json: key \"hidden_size\" is missing"},
        Lie{"hidden_size", "\"576\"",
            "config.json: hidden_size: expected an integer, found a string (\"576\")"},
        Lie{"hidden_size", "-576",
            "config.json: hidden_size: expected a size from 1 to 16777216, found -576"},
        Lie{"hidden_size", "0",
            "config.json: hidden_size: expected a size from 1 to 16777216, found 0"},
        Lie{"hidden_size", "1e30",
            "config.json: hidden_size: expected an integer, found the number 1e+30"},
        Lie{"num_hidden_layers", "100000",
            "config.json: num_hidden_layers: expected at most 4096, found 100000"},
        Lie{"num_key_value_heads", "2",
            "config.json: num_attention_heads: 9 query heads do not divide among 2 key-value heads "
            "(num_key_value_heads)"},
        Lie{"num_attention_heads", "7",
            "config.json: num_attention_heads: 7 query heads do not divide among 3 key-value heads "
            "(num_key_value_heads)"},
        Lie{"hidden_size", "577",
            "config.json: hidden_size: 577 does not divide among 9 heads (num_attention_heads) and "
            "there is no head_dim"},
        Lie{"head_dim", "63",
            "config.json: head_dim: expected an even number up to 1024, found 63"},
        Lie{"rms_norm_eps", "0", "config.json: rms_norm_eps: expected a positive number, found 0"},
        Lie{"rope_theta", "-1", "config.json: rope_theta: expected a positive number, found -1"},
        Lie{"rope_scaling", "3",
            "config.json: rope_scaling: expected an object, found the integer 3"},
        Lie{"rope_scaling", R"({"rope_type": "spiral", "factor": 2})",
            "config.json: rope_scaling: rope_type: \"spiral\" is not known; expected default, "
            "linear, dynamic, yarn, llama3, longrope or proportional"},
        Lie{"rope_scaling", R"({"rope_type": "linear"})",
            "config.json: rope_scaling: factor: expected a positive number, found 0"},
        Lie{"rope_scaling", R"({"rope_type": "longrope", "short_factor": [1], "long_factor": [1]})",
            "config.json: rope_scaling: short_factor: expected a list of 32 numbers, found a list "
            "of 1"},
        Lie{"hidden_act", "\"sin\"",
            "config.json: hidden_act: \"sin\" is not known; expected silu, gelu, gelu_new, "
            "gelu_pytorch_tanh, quick_gelu, relu or relu2"},
        Lie{"tie_word_embeddings", "1",
            "config.json: tie_word_embeddings: expected true or false, found the integer 1"},
        Lie{"rope_parameters", "[]",
            "config.json: rope_parameters: expected an object, found a list of 0"},
        Lie{"rope_parameters", R"({"full_attention": {"rope_type": "default"}})",
            "config.json: rope_parameters: full_attention: parameters for each kind of layer are "
            "not known for this model"},
        Lie{"rope_parameters",
            R"({"rope_type": "linear", "factor": 2, "partial_rotary_factor": 0.5})",
            "config.json: rope_parameters: partial_rotary_factor: 0.5 contradicts the model, which "
            "turns whole heads"}));

std::string all_architectures() {
  std::string all;
  for (std::string_view name : architecture_names()) {
    all += (all.empty() ? "" : ", ") + std::string(name);
  }
  return all;
}

TEST(config, architectures_are_known_whatever_the_case_of_their_letters) {
  auto spec = declare_model(config_with("architectures", "[\"LLaMAForCausalLM\"]"));
  ASSERT_TRUE(spec) << spec.error().message;
  EXPECT_EQ(spec->architecture, "LlamaForCausalLM");
}

TEST(config, a_part_of_a_diffusers_pipeline_is_refused) {
  const std::string why =
      " is a part of a pipeline of the diffusers library, which makes pictures, video or sound; "
      "nibble runs language models that write text: give the folder of one";
  const auto refused = [](const char* text) {
    return declare_model(*base::parse_json(text, "config.json")).error().message;
  };
  EXPECT_EQ(refused(R"({"_class_name": "FluxTransformer2DModel", "_diffusers_version": "0.30.0"})"),
            "config.json: _class_name \"FluxTransformer2DModel\"" + why);
  EXPECT_EQ(refused(R"({"_diffusers_version": "0.30.0"})"),
            "config.json: what has a _diffusers_version" + why);
  // A language model's own names come first.
  EXPECT_EQ(
      refused(R"({"architectures": ["CLIPTextModel"], "_diffusers_version": "0.30.0"})"),
      "config.json: architectures: \"CLIPTextModel\" is not a model nibble can run yet; it knows " +
          all_architectures());
}

TEST(config, an_unknown_architecture_is_refused_with_those_that_are_known) {
  EXPECT_EQ(
      declare_model(config_with("architectures", "[]")).error().message,
      "config.json: neither \"architectures\" nor \"model_type\" says what kind of model this "
      "is; expected one of " +
          all_architectures());
  EXPECT_EQ(declare_model(config_with("architectures", "[\"GPT9\"]")).error().message,
            "config.json: architectures: \"GPT9\" is not a model nibble can run yet; it knows " +
                all_architectures());
}

layers::DecoderSpec spec_of(std::string_view json) {
  auto parsed = base::parse_json(json, "config.json");
  EXPECT_TRUE(parsed) << parsed.error().message;
  auto spec = declare_model(*parsed);
  EXPECT_TRUE(spec) << spec.error().message;
  return spec ? std::move(*spec) : layers::DecoderSpec();
}

std::string refusal_of(std::string_view json) {
  auto spec = declare_model(*base::parse_json(json, "config.json"));
  return spec ? "not refused" : spec.error().message;
}

// What every family needs; more keys are put in front.
std::string small(std::string_view architecture, std::string_view more = "") {
  return "{\"architectures\": [\"" + std::string(architecture) + "\"], " + std::string(more) +
         R"("hidden_size": 64, "num_hidden_layers": 8, "num_attention_heads": 8,
            "intermediate_size": 128, "vocab_size": 100})";
}

TEST(rope_keys, rope_scaling_is_followed_where_rope_parameters_stands_beside_it) {
  const auto spec = spec_of(small("LlamaForCausalLM", R"(
      "rope_scaling": {"type": "linear", "factor": 4}, "rope_theta": 777,
      "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},)"));
  EXPECT_EQ(spec.rope.type, kernels::RopeType::kLinear);
  EXPECT_EQ(spec.rope.theta, 777);
  EXPECT_EQ(spec.notes, std::vector<std::string>{
                            "config.json: rope_scaling is followed; rope_parameters, which stands "
                            "beside it, has no effect"});
}

TEST(rope_keys, an_empty_rope_scaling_says_nothing) {
  const auto spec = spec_of(small("LlamaForCausalLM", R"(
      "rope_scaling": {}, "rope_theta": 3,
      "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},)"));
  EXPECT_EQ(spec.rope.theta, 5e5);
  EXPECT_TRUE(spec.notes.empty());
}

TEST(rope_keys, a_factor_without_a_type_is_said_to_have_no_effect) {
  const auto spec = spec_of(small("LlamaForCausalLM", R"("rope_scaling": {"factor": 4},)"));
  EXPECT_EQ(spec.rope.type, kernels::RopeType::kDefault);
  EXPECT_EQ(spec.notes, std::vector<std::string>{
                            "config.json: rope_scaling: factor has no effect: rope_type, which "
                            "would say how it scales, is default or absent"});
}

TEST(rope_keys, a_llama_turns_whole_heads_whatever_the_factor) {
  const auto spec = spec_of(small("LlamaForCausalLM", R"("partial_rotary_factor": 0.5,)"));
  EXPECT_EQ(spec.rope.rotary_dim, 8);
  EXPECT_EQ(spec.notes,
            std::vector<std::string>{"config.json: partial_rotary_factor has no effect: a model of "
                                     "this kind turns whole heads"});
}

TEST(rope_keys, a_factor_that_leaves_no_pair_is_refused) {
  EXPECT_EQ(refusal_of(small("PhiForCausalLM", R"("partial_rotary_factor": 0.1,)")),
            "config.json: partial_rotary_factor: 0.1 of a head of 8 is 0 dimensions; an even "
            "number of 2 or more is needed to make pairs");
  EXPECT_EQ(refusal_of(small("PhiForCausalLM", R"("partial_rotary_factor": 0.4,)")),
            "config.json: partial_rotary_factor: 0.4 of a head of 8 is 3 dimensions; an even "
            "number of 2 or more is needed to make pairs");
  EXPECT_EQ(refusal_of(small("GPTNeoXForCausalLM", R"("rotary_pct": 2,)")),
            "config.json: rotary_pct: expected a number in (0, 1], found 2");
  EXPECT_EQ(spec_of(small("GPTNeoXForCausalLM")).rope.rotary_dim, 2);
}

TEST(llama, a_sliding_window_has_no_effect) {
  const auto spec = spec_of(small("LlamaForCausalLM", R"("sliding_window": 4,)"));
  EXPECT_EQ(spec.windows, std::vector<int64_t>(8, 0));
  EXPECT_EQ(spec.notes, std::vector<std::string>{"config.json: sliding_window has no effect: a "
                                                 "model of this kind does not read it"});
}

TEST(mistral, takes_the_defaults_of_its_class) {
  const auto spec = spec_of(small("MistralForCausalLM"));
  EXPECT_EQ(spec.kv_heads, 8);
  EXPECT_EQ(spec.max_positions, 131072);
  EXPECT_EQ(spec.windows, std::vector<int64_t>(8, 4096));
  const auto whole = spec_of(
      small("MistralForCausalLM", R"("sliding_window": null, "num_key_value_heads": null,)"));
  EXPECT_EQ(whole.windows, std::vector<int64_t>(8, 0));
  EXPECT_EQ(whole.kv_heads, 8);
}

TEST(mistral, has_no_biases_and_its_window_cannot_be_switched_off) {
  const auto spec = spec_of(small("MistralForCausalLM", R"(
      "attention_bias": true, "use_sliding_window": false, "sliding_window": 5,)"));
  EXPECT_FALSE(spec.qkv_bias);
  EXPECT_EQ(spec.windows, std::vector<int64_t>(8, 5));
  EXPECT_EQ(spec.notes, (std::vector<std::string>{
                            "config.json: attention_bias has no effect: a model of this kind does "
                            "not read it",
                            "config.json: use_sliding_window has no effect: sliding_window alone "
                            "decides"}));
  EXPECT_EQ(refusal_of(small("MistralForCausalLM", R"("sliding_window": 0,)")),
            "config.json: sliding_window: expected a size from 1 to 16777216, found 0");
}

TEST(mistral, with_layer_types_is_a_ministral) {
  const std::string types = R"("sliding_window": 5, "layer_types": [
      "full_attention", "sliding_attention", "full_attention", "sliding_attention",
      "full_attention", "sliding_attention", "full_attention", "sliding_attention"],)";
  for (const char* name : {"MistralForCausalLM", "MinistralForCausalLM"}) {
    EXPECT_EQ(spec_of(small(name, types)).windows, (std::vector<int64_t>{0, 5, 0, 5, 0, 5, 0, 5}));
    EXPECT_EQ(spec_of(small(name, R"("sliding_window": 5, "layer_types": null,)")).windows,
              std::vector<int64_t>(8, 5));
  }
}

TEST(qwen, windows_are_those_of_the_upper_layers_if_used_at_all) {
  const std::string keys = R"("num_key_value_heads": 8, "sliding_window": 5,)";
  EXPECT_EQ(spec_of(small("Qwen2ForCausalLM", keys)).windows, std::vector<int64_t>(8, 0));
  EXPECT_EQ(spec_of(small("Qwen3ForCausalLM",
                          keys + R"("use_sliding_window": true, "max_window_layers": 6,)"))
                .windows,
            (std::vector<int64_t>{0, 0, 0, 0, 0, 0, 5, 5}));
}

TEST(gemma2, every_other_layer_has_a_window_unless_layer_types_says_otherwise) {
  EXPECT_EQ(spec_of(small("Gemma2ForCausalLM", R"("sliding_window": 9,)")).windows,
            (std::vector<int64_t>{9, 0, 9, 0, 9, 0, 9, 0}));
  EXPECT_EQ(refusal_of(small("Gemma2ForCausalLM", R"("layer_types": ["full_attention"],)")),
            "config.json: layer_types: expected 8 entries (num_hidden_layers), found 1");
  EXPECT_EQ(refusal_of(small("Gemma2ForCausalLM", R"("layer_types": [
      "chunked", "chunked", "chunked", "chunked", "chunked", "chunked", "chunked", "chunked"],)")),
            "config.json: layer_types: expected full_attention or sliding_attention, found "
            "\"chunked\"");
  EXPECT_EQ(refusal_of(small("Gemma2ForCausalLM", R"("use_bidirectional_attention": true,)")),
            "config.json: use_bidirectional_attention: true is not supported; nibble runs models "
            "that read from left to right");
}

TEST(gemma2, a_soft_cap_is_absent_null_or_given) {
  EXPECT_EQ(spec_of(small("Gemma2ForCausalLM")).logit_soft_cap, 30);
  const auto spec = spec_of(small("Gemma2ForCausalLM", R"(
      "final_logit_softcapping": null, "attn_logit_softcapping": 7,)"));
  EXPECT_EQ(spec.logit_soft_cap, 0);
  EXPECT_EQ(spec.attention_soft_cap, 7);
}

TEST(gemma3, old_and_new_keys_give_both_ropes) {
  const auto old = spec_of(small("Gemma3ForCausalLM", R"(
      "rope_theta": 5e5, "rope_local_base_freq": 123, "sliding_window_pattern": 3,
      "sliding_window": 9, "rope_scaling": {"rope_type": "linear", "factor": 8},)"));
  EXPECT_EQ(old.rope.theta, 5e5);
  EXPECT_EQ(old.rope.factor, 8);
  ASSERT_TRUE(old.window_rope);
  EXPECT_EQ(old.window_rope->theta, 123);
  EXPECT_EQ(old.window_rope->type, kernels::RopeType::kDefault);
  EXPECT_EQ(old.context, 131072);
  EXPECT_EQ(old.windows, (std::vector<int64_t>{9, 9, 0, 9, 9, 0, 9, 9}));
  const auto newer = spec_of(small("Gemma3ForCausalLM", R"("rope_parameters": {
      "full_attention": {"rope_type": "linear", "factor": 8, "rope_theta": 5e5},
      "sliding_attention": {"rope_theta": 123}},)"));
  EXPECT_EQ(newer.rope.theta, 5e5);
  EXPECT_EQ(newer.rope.factor, 8);
  EXPECT_EQ(newer.window_rope->theta, 123);
  const auto bare = spec_of(small("Gemma3ForCausalLM"));
  EXPECT_EQ(bare.rope.theta, 1e6);
  EXPECT_EQ(bare.window_rope->theta, 1e4);
}

TEST(opt, narrow_embeddings_are_projected_and_norms_may_stand_behind) {
  const std::string keys = R"("ffn_dim": 128, )";
  const auto usual = spec_of(small("OPTForCausalLM", keys + R"("word_embed_proj_dim": 64,)"));
  EXPECT_EQ(usual.width(), 64);
  EXPECT_FALSE(usual.has(layers::Part::kProjectIn));
  EXPECT_TRUE(usual.has(layers::Part::kFinalNorm));
  const auto narrow = spec_of(small("OPTForCausalLM", keys + R"("word_embed_proj_dim": 32,
      "do_layer_norm_before": false,)"));
  EXPECT_EQ(narrow.width(), 32);
  EXPECT_EQ(narrow.module(layers::Part::kProjectOut), "model.decoder.project_out");
  EXPECT_TRUE(narrow.norms_after);
  EXPECT_FALSE(narrow.has(layers::Part::kFinalNorm));
  const auto old = spec_of(small("OPTForCausalLM", keys + R"("_remove_final_layer_norm": true,)"));
  EXPECT_FALSE(old.norms_after);
  EXPECT_FALSE(old.has(layers::Part::kFinalNorm));
}

TEST(opt, variants_that_no_field_says_are_refused) {
  const std::string keys = R"("ffn_dim": 128, )";
  EXPECT_EQ(
      refusal_of(small("OPTForCausalLM", keys + R"("layer_norm_elementwise_affine": false,)")),
      "config.json: layer_norm_elementwise_affine: false is not supported");
  EXPECT_EQ(refusal_of(small("OPTForCausalLM")), "config.json: key \"ffn_dim\" is missing");
}

// As transformers reads them: its first configs had other names for it.
TEST(phi3, su_and_yarn_are_longrope) {
  for (const char* type : {"longrope", "su", "yarn"}) {
    const auto spec =
        spec_of(small("Phi3ForCausalLM",
                      std::string(R"("rope_scaling": {"type": ")") + type +
                          R"(", "short_factor": [1, 2, 3, 4], "long_factor": [4, 3, 2, 1]},)"));
    EXPECT_EQ(spec.rope.type, kernels::RopeType::kLongRope) << type;
    EXPECT_EQ(spec.rope.long_factor, (std::vector<double>{4, 3, 2, 1}));
  }
}

TEST(phi3, knows_longrope_alone) {
  EXPECT_EQ(
      refusal_of(small("Phi3ForCausalLM", R"("rope_scaling": {"type": "linear", "factor": 2},)")),
      "config.json: rope_scaling: expected the type longrope (or none) for this model");
}

}  // namespace
}  // namespace nibble::models
