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

// `fallback` 0: the key is required.
Result<int64_t> get_size_or_default(const Json& config, std::string_view key, int64_t fallback) {
  return fallback == 0 ? get_size(config, key) : get_size_or(config, key, fallback);
}

Result<kernels::Activation> read_activation(const Json& config, const Family& family) {
  NIBBLE_ASSIGN(std::string act,
                config.get_string_or(family.activation_key, std::string(family.activation)));
  if (act == "silu" || act == "swish") return kernels::Activation::kSilu;
  if (act == "gelu") return kernels::Activation::kGelu;
  if (act == "gelu_new" || act == "gelu_pytorch_tanh" || act == "gelu_fast") {
    return kernels::Activation::kGeluTanh;
  }
  if (act == "quick_gelu") return kernels::Activation::kQuickGelu;
  if (act == "relu") return kernels::Activation::kRelu;
  if (act == "relu2") return kernels::Activation::kRelu2;
  return fail(ErrorCode::kUnsupported,
              fmt::format("{}: {}: \"{}\" is not known; expected silu, gelu, gelu_new, "
                          "gelu_pytorch_tanh, quick_gelu, relu or relu2",
                          config.where(), family.activation_key, act));
}

// rope_scaling of older configs, rope_parameters of newer ones (which also holds rope_theta). Where
// both say something, transformers takes rope_scaling.
Result<kernels::RopeConfig> read_shared_rope(const Json& config, const Family& family,
                                             DecoderSpec& spec) {
  const Json* parameters = nullptr;
  if (family.rotary) {
    const Json* scaling = config.find_set("rope_scaling");
    const Json* newer = config.find_set("rope_parameters");
    for (const auto& [key, value] :
         {std::pair{"rope_scaling", scaling}, std::pair{"rope_parameters", newer}}) {
      if (value != nullptr && !value->is_object()) {
        return fail(ErrorCode::kCorrupt, fmt::format("{}: {}: expected an object, found {}",
                                                     config.where(), key, value->describe()));
      }
    }
    if (scaling != nullptr && scaling->as_object().empty()) scaling = nullptr;
    parameters = scaling != nullptr ? scaling : newer;
    if (scaling != nullptr && newer != nullptr) {
      spec.notes.push_back(
          fmt::format("{}: rope_scaling is followed; rope_parameters, which stands beside it, has "
                      "no effect",
                      config.where()));
    }
  }
  return read_rope(config, parameters, family, spec);
}

}  // namespace

Result<int64_t> get_size_or(const Json& config, std::string_view key, int64_t fallback) {
  return config.find_set(key) == nullptr ? Result<int64_t>(fallback) : get_size(config, key);
}

Result<float> get_positive_or(const Json& config, std::string_view key, double fallback) {
  NIBBLE_ASSIGN(double v, config.get_double_or(key, fallback));
  if (!(v > 0) || !std::isfinite(static_cast<float>(v))) {
    return fail(ErrorCode::kCorrupt, fmt::format("{}: {}: expected a positive number, found {}",
                                                 config.where(), key, v));
  }
  return static_cast<float>(v);
}

