#include "models/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace nibble::models {
namespace {

using base::Json;
using layers::DecoderSpec;

// Far above any model that exists; products of two of them stay well inside int64.
constexpr int64_t kLargestDimension = int64_t{1} << 24;

Result<int64_t> get_size(const Json& config, std::string_view key) {
  NIBBLE_ASSIGN(int64_t v, config.get_int(key));
  if (v < 1 || v > kLargestDimension) {
    return fail(ErrorCode::kCorrupt, fmt::format("{}: {}: expected a size from 1 to {}, found {}",
                                                 config.where(), key, kLargestDimension, v));
  }
  return v;
}

Result<int64_t> get_size_or(const Json& config, std::string_view key, int64_t fallback) {
  return config.find_set(key) == nullptr ? Result<int64_t>(fallback) : get_size(config, key);
}

Result<double> get_positive(const Json& config, std::string_view key, double fallback) {
  NIBBLE_ASSIGN(double v, config.get_double_or(key, fallback));
  if (!(v > 0) || !std::isfinite(v)) {
    return fail(ErrorCode::kCorrupt, fmt::format("{}: {}: expected a positive number, found {}",
                                                 config.where(), key, v));
  }
  return v;
}

Result<std::vector<double>> get_numbers(const Json& config, std::string_view key, int64_t count) {
  std::vector<double> out;
  const Json* list = config.find_set(key);
  if (list == nullptr || !list->is_array() ||
      static_cast<int64_t>(list->as_array().size()) != count) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}: {}: expected a list of {} numbers, found {}", config.where(), key,
                            count, list == nullptr ? "nothing" : list->describe()));
  }
  for (const Json& item : list->as_array()) {
    if (!item.is_number() || !(item.as_double() > 0)) {
      return fail(ErrorCode::kCorrupt, fmt::format("{}: {}: expected positive numbers, found {}",
                                                   config.where(), key, item.describe()));
    }
    out.push_back(item.as_double());
  }
  return out;
}

Result<kernels::RopeType> rope_type(const Json& scaling) {
  NIBBLE_ASSIGN(std::string type, scaling.get_string_or("rope_type", ""));
  if (type.empty()) {
    NIBBLE_ASSIGN(type, scaling.get_string_or("type", "default"));
  }
  if (type == "default") return kernels::RopeType::kDefault;
  if (type == "linear") return kernels::RopeType::kLinear;
  if (type == "dynamic") return kernels::RopeType::kDynamic;
  if (type == "yarn") return kernels::RopeType::kYarn;
  if (type == "llama3") return kernels::RopeType::kLlama3;
  if (type == "longrope" || type == "su") return kernels::RopeType::kLongRope;
  if (type == "proportional") return kernels::RopeType::kProportional;
  return fail(ErrorCode::kUnsupported,
              fmt::format("{}: rope_type: \"{}\" is not known; expected default, linear, dynamic, "
                          "yarn, llama3, longrope or proportional",
                          scaling.where(), type));
}

