// What a GGUF file's keys become, and which are refused by their own names.
#include "load/gguf_config.h"

#include <gtest/gtest.h>

#include <functional>

#include "checkpoint/gguf_writer.h"
#include "checkpoint/test_files.h"
#include "load/plan.h"

namespace nibble::load {
namespace {

using checkpoint::Checkpoint;
using checkpoint::GgufWriter;
using checkpoint::TempFolder;

using More = std::function<void(GgufWriter&)>;

// The keys that every file has; `without` leaves one out.
void add_keys(GgufWriter& w, const std::string& a, const std::string& without) {
  w.add_string("general.architecture", a);
  const std::pair<const char*, uint32_t> sizes[] = {{"block_count", 1},
                                                    {"context_length", 128},
                                                    {"embedding_length", 8},
                                                    {"feed_forward_length", 16},
                                                    {"attention.head_count", 2}};
  for (const auto& [key, value] : sizes) {
    if (key != without) w.add_number(a + "." + key, value);
  }
  for (const char* key : {"attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"}) {
    const bool rms = std::string(key).find("rms") != std::string::npos;
    const bool wanted = rms != (a == "starcoder2" || a == "phi2" || a == "gptneox");
    if (wanted && key != without) w.add_number(a + "." + key, 1e-5f);
  }
}

std::string write(TempFolder& folder, const std::string& architecture, const More& more,
                  const std::string& without = "") {
  GgufWriter w;
  add_keys(w, architecture, without);
  if (more) more(w);
  w.add_tensor("token_embd.weight", tensor::DType::kF32, {4, 8});
  EXPECT_TRUE(w.begin(folder.at("m.gguf")));
  EXPECT_TRUE(w.append(checkpoint::as_bytes(std::string(4 * 8 * 4, 0))));
  EXPECT_TRUE(w.finish());
  return folder.at("m.gguf");
}

// The message of planning such a file; without its path, which is another one every time.
std::string refusal(const std::string& architecture, const More& more,
                    const std::string& without = "") {
  TempFolder folder;
  auto c = Checkpoint::open(write(folder, architecture, more, without));
  if (!c) return c.error().message;
  auto plan = make_plan(*c, {});
  if (plan) return "not refused";
  std::string message = plan.error().message;
  const std::string path = "m.gguf: ";
  const size_t at = message.find(path);
  return at == message.npos ? message : message.substr(at + path.size());
}

Result<GgufConfig> config(const std::string& architecture, const More& more) {
  TempFolder folder;
  NIBBLE_ASSIGN(Checkpoint c, Checkpoint::open(write(folder, architecture, more)));
  return config_from_gguf(c);
}

TEST(gguf_config, what_llama_cpp_requires_is_required) {
  for (const char* key :
       {"block_count", "context_length", "embedding_length", "feed_forward_length",
        "attention.head_count", "attention.layer_norm_rms_epsilon"}) {
    EXPECT_EQ(refusal("llama", {}, key), "key \"llama." + std::string(key) + "\" is missing");
  }
}

TEST(gguf_config, keys_that_would_change_the_computation_are_refused_by_name) {
  EXPECT_EQ(refusal("llama", [](GgufWriter& w) { w.add_bool("llama.attention.causal", false); }),
            "llama.attention.causal: 0 is not supported for this architecture (only 1, which "
            "changes nothing)");
  EXPECT_EQ(
      refusal("llama", [](GgufWriter& w) { w.add_number("llama.expert_count", uint32_t{8}); }),
      "llama.expert_count: 8 is not supported for this architecture (only 0, which changes "
      "nothing)");
  EXPECT_EQ(
      refusal("llama",
              [](GgufWriter& w) { w.add_number("llama.rope.scaling.yarn_log_multiplier", 0.1f); })
          .substr(0, 39),
      "llama.rope.scaling.yarn_log_multiplier:");
  EXPECT_EQ(
      refusal("llama",
              [](GgufWriter& w) { w.add_number("llama.attention.value_length", uint32_t{8}); }),
      "llama.attention.value_length: expected 4, the length of a key, found 8");
  EXPECT_EQ(refusal("llama",
                    [](GgufWriter& w) { w.add_number("llama.rope.dimension_count", uint32_t{2}); }),
            "llama.rope.dimension_count: expected 4, the length of a head, found 2");
  EXPECT_EQ(
      refusal("qwen2",
              [](GgufWriter& w) { w.add_number("qwen2.attention.sliding_window", uint32_t{5}); }),
      "qwen2.attention.sliding_window: a window of 5 is not known for this architecture: "
      "the file does not say which layers have it");
  EXPECT_EQ(refusal("granite",
                    [](GgufWriter& w) { w.add_bool("granite.rope.scaling.finetuned", false); }),
            "granite.rope.scaling.finetuned: a Granite model without positions is not supported");
  EXPECT_EQ(
      refusal("gemma2", [](GgufWriter& w) { w.add_number("gemma2.rope.freq_base_swa", 5.0f); }),
      "gemma2.rope.freq_base_swa: expected 10000, as rope.freq_base, found 5");
  EXPECT_EQ(refusal("gemma3",
                    [](GgufWriter& w) {
                      w.add_number("gemma3.attention.sliding_window", uint32_t{5});
                      w.add_number("gemma3.attention.sliding_window_pattern", uint32_t{0});
                    }),
            "gemma3.attention.sliding_window_pattern: expected 1 or more, found 0");
}

TEST(gguf_config, an_unknown_key_is_warned_of) {
  const auto c = config("llama", [](GgufWriter& w) { w.add_number("llama.twist", uint32_t{3}); });
  ASSERT_TRUE(c) << c.error().message;
  ASSERT_EQ(c->warnings.size(), 1u);
  EXPECT_TRUE(c->warnings[0].ends_with("m.gguf: llama.twist (3) is not known and was not used"));
}

TEST(gguf_config, errors_of_the_declaration_name_the_files_own_keys) {
  EXPECT_EQ(
      refusal("llama",
              [](GgufWriter& w) { w.add_number("llama.attention.head_count_kv", uint32_t{3}); }),
      "llama.attention.head_count: 2 query heads do not divide among 3 key-value heads "
      "(llama.attention.head_count_kv)");
  EXPECT_EQ(refusal("llama", [](GgufWriter& w) { w.add_number("llama.rope.freq_base", -1.0f); }),
            "llama.rope.freq_base: expected a positive number, found -1");
  EXPECT_EQ(refusal("llama",
                    [](GgufWriter& w) {
                      w.add_string("llama.rope.scaling.type", "linear");
                      w.add_number("llama.rope.scaling.factor", 0.0f);
                    }),
            "llama.rope.scaling.factor: expected a positive number, found 0");
}

TEST(gguf_config, a_mistral_window_makes_a_mistral) {
  const auto c = config(
      "llama", [](GgufWriter& w) { w.add_number("llama.attention.sliding_window", uint32_t{5}); });
  ASSERT_TRUE(c) << c.error().message;
  EXPECT_EQ(c->config.get_strings_or_empty("architectures").value().front(), "MistralForCausalLM");
  EXPECT_EQ(c->config.get_int("sliding_window").value_or(0), 5);
  EXPECT_EQ(c->order, kernels::PairOrder::kNeighbours);
}

TEST(gguf_config, patterns_of_windows_become_layer_types) {
  const auto c = config("gemma3", [](GgufWriter& w) {
    w.add_number("gemma3.attention.sliding_window", uint32_t{5});
    w.add_number("gemma3.attention.sliding_window_pattern", uint32_t{1});
  });
  ASSERT_TRUE(c) << c.error().message;
  EXPECT_EQ(c->config.get_strings_or_empty("layer_types").value(),
            std::vector<std::string>{"full_attention"});
  EXPECT_EQ(c->config.get_int("query_pre_attn_scalar").value_or(0), 4);
  EXPECT_EQ(c->order, kernels::PairOrder::kHalves);
}

}  // namespace
}  // namespace nibble::load