Result<DecoderSpec> read_common(const Json& config, const Family& family) {
  DecoderSpec spec;
  NIBBLE_ASSIGN(spec.hidden, get_size(config, "hidden_size"));
  NIBBLE_ASSIGN(spec.layers, get_size(config, "num_hidden_layers"));
  if (spec.layers > 4096) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}: num_hidden_layers: expected at most 4096, found {}",
                            config.where(), spec.layers));
  }
  NIBBLE_ASSIGN(spec.heads, get_size_or_default(config, "num_attention_heads", family.heads));
  // A key that is null says "as many as there are query heads" in every family.
  const bool kv_absent = config.find(family.kv_heads_key) == nullptr;
  spec.kv_heads = kv_absent && family.kv_heads != 0 ? family.kv_heads : spec.heads;
  if (!family.kv_heads_key.empty()) {
    NIBBLE_ASSIGN(spec.kv_heads, get_size_or(config, family.kv_heads_key, spec.kv_heads));
  }
  if (spec.heads % spec.kv_heads != 0) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}: num_attention_heads: {} query heads do not divide among {} "
                            "key-value heads ({})",
                            config.where(), spec.heads, spec.kv_heads, family.kv_heads_key));
  }
  const bool no_head_dim = config.find_set("head_dim") == nullptr && family.head_dim == 0;
  if (no_head_dim && spec.hidden % spec.heads != 0) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}: hidden_size: {} does not divide among {} heads "
                            "(num_attention_heads) and there is no head_dim",
                            config.where(), spec.hidden, spec.heads));
  }
  NIBBLE_ASSIGN(spec.head_dim,
                get_size_or(config, "head_dim",
                            family.head_dim != 0 ? family.head_dim : spec.hidden / spec.heads));
  if (spec.head_dim % 2 != 0 || spec.head_dim > 1024) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("{}: head_dim: expected an even number up to 1024, found {}",
                            config.where(), spec.head_dim));
  }
  NIBBLE_ASSIGN(spec.ffn, get_size(config, family.ffn_key));
  NIBBLE_ASSIGN(spec.vocab, get_size_or_default(config, "vocab_size", family.vocab));
  NIBBLE_ASSIGN(spec.max_positions,
                get_size_or(config, "max_position_embeddings", family.max_positions));
  spec.context = spec.max_positions;
  NIBBLE_ASSIGN(spec.norm_eps, get_positive_or(config, family.norm_eps_key, family.norm_eps));
  NIBBLE_ASSIGN(spec.activation, read_activation(config, family));
  NIBBLE_ASSIGN(spec.tied_embeddings, config.get_bool_or("tie_word_embeddings", family.tied));
  NIBBLE_ASSIGN(spec.rope, read_shared_rope(config, family, spec));
  spec.rotary = family.rotary;
  spec.attention_scale = 1.0f / std::sqrt(static_cast<float>(spec.head_dim));
  same_window(spec, 0);
  return spec;
}

Result<Json> object_or_empty(const Json& parent, std::string_view key) {
  const Json* found = parent.find_set(key);
  if (found == nullptr) {
    Json none = Json::object();
    none.set_where(parent.where());
    return none;
  }
  if (!found->is_object()) {
    return fail(ErrorCode::kCorrupt, fmt::format("{}: {}: expected an object, found {}",
                                                 parent.where(), key, found->describe()));
  }
  return *found;
}

void same_window(DecoderSpec& spec, int64_t window) {
  spec.windows.assign(static_cast<size_t>(spec.layers), window);
}

Result<void> read_layer_types(const Json& config, DecoderSpec& spec, int64_t window,
                              const std::function<bool(int64_t)>& slides) {
  NIBBLE_ASSIGN(std::vector<std::string> types, config.get_strings_or_empty("layer_types"));
  if (!types.empty() && static_cast<int64_t>(types.size()) != spec.layers) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}: layer_types: expected {} entries (num_hidden_layers), found {}",
                            config.where(), spec.layers, types.size()));
  }
  for (size_t i = 0; i < spec.windows.size(); ++i) {
    if (!types.empty() && types[i] != "full_attention" && types[i] != "sliding_attention") {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("{}: layer_types: expected full_attention or sliding_attention, "
                              "found \"{}\"",
                              config.where(), types[i]));
    }
    const bool sliding =
        types.empty() ? slides(static_cast<int64_t>(i)) : types[i] == "sliding_attention";
    spec.windows[i] = sliding ? window : 0;
  }
  return {};
}

void note_ignored(const Json& config, std::initializer_list<std::string_view> keys,
                  DecoderSpec& spec) {
  for (std::string_view key : keys) {
    const Json* value = config.find_set(key);
    if (value == nullptr || (value->is_bool() && !value->as_bool())) continue;
    spec.notes.push_back(fmt::format("{}: {} has no effect: a model of this kind does not read it",
                                     config.where(), key));
  }
}

}  // namespace nibble::models