// rope_scaling of older configs, rope_parameters of newer ones (which also holds rope_theta).
Result<void> read_rope(const Json& config, DecoderSpec& spec) {
  kernels::RopeConfig& rope = spec.rope;
  const Json* scaling = config.find_set("rope_parameters");
  if (scaling == nullptr) scaling = config.find_set("rope_scaling");
  if (scaling != nullptr && !scaling->is_object()) {
    return fail(ErrorCode::kCorrupt, fmt::format("{}: rope_scaling: expected an object, found {}",
                                                 config.where(), scaling->describe()));
  }
  const Json& with_theta =
      scaling != nullptr && scaling->find_set("rope_theta") != nullptr ? *scaling : config;
  NIBBLE_ASSIGN(double theta, with_theta.get_double_or("rope_theta", 10000.0));
  if (!(theta > 0) || !std::isfinite(theta)) {
    return fail(ErrorCode::kCorrupt, fmt::format("{}: rope_theta: expected a positive number, "
                                                 "found {}",
                                                 with_theta.where(), theta));
  }
  rope.theta = theta;
  const Json& with_partial =
      scaling != nullptr && scaling->find_set("partial_rotary_factor") != nullptr ? *scaling
                                                                                  : config;
  NIBBLE_ASSIGN(double partial, with_partial.get_double_or("partial_rotary_factor", 1.0));
  if (!(partial > 0) || partial > 1) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}: partial_rotary_factor: expected a number in (0, 1], found {}",
                            with_partial.where(), partial));
  }
  rope.head_dim = static_cast<int>(spec.head_dim);
  rope.rotary_dim = static_cast<int>(static_cast<double>(spec.head_dim) * partial) / 2 * 2;
  rope.max_positions = spec.max_positions;
  spec.context = spec.max_positions;
  if (scaling == nullptr) return {};

  NIBBLE_ASSIGN(rope.type, rope_type(*scaling));
  if (rope.type == kernels::RopeType::kDefault) return {};
  rope.factor = 0;  // yarn and longrope compute it when it is not given
  const bool optional =
      rope.type == kernels::RopeType::kYarn || rope.type == kernels::RopeType::kLongRope;
  if (!optional || scaling->find_set("factor") != nullptr) {
    NIBBLE_ASSIGN(rope.factor, get_positive(*scaling, "factor", 0));
  }
  // With these two max_position_embeddings is the length before scaling.
  if (rope.type == kernels::RopeType::kDynamic || rope.type == kernels::RopeType::kLinear) {
    const double longer = std::floor(static_cast<double>(spec.max_positions) * rope.factor);
    spec.context = static_cast<int64_t>(std::min(longer, static_cast<double>(kLargestDimension)));
  }
  // Phi-3 keeps original_max_position_embeddings at the top level.
  const Json& with_original =
      scaling->find_set("original_max_position_embeddings") != nullptr ? *scaling : config;
  NIBBLE_ASSIGN(rope.original_max_positions,
                get_size_or(with_original, "original_max_position_embeddings", spec.max_positions));
  if (rope.type == kernels::RopeType::kLlama3) {
    NIBBLE_ASSIGN(rope.low_freq_factor, get_positive(*scaling, "low_freq_factor", 1));
    NIBBLE_ASSIGN(rope.high_freq_factor, get_positive(*scaling, "high_freq_factor", 4));
  }
  if (scaling->find_set("attention_factor") != nullptr) {
    NIBBLE_ASSIGN(double factor, scaling->get_double("attention_factor"));
    rope.attention_factor = factor;
  }
  if (rope.type == kernels::RopeType::kYarn) {
    NIBBLE_ASSIGN(rope.beta_fast, get_positive(*scaling, "beta_fast", 32));
    NIBBLE_ASSIGN(rope.beta_slow, get_positive(*scaling, "beta_slow", 1));
    NIBBLE_ASSIGN(rope.truncate, scaling->get_bool_or("truncate", true));
    if (scaling->find_set("mscale") != nullptr) {
      NIBBLE_ASSIGN(rope.mscale, scaling->get_double("mscale"));
    }
    if (scaling->find_set("mscale_all_dim") != nullptr) {
      NIBBLE_ASSIGN(rope.mscale_all_dim, scaling->get_double("mscale_all_dim"));
    }
  }
  if (rope.type == kernels::RopeType::kLongRope) {
    NIBBLE_ASSIGN(rope.short_factor, get_numbers(*scaling, "short_factor", rope.rotary_dim / 2));
    NIBBLE_ASSIGN(rope.long_factor, get_numbers(*scaling, "long_factor", rope.rotary_dim / 2));
  }
  return {};
}

