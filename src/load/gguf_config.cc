#include "load/gguf_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <iterator>
#include <string_view>
#include <utility>

namespace nibble::load {
namespace {

using base::Json;
using checkpoint::Checkpoint;
using checkpoint::GgufMetadata;

// What a file's `attention.sliding_window` means.
enum class Window { kUnknown, kMistral, kAll, kPattern };

struct GgufArchitecture {
  std::string_view name;          // general.architecture
  std::string_view architecture;  // config.json's
  bool neighbours = false;        // q and k stored for the rotation of neighbours
  Window window = Window::kUnknown;
  // The norm's epsilon, in the file and in config.json.
  std::string_view gguf_eps = "attention.layer_norm_rms_epsilon";
  std::string_view hf_eps = "rms_norm_eps";
};
constexpr std::string_view kLayerNormEps = "attention.layer_norm_epsilon";
constexpr GgufArchitecture kArchitectures[] = {
    {"llama", "LlamaForCausalLM", true, Window::kMistral},
    {"qwen2", "Qwen2ForCausalLM"},
    {"qwen3", "Qwen3ForCausalLM"},
    {"phi3", "Phi3ForCausalLM", false, Window::kAll},
    {"gemma", "GemmaForCausalLM"},
    {"gemma2", "Gemma2ForCausalLM", false, Window::kPattern},
    {"gemma3", "Gemma3ForCausalLM", false, Window::kPattern},
    {"olmo2", "Olmo2ForCausalLM"},
    {"granite", "GraniteForCausalLM", true},
    {"starcoder2", "Starcoder2ForCausalLM", false, Window::kAll, kLayerNormEps, "norm_epsilon"},
    {"phi2", "PhiForCausalLM", false, Window::kUnknown, kLayerNormEps, "layer_norm_eps"},
    {"gptneox", "GPTNeoXForCausalLM", false, Window::kUnknown, kLayerNormEps, "layer_norm_eps"},
};

enum class Kind { kInt, kReal, kBool };
struct KeyPair {
  std::string_view gguf;  // after "<architecture>."
  std::string_view hf;
  Kind kind;
  bool required = false;
};
constexpr KeyPair kKeys[] = {
    {"block_count", "num_hidden_layers", Kind::kInt, true},
    {"context_length", "max_position_embeddings", Kind::kInt, true},
    {"embedding_length", "hidden_size", Kind::kInt, true},
    {"feed_forward_length", "intermediate_size", Kind::kInt, true},
    {"attention.head_count", "num_attention_heads", Kind::kInt, true},
    {"attention.head_count_kv", "num_key_value_heads", Kind::kInt},
    {"attention.key_length", "head_dim", Kind::kInt},
    {"attn_logit_softcapping", "attn_logit_softcapping", Kind::kReal},
    {"final_logit_softcapping", "final_logit_softcapping", Kind::kReal},
    {"attention.scale", "attention_multiplier", Kind::kReal},
    {"embedding_scale", "embedding_multiplier", Kind::kReal},
    {"residual_scale", "residual_multiplier", Kind::kReal},
    {"logit_scale", "logits_scaling", Kind::kReal},
    {"use_parallel_residual", "use_parallel_residual", Kind::kBool},
};
constexpr KeyPair kRopeKeys[] = {
    {"rope.freq_base", "rope_theta", Kind::kReal},
    {"rope.scale_linear", "factor", Kind::kReal},  // the oldest name
    {"rope.scaling.factor", "factor", Kind::kReal},
    {"rope.scaling.attn_factor", "attention_factor", Kind::kReal},
    {"rope.scaling.yarn_attn_factor", "attention_factor", Kind::kReal},
    {"rope.scaling.yarn_beta_fast", "beta_fast", Kind::kReal},
    {"rope.scaling.yarn_beta_slow", "beta_slow", Kind::kReal},
    {"rope.scaling.original_context_length", "original_max_position_embeddings", Kind::kInt},
};
// Keys that only these architectures compute with; elsewhere they must hold the value given.
struct OwnKey {
  std::string_view gguf;
  double neutral;
  std::string_view architectures;  // with spaces around each
};
constexpr OwnKey kOwnKeys[] = {
    {"attention.scale", 0, " granite "},
    {"embedding_scale", 1, " granite "},
    {"residual_scale", 1, " granite "},
    {"logit_scale", 1, " granite "},
    {"attn_logit_softcapping", 0, " gemma2 "},
    {"final_logit_softcapping", 0, " gemma2 gemma3 "},
    {"attention.causal", 1, ""},
    {"attention.clamp_kqv", 0, ""},
    {"attention.max_alibi_bias", 0, ""},
    {"attention.temperature_length", 0, ""},
    {"attention.temperature_scale", 0, ""},
    {"expert_count", 0, ""},
    {"expert_used_count", 0, ""},
    {"expert_shared_count", 0, ""},
    {"nextn_predict_layers", 0, ""},
    {"rope.scaling.alpha", 0, ""},
    {"rope.scaling.yarn_ext_factor", 1, ""},
    {"rope.scaling.yarn_log_multiplier", 0, ""},
};
// Keys that are read elsewhere in this file, or that change nothing.
constexpr std::string_view kOtherKeys[] = {
    "vocab_size",
    "tensor_data_layout",
    "rope.dimension_count",
    "rope.freq_base_swa",
    "rope.scaling.type",
    "rope.scaling.finetuned",
    "attention.value_length",
    "attention.key_length_swa",
    "attention.value_length_swa",
    "rope.dimension_count_swa",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "leading_dense_block_count",
    "expert_feed_forward_length",
    "pooling_type",
};

const GgufArchitecture* find_architecture(std::string_view name) {
  for (const GgufArchitecture& a : kArchitectures) {
    if (a.name == name) return &a;
  }
  return nullptr;
}

// An f32 of the file as the shortest decimal that means it: 1e-05, not 9.999999747378752e-06, so
// that the config reads as its author wrote it.
double shortest(double v) {
  const auto narrow = static_cast<float>(v);
  if (static_cast<double>(narrow) != v) return v;
  return std::stod(fmt::format("{}", narrow));
}

class Reader {
 public:
  Reader(const Checkpoint& checkpoint, const GgufArchitecture& architecture)
      : checkpoint_(checkpoint), meta_(*checkpoint.gguf()), architecture_(architecture) {}

