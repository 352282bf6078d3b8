#include "load/gguf_config.h"

#include <fmt/format.h>

#include <array>
#include <string_view>

namespace nibble::load {
namespace {

using base::Json;
using checkpoint::GgufMetadata;

struct GgufArchitecture {
  std::string_view name;          // general.architecture
  std::string_view architecture;  // config.json's
};
constexpr GgufArchitecture kArchitectures[] = {{"llama", "LlamaForCausalLM"}};

enum class Kind { kInt, kReal };
struct KeyPair {
  std::string_view gguf;  // after "<architecture>."
  std::string_view hf;
  Kind kind;
};
constexpr KeyPair kKeys[] = {
    {"block_count", "num_hidden_layers", Kind::kInt},
    {"context_length", "max_position_embeddings", Kind::kInt},
    {"embedding_length", "hidden_size", Kind::kInt},
    {"feed_forward_length", "intermediate_size", Kind::kInt},
    {"attention.head_count", "num_attention_heads", Kind::kInt},
    {"attention.head_count_kv", "num_key_value_heads", Kind::kInt},
    {"attention.key_length", "head_dim", Kind::kInt},
    {"attention.layer_norm_rms_epsilon", "rms_norm_eps", Kind::kReal},
    {"attention.sliding_window", "sliding_window", Kind::kInt},
    {"rope.freq_base", "rope_theta", Kind::kReal},
};

// An f32 of the file as the shortest decimal that means it: 1e-05, not 9.999999747378752e-06, so
// that the config reads as its author wrote it.
double shortest(double v) {
  const auto narrow = static_cast<float>(v);
  if (static_cast<double>(narrow) != v) return v;
  return std::stod(fmt::format("{}", narrow));
}

Result<void> copy_keys(const GgufMetadata& meta, std::string_view prefix, Json& config) {
  for (const KeyPair& pair : kKeys) {
    const std::string key = fmt::format("{}.{}", prefix, pair.gguf);
    const checkpoint::GgufEntry* entry = meta.find(key);
    if (entry == nullptr) continue;
    if (entry->is_array) {
      // Some files give one value per layer; equal ones are one value.
      NIBBLE_ASSIGN(std::vector<int64_t> values, meta.get_ints(key));
      for (int64_t v : values) {
        if (v != values.front()) {
          return fail(ErrorCode::kUnsupported,
                      fmt::format("{}: {}: layers of different sizes ({} and {}) are not supported",
                                  meta.where(), key, values.front(), v));
        }
      }
      if (!values.empty()) config.set(std::string(pair.hf), Json(values.front()));
    } else if (pair.kind == Kind::kInt) {
      NIBBLE_ASSIGN(int64_t v, meta.get_int(key));
      config.set(std::string(pair.hf), Json(v));
    } else {
      NIBBLE_ASSIGN(double v, meta.get_double(key));
      config.set(std::string(pair.hf), Json(shortest(v)));
    }
  }
  return {};
}

Result<void> copy_rope(const GgufMetadata& meta, std::string_view prefix, Json& config) {
  const auto key = [&](std::string_view rest) { return fmt::format("{}.rope.{}", prefix, rest); };
  if (meta.has(key("dimension_count"))) {
    // head_dim is embedding_length / head_count unless key_length says otherwise; a smaller
    // dimension_count is a partial rotation.
    NIBBLE_ASSIGN(int64_t rotary, meta.get_int(key("dimension_count")));
    NIBBLE_ASSIGN(int64_t hidden, config.get_int_or("hidden_size", 0));
    NIBBLE_ASSIGN(int64_t heads, config.get_int_or("num_attention_heads", 0));
    NIBBLE_ASSIGN(int64_t head_dim, config.get_int_or("head_dim", heads > 0 ? hidden / heads : 0));
    if (head_dim > 0 && rotary != head_dim) {
      config.set("partial_rotary_factor",
                 Json(static_cast<double>(rotary) / static_cast<double>(head_dim)));
    }
  }
  // Files without a type mean linear; the oldest call the factor scale_linear.
  const bool has_factor = meta.has(key("scaling.factor")) || meta.has(key("scale_linear"));
  NIBBLE_ASSIGN(std::string_view type,
                meta.get_string_or(key("scaling.type"), has_factor ? "linear" : "none"));
  if (type == "none") return {};
  Json scaling = Json::object();
  scaling.set("rope_type", Json(type));
  constexpr std::pair<std::string_view, std::string_view> kReals[] = {
      {"scale_linear", "factor"},
      {"scaling.factor", "factor"},
      {"scaling.attn_factor", "attention_factor"},
      {"scaling.yarn_beta_fast", "beta_fast"},
      {"scaling.yarn_beta_slow", "beta_slow"}};
  for (const auto& [gguf, hf] : kReals) {
    if (!meta.has(key(gguf))) continue;
    NIBBLE_ASSIGN(double v, meta.get_double(key(gguf)));
    scaling.set(std::string(hf), Json(shortest(v)));
  }
  if (meta.has(key("scaling.original_context_length"))) {
    NIBBLE_ASSIGN(int64_t v, meta.get_int(key("scaling.original_context_length")));
    scaling.set("original_max_position_embeddings", Json(v));
  }
  config.set("rope_scaling", std::move(scaling));
  return {};
}

constexpr std::pair<std::string_view, std::string_view> kModuleNames[] = {
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.o_proj", "attn_output"},
    {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},
    {"input_layernorm", "attn_norm"},
    {"post_attention_layernorm", "ffn_norm"},
};

}  // namespace

Result<Json> config_from_gguf(const checkpoint::Checkpoint& checkpoint) {
  const GgufMetadata& meta = *checkpoint.gguf();
  NIBBLE_ASSIGN(std::string_view name, meta.get_string("general.architecture"));
  const GgufArchitecture* known = nullptr;
  for (const GgufArchitecture& a : kArchitectures) {
    if (a.name == name) known = &a;
  }
  if (known == nullptr) {
    return fail(
        ErrorCode::kUnsupported,
        fmt::format("{}: general.architecture: \"{}\" is not a model nibble can run yet; it "
                    "knows llama",
                    meta.where(), name));
  }
  Json config = Json::object();
  config.set("architectures", Json(base::JsonArray{Json(known->architecture)}));
  NIBBLE_TRY(copy_keys(meta, name, config));
  NIBBLE_TRY(copy_rope(meta, name, config));
  // The vocabulary's size is what the embedding holds; vocab_size may be absent.
  if (const tensor::TensorInfo* embedding = checkpoint.find("token_embd.weight");
      embedding != nullptr && embedding->shape.size() == 2) {
    config.set("vocab_size", Json(embedding->shape[0]));
  }
  config.set("tie_word_embeddings", Json(checkpoint.find("output.weight") == nullptr));
  const bool attention_bias = checkpoint.find("blk.0.attn_q.bias") != nullptr;
  config.set("attention_bias", Json(attention_bias));
  config.set_where(meta.where());
  return config;
}

layers::PartNames gguf_part_names() {
  return {"token_embd",      "output_norm",     "output",        "blk.{}.attn_norm",
          "blk.{}.attn_q",   "blk.{}.attn_k",   "blk.{}.attn_v", "blk.{}.attn_output",
          "blk.{}.ffn_norm", "blk.{}.ffn_gate", "blk.{}.ffn_up", "blk.{}.ffn_down"};
}

std::string gguf_module_name(std::string_view module) {
  if (module == "model.embed_tokens") return "token_embd";
  if (module == "model.norm") return "output_norm";
  if (module == "lm_head") return "output";
  constexpr std::string_view kPrefix = "model.layers.";
  if (!module.starts_with(kPrefix)) return std::string(module);
  const std::string_view rest = module.substr(kPrefix.size());
  const size_t dot = rest.find('.');
  if (dot == rest.npos) return std::string(module);
  for (const auto& [hf, gguf] : kModuleNames) {
    if (rest.substr(dot + 1) == hf) return fmt::format("blk.{}.{}", rest.substr(0, dot), gguf);
  }
  return std::string(module);
}

}  // namespace nibble::load