Result<kernels::Activation> read_activation(const Json& config) {
  NIBBLE_ASSIGN(std::string act, config.get_string_or("hidden_act", "silu"));
  if (act == "silu" || act == "swish") return kernels::Activation::kSilu;
  if (act == "gelu") return kernels::Activation::kGelu;
  if (act == "gelu_new" || act == "gelu_pytorch_tanh" || act == "gelu_fast") {
    return kernels::Activation::kGeluTanh;
  }
  if (act == "quick_gelu") return kernels::Activation::kQuickGelu;
  if (act == "relu") return kernels::Activation::kRelu;
  if (act == "relu2") return kernels::Activation::kRelu2;
  return fail(ErrorCode::kUnsupported,
              fmt::format("{}: hidden_act: \"{}\" is not known; expected silu, gelu, gelu_new, "
                          "gelu_pytorch_tanh, quick_gelu, relu or relu2",
                          config.where(), act));
}

}  // namespace

Result<DecoderSpec> read_common(const Json& config) {
  DecoderSpec spec;
  NIBBLE_ASSIGN(spec.hidden, get_size(config, "hidden_size"));
  NIBBLE_ASSIGN(spec.layers, get_size(config, "num_hidden_layers"));
  if (spec.layers > 4096) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}: num_hidden_layers: expected at most 4096, found {}",
                            config.where(), spec.layers));
  }
  NIBBLE_ASSIGN(spec.heads, get_size(config, "num_attention_heads"));
  NIBBLE_ASSIGN(spec.kv_heads, get_size_or(config, "num_key_value_heads", spec.heads));
  if (spec.heads % spec.kv_heads != 0) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}: num_attention_heads: {} query heads do not divide among {} "
                            "key-value heads (num_key_value_heads)",
                            config.where(), spec.heads, spec.kv_heads));
  }
  if (config.find_set("head_dim") == nullptr && spec.hidden % spec.heads != 0) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}: hidden_size: {} does not divide among {} heads "
                            "(num_attention_heads) and there is no head_dim",
                            config.where(), spec.hidden, spec.heads));
  }
  NIBBLE_ASSIGN(spec.head_dim, get_size_or(config, "head_dim", spec.hidden / spec.heads));
  if (spec.head_dim % 2 != 0 || spec.head_dim > 1024) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("{}: head_dim: expected an even number up to 1024, found {}",
                            config.where(), spec.head_dim));
  }
  NIBBLE_ASSIGN(spec.ffn, get_size(config, "intermediate_size"));
  NIBBLE_ASSIGN(spec.vocab, get_size(config, "vocab_size"));
  NIBBLE_ASSIGN(spec.max_positions, get_size_or(config, "max_position_embeddings", 2048));
  NIBBLE_ASSIGN(const double norm_eps, get_positive(config, "rms_norm_eps", 1e-6));
  spec.norm_eps = static_cast<float>(norm_eps);
  NIBBLE_ASSIGN(spec.activation, read_activation(config));
  NIBBLE_ASSIGN(spec.tied_embeddings, config.get_bool_or("tie_word_embeddings", false));
  NIBBLE_TRY(read_rope(config, spec));
  spec.attention_scale = 1.0f / std::sqrt(static_cast<float>(spec.head_dim));
  spec.windows.assign(static_cast<size_t>(spec.layers), 0);
  return spec;
}

Result<void> read_sliding_window(const Json& config, DecoderSpec& spec) {
  if (config.find_set("sliding_window") == nullptr) return {};
  NIBBLE_ASSIGN(bool used, config.get_bool_or("use_sliding_window", true));
  if (!used) return {};
  NIBBLE_ASSIGN(int64_t window, get_size(config, "sliding_window"));
  NIBBLE_ASSIGN(std::vector<std::string> types, config.get_strings_or_empty("layer_types"));
  if (!types.empty() && static_cast<int64_t>(types.size()) != spec.layers) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}: layer_types: expected {} entries (num_hidden_layers), found {}",
                            config.where(), spec.layers, types.size()));
  }
  for (size_t i = 0; i < spec.windows.size(); ++i) {
    if (types.empty() || types[i] == "sliding_attention") {
      spec.windows[i] = window;
    } else if (types[i] != "full_attention") {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("{}: layer_types: expected full_attention or sliding_attention, "
                              "found \"{}\"",
                              config.where(), types[i]));
    }
  }
  return {};
}

}  // namespace nibble::models