  Result<GgufConfig> run() {
    config_ = Json::object();
    NIBBLE_TRY(check_keys());
    for (const KeyPair& pair : kKeys) NIBBLE_TRY(copy(pair, config_));
    NIBBLE_TRY(copy({architecture_.gguf_eps, architecture_.hf_eps, Kind::kReal, true}, config_));
    NIBBLE_TRY(check_heads());
    NIBBLE_TRY(copy_rope());
    NIBBLE_TRY(copy_windows());
    if (architecture_.window == Window::kPattern) NIBBLE_TRY(set_attention_scale());
    std::string_view architecture = architecture_.architecture;
    if (architecture_.window == Window::kMistral && config_.find("sliding_window") != nullptr) {
      architecture = "MistralForCausalLM";
    }
    config_.set("architectures", Json(base::JsonArray{Json(architecture)}));
    // The vocabulary's size is what the embedding holds; vocab_size may be absent.
    if (const tensor::TensorInfo* embedding = checkpoint_.find("token_embd.weight");
        embedding != nullptr && embedding->shape.size() == 2) {
      config_.set("vocab_size", Json(embedding->shape[0]));
    }
    config_.set("tie_word_embeddings", Json(checkpoint_.find("output.weight") == nullptr));
    config_.set_where(meta_.where());
    GgufConfig out;
    out.config = std::move(config_);
    out.order =
        architecture_.neighbours ? kernels::PairOrder::kNeighbours : kernels::PairOrder::kHalves;
    out.warnings = std::move(warnings_);
    return out;
  }

 private:
  std::string key(std::string_view rest) const {
    return fmt::format("{}.{}", architecture_.name, rest);
  }

  Result<double> number(std::string_view name) const {
    const checkpoint::GgufEntry* entry = meta_.find(name);
    if (entry != nullptr && !entry->is_array && entry->type == checkpoint::GgufType::kBool) {
      NIBBLE_ASSIGN(const bool v, meta_.get_bool(name));
      return v ? 1.0 : 0.0;
    }
    return meta_.get_double(name);
  }

  Failure unsupported(std::string_view name, std::string_view why) const {
    return fail(ErrorCode::kUnsupported, fmt::format("{}: {}: {}", meta_.where(), name, why));
  }

