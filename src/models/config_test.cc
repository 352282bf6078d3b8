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
        Lie{"sliding_window", "0",
            "config.json: sliding_window: expected a size from 1 to 16777216, found 0"},
        Lie{"architectures", "[]",
            "config.json: neither \"architectures\" nor \"model_type\" says what kind of model "
            "this "
            "is; expected one of LlamaForCausalLM, MistralForCausalLM"},
        Lie{"architectures", "[\"GPT9\"]",
            "config.json: architectures: \"GPT9\" is not a model nibble can run yet; it knows "
            "LlamaForCausalLM, MistralForCausalLM"}));

}  // namespace
}  // namespace nibble::models