  // Every key of the architecture is one that is honoured, or holds the value that changes
  // nothing, or is warned of.
  Result<void> check_keys() {
    for (const checkpoint::GgufEntry& entry : meta_.entries()) {
      const std::string prefix = key("");
      if (!entry.key.starts_with(prefix)) continue;
      const std::string_view rest = entry.key.substr(prefix.size());
      bool known = rest == architecture_.gguf_eps;
      for (const KeyPair& pair : kKeys) known = known || rest == pair.gguf;
      for (const KeyPair& pair : kRopeKeys) known = known || rest == pair.gguf;
      for (std::string_view other : kOtherKeys) known = known || rest == other;
      for (const OwnKey& own : kOwnKeys) {
        if (rest != own.gguf) continue;
        known = true;
        if (own.architectures.find(fmt::format(" {} ", architecture_.name)) !=
            std::string_view::npos) {
          continue;
        }
        NIBBLE_ASSIGN(const double v, number(entry.key));
        if (v != own.neutral) {
          return unsupported(entry.key, fmt::format("{} is not supported for this architecture "
                                                    "(only {}, which changes nothing)",
                                                    v, own.neutral));
        }
      }
      if (!known && warnings_.size() < 20) {
        warnings_.push_back(fmt::format("{}: {} ({}) is not known and was not used", meta_.where(),
                                        entry.key, GgufMetadata::describe(entry)));
      }
    }
    // Granite's files switch the rotation off with it.
    const std::string finetuned = key("rope.scaling.finetuned");
    if (architecture_.name == "granite" && meta_.has(finetuned)) {
      NIBBLE_ASSIGN(const bool on, meta_.get_bool(finetuned));
      if (!on) return unsupported(finetuned, "a Granite model without positions is not supported");
    }
    return {};
  }

  Result<void> copy(const KeyPair& pair, Json& to) const {
    const std::string name = key(pair.gguf);
    const checkpoint::GgufEntry* entry = meta_.find(name);
    if (entry == nullptr) {
      if (!pair.required) return {};
      return fail(ErrorCode::kCorrupt,
                  fmt::format("{}: key \"{}\" is missing", meta_.where(), name));
    }
    if (entry->is_array) {
      // Some files give one value per layer; equal ones are one value.
      NIBBLE_ASSIGN(std::vector<int64_t> values, meta_.get_ints(name));
      for (int64_t v : values) {
        if (v != values.front()) {
          return unsupported(name, fmt::format("layers of different sizes ({} and {}) are not "
                                               "supported",
                                               values.front(), v));
        }
      }
      if (!values.empty()) to.set(std::string(pair.hf), Json(values.front()));
    } else if (pair.kind == Kind::kInt) {
      NIBBLE_ASSIGN(const int64_t v, meta_.get_int(name));
      to.set(std::string(pair.hf), Json(v));
    } else if (pair.kind == Kind::kBool) {
      NIBBLE_ASSIGN(const bool v, meta_.get_bool(name));
      to.set(std::string(pair.hf), Json(v));
    } else {
      NIBBLE_ASSIGN(const double v, meta_.get_double(name));
      to.set(std::string(pair.hf), Json(shortest(v)));
    }
    return {};
  }

  // embedding_length / head_count unless key_length says otherwise; 0 where that makes no sense,
  // which the declaration refuses.
  Result<int64_t> head_dim() const {
    NIBBLE_ASSIGN(const int64_t hidden, config_.get_int_or("hidden_size", 0));
    NIBBLE_ASSIGN(const int64_t heads, config_.get_int_or("num_attention_heads", 0));
    return config_.get_int_or("head_dim", heads > 0 ? hidden / heads : 0);
  }

  Result<void> check_heads() const {
    NIBBLE_ASSIGN(const int64_t expected, head_dim());
    for (const char* rest :
         {"attention.value_length", "attention.key_length_swa", "attention.value_length_swa"}) {
      if (!meta_.has(key(rest))) continue;
      NIBBLE_ASSIGN(const int64_t found, meta_.get_int(key(rest)));
      if (found != expected) {
        return unsupported(
            key(rest), fmt::format("expected {}, the length of a key, found {}", expected, found));
      }
    }
    return {};
  }

  Result<void> copy_rope() {
    Json rope = Json::object();
    for (const KeyPair& pair : kRopeKeys) NIBBLE_TRY(copy(pair, rope));
    NIBBLE_ASSIGN(const int64_t whole, head_dim());
    NIBBLE_ASSIGN(const int64_t rotary, meta_.get_int_or(key("rope.dimension_count"), whole));
    NIBBLE_ASSIGN(const int64_t rotary_swa,
                  meta_.get_int_or(key("rope.dimension_count_swa"), rotary));
    if (rotary_swa != rotary) {
      return unsupported(
          key("rope.dimension_count_swa"),
          fmt::format("expected {}, as rope.dimension_count, found {}", rotary, rotary_swa));
    }
    const bool partial_known = architecture_.name == "phi2" || architecture_.name == "phi3" ||
                               architecture_.name == "gptneox";
    if (rotary != whole && !partial_known) {
      return unsupported(key("rope.dimension_count"),
                         fmt::format("expected {}, the length of a head, found {}", whole, rotary));
    }
    if (whole > 0) {
      rope.set("partial_rotary_factor",
               Json(static_cast<double>(rotary) / static_cast<double>(whole)));
    }
    NIBBLE_TRY(copy_long_factors(rotary, rope));
    if (rope.find("rope_type") == nullptr) {
      // Files without a type mean linear, if there is a factor.
      const bool has_factor = rope.find("factor") != nullptr;
      NIBBLE_ASSIGN(std::string_view type,
                    meta_.get_string_or(key("rope.scaling.type"), has_factor ? "linear" : "none"));
      rope.set("rope_type", Json(type == "none" ? "default" : type));
    }
    NIBBLE_ASSIGN(const double theta, rope.get_double_or("rope_theta", 10000.0));
    const double swa_default = architecture_.name == "gemma3" ? 10000.0 : theta;
    NIBBLE_ASSIGN(const double swa, meta_.get_double_or(key("rope.freq_base_swa"), swa_default));
    if (architecture_.name != "gemma3") {
      if (static_cast<float>(swa) != static_cast<float>(theta)) {
        return unsupported(key("rope.freq_base_swa"),
                           fmt::format("expected {}, as rope.freq_base, found {}", theta, swa));
      }
      config_.set("rope_parameters", std::move(rope));
      return {};
    }
    Json sliding = Json::object();
    sliding.set("rope_theta", Json(shortest(swa)));
    Json both = Json::object();
    both.set("full_attention", std::move(rope));
    both.set("sliding_attention", std::move(sliding));
    config_.set("rope_parameters", std::move(both));
    return {};
  }

  // Phi 3's divisors of each pair, for short and long contexts, are two tensors.
  Result<void> copy_long_factors(int64_t rotary, Json& rope) const {
    for (const auto& [name, hf] : {std::pair{"rope_factors_short.weight", "short_factor"},
                                   std::pair{"rope_factors_long.weight", "long_factor"}}) {
      const tensor::TensorInfo* info = checkpoint_.find(name);
      if (info == nullptr) continue;
      if (info->dtype != tensor::DType::kF32 || info->shape != tensor::Shape{rotary / 2}) {
        return fail(
            ErrorCode::kCorrupt,
            fmt::format("{}: expected f32 ({}), half of {}, found {} {}",
                        checkpoint_.describe(*info), rotary / 2, key("rope.dimension_count"),
                        tensor::name(info->dtype), tensor::to_string(info->shape)));
      }
      NIBBLE_ASSIGN(const tensor::TensorView view, checkpoint_.view(*info));
      base::JsonArray factors;
      for (int64_t i = 0; i < rotary / 2; ++i) {
        float v;
        std::memcpy(&v, view.data + i * 4, 4);
        factors.emplace_back(static_cast<double>(v));
      }
      rope.set(hf, Json(std::move(factors)));
      rope.set("rope_type", Json("longrope"));
    }
    return {};
  }

  Result<void> copy_windows() {
    const std::string name = key("attention.sliding_window");
    NIBBLE_ASSIGN(const int64_t window, meta_.get_int_or(name, 0));
    NIBBLE_ASSIGN(const int64_t layers, config_.get_int("num_hidden_layers"));
    const bool absent = !meta_.has(name);
    if (architecture_.window == Window::kPattern && (window != 0 || absent)) {
      if (window != 0) config_.set("sliding_window", Json(window));
      // Without the key Gemma 3 has no windows, and Gemma 2 those of its class.
      if (absent && architecture_.name == "gemma3") return set_layer_types(layers, 1);
      return copy_pattern(layers);
    }
    if (window == 0) {
      return architecture_.window == Window::kPattern ? set_layer_types(layers, 1) : Result<void>();
    }
    if (architecture_.window == Window::kUnknown) {
      return unsupported(name, fmt::format("a window of {} is not known for this architecture: "
                                           "the file does not say which layers have it",
                                           window));
    }
    config_.set("sliding_window", Json(window));
    return {};
  }

  Result<void> copy_pattern(int64_t layers) {
    const std::string name = key("attention.sliding_window_pattern");
    const checkpoint::GgufEntry* entry = meta_.find(name);
    if (entry == nullptr) return {};  // the family's own
    if (!entry->is_array) {
      NIBBLE_ASSIGN(const int64_t every, meta_.get_int(name));
      return set_layer_types(layers, every);
    }
    NIBBLE_ASSIGN(const std::vector<bool> slides, meta_.get_bools(name));
    base::JsonArray types;
    for (bool v : slides) types.emplace_back(v ? "sliding_attention" : "full_attention");
    config_.set("layer_types", Json(std::move(types)));
    return {};
  }

  // Every `every`-th layer is a full one; 1: all of them.
  Result<void> set_layer_types(int64_t layers, int64_t every) {
    if (every < 1) {
      return unsupported(key("attention.sliding_window_pattern"),
                         fmt::format("expected 1 or more, found {}", every));
    }
    base::JsonArray types;
    constexpr int64_t kMost = 4096;  // the declaration refuses more
    for (int64_t i = 0; i < std::min(layers, kMost); ++i) {
      types.emplace_back((i + 1) % every == 0 ? "full_attention" : "sliding_attention");
    }
    config_.set("layer_types", Json(std::move(types)));
    return {};
  }

  // No key says query_pre_attn_scalar. Google's code takes the length of a head but for the
  // largest Gemma 2 (46 layers) and Gemma 3 (62), which have hidden / heads.
  Result<void> set_attention_scale() {
    NIBBLE_ASSIGN(const int64_t layers, config_.get_int("num_hidden_layers"));
    NIBBLE_ASSIGN(const int64_t hidden, config_.get_int("hidden_size"));
    NIBBLE_ASSIGN(const int64_t heads, config_.get_int("num_attention_heads"));
    NIBBLE_ASSIGN(int64_t scalar, head_dim());
    const int64_t largest = architecture_.name == "gemma2" ? 46 : 62;
    if (layers == largest && heads > 0) scalar = hidden / heads;
    config_.set("query_pre_attn_scalar", Json(scalar));
    return {};
  }

  const Checkpoint& checkpoint_;
  const GgufMetadata& meta_;
  const GgufArchitecture& architecture_;
  Json config_;
  std::vector<std::string> warnings_;
};

bool in_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

void replace_word(std::string& text, std::string_view word, std::string_view with) {
  for (size_t at = text.find(word); at != text.npos; at = text.find(word, at)) {
    const size_t end = at + word.size();
    const bool whole =
        (at == 0 || !in_word(text[at - 1])) && (end == text.size() || !in_word(text[end]));
    const bool quoted_name = at > 0 && text[at - 1] == '.';  // already part of a GGUF key
    if (whole && !quoted_name) {
      text.replace(at, word.size(), with);
      at += with.size();
    } else {
      at = end;
    }
  }
}

}  // namespace

Result<GgufConfig> config_from_gguf(const Checkpoint& checkpoint) {
  const GgufMetadata& meta = *checkpoint.gguf();
  NIBBLE_ASSIGN(std::string_view name, meta.get_string("general.architecture"));
  const GgufArchitecture* known = find_architecture(name);
  if (known == nullptr) {
    std::vector<std::string_view> names;
    for (const GgufArchitecture& a : kArchitectures) names.push_back(a.name);
    return fail(
        ErrorCode::kUnsupported,
        fmt::format("{}: general.architecture: \"{}\" is not a model nibble can run yet; it "
                    "knows {}",
                    meta.where(), name, fmt::join(names, ", ")));
  }
  return Reader(checkpoint, *known).run();
}

std::string in_gguf_words(const Checkpoint& checkpoint, std::string message) {
  auto name = checkpoint.gguf()->get_string_or("general.architecture", "");
  const GgufArchitecture* known = name ? find_architecture(*name) : nullptr;
  if (known == nullptr) return message;
  for (std::string_view path : {": rope_parameters: full_attention",
                                ": rope_parameters: sliding_attention", ": rope_parameters"}) {
    if (const size_t at = message.find(path); at != message.npos) message.erase(at, path.size());
  }
  const auto put = [&](std::string_view hf, std::string_view gguf) {
    replace_word(message, hf, fmt::format("{}.{}", known->name, gguf));
  };
  for (const KeyPair& pair : kKeys) put(pair.hf, pair.gguf);
  // From the last: of two names for one key the newer one.
  for (size_t i = std::size(kRopeKeys); i-- > 0;) put(kRopeKeys[i].hf, kRopeKeys[i].gguf);
  put(known->hf_eps, known->gguf_eps);
  put("sliding_window", "attention.sliding_window");
  put("layer_types", "attention.sliding_window_pattern");
  put("partial_rotary_factor", "rope.dimension_count");
  put("rope_type", "rope.scaling.type");
  replace_word(message, "from config.json", "from the file's metadata");
  return message;
}

}  // namespace nibble::load
