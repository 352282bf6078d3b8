#include "quant/kv_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "quant/keys.h"
#include "quant/scheme.h"
#include "quant/stored.h"

namespace nibble::quant {
namespace {

using base::Json;
using kernels::KvType;
using tensor::DType;
using tensor::TensorInfo;
using tensor::TensorView;

// Below an attention module, '?' is k or v.
constexpr std::string_view kScaleNames[] = {
    "attn.?_scale",  "?_scale", "?_proj.?_scale",      "qkv_proj.?_scale", "qkqkv_proj.?_scale",
    "?_cache.scale", "?.scale", "?_proj.output_scale", "attn.kv_scale",    "kv_scale"};
constexpr std::string_view kZeroNames[] = {"attn.?_zero_point",   "?_zero_point",
                                           "?_proj.?_zero_point", "qkv_proj.?_zero_point",
                                           "?_cache.zero_point",  "?_proj.output_zero_point"};
// ModelOpt's affine caches: stored = (x - bias) / scale.
constexpr std::string_view kBiasNames[] = {"?_proj.?_bias", "?_bias"};
// Of the attention itself, which is not quantized here.
constexpr std::string_view kProbNames[] = {"attn.prob_scale",   "prob_scale",
                                           "prob_output_scale", "attn.prob_zero_point",
                                           "prob_zero_point",   "prob_output_zero_point"};

std::string spelled(std::string_view attention, std::string_view name, char side) {
  std::string out = fmt::format("{}.{}", attention, name);
  std::replace(out.begin() + static_cast<std::ptrdiff_t>(attention.size()), out.end(), '?', side);
  return out;
}

// The tensor of this name; nullptr when there is none, or one of no elements.
const TensorInfo* stored_tensor(const TensorLookup& tensors, const std::string& name) {
  const TensorInfo* found = tensors.find(name);
  return found == nullptr || holds_nothing(*found) ? nullptr : found;
}

bool is_fp8(KvType type) { return type == KvType::kE4M3 || type == KvType::kE5M2; }

std::string lower(std::string text) {
  for (char& c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return text;
}

// A cache by a word: "FP8" of kv_cache_quant_algo, "fp8_e4m3" of Quark's dtype.
void set_type_by_word(const std::string& word, KvCacheConfig& out) {
  const std::string name = lower(word);
  if (name.empty() || name == "none" || name == "null" || name == "auto") return;
  if (name == "fp8" || name == "fp8_e4m3" || name == "float8_e4m3fn") {
    out.type = KvType::kE4M3;
  } else if (name == "fp8_e5m2") {
    out.type = KvType::kE5M2;
  } else if (name == "int8") {
    out.type = KvType::kS8;
  } else {
    out.unsupported = fmt::format("{}: a cache of {}", out.where, word.substr(0, 60));
  }
}

// compressed-tensors' QuantizationArgs; ModelOpt writes the same keys.
Result<KvCacheConfig> read_scheme(const Json& scheme, bool promised) {
  KvCacheConfig out;
  out.where = scheme.where();
  NIBBLE_ASSIGN(const std::string type, scheme.get_string_or("type", "int"));
  NIBBLE_ASSIGN(const int64_t bits, int_key_or(scheme, "num_bits", 8));
  NIBBLE_ASSIGN(const std::string strategy, scheme.get_string_or("strategy", "tensor"));
  NIBBLE_ASSIGN(const std::string dynamic, word_key(scheme, "dynamic", {"false", "true", "local"}));
  out.dynamic = dynamic != "false";
  out.promised = promised && !out.dynamic;
  if (bits != 8 || (type != "float" && type != "int")) {
    out.unsupported = fmt::format("{}: a cache of {} bits of type {}", out.where, bits, type);
    return out;
  }
  if (strategy != "tensor" && strategy != "attn_head" && !(strategy == "token" && out.dynamic)) {
    out.unsupported = fmt::format("{}: a cache with the strategy {}", out.where, strategy);
    return out;
  }
  out.type = type == "float" ? KvType::kE4M3 : KvType::kS8;
  return out;
}

Result<KvCacheConfig> read_algorithm(const Json& dictionary, std::string_view key) {
  KvCacheConfig out;
  NIBBLE_ASSIGN(const std::string word, dictionary.get_string_or(key, ""));
  if (word.empty()) return out;
  out.where = fmt::format("{}: {}", dictionary.where(), key);
  set_type_by_word(word, out);
  return out;
}

// A scheme in one word: how there are scales (AutoFP8, Quark's folders for quant_method "fp8": FP8
// caches all), or of what type the cache is.
Result<KvCacheConfig> read_scheme_word(const Json& dictionary, bool promised) {
  NIBBLE_ASSIGN(const std::string word, dictionary.get_string_or("kv_cache_scheme", ""));
  NIBBLE_ASSIGN(KvCacheConfig out, read_algorithm(dictionary, "kv_cache_scheme"));
  if (word != "static" && word != "dynamic") return out;
  out.unsupported.clear();
  out.type = KvType::kE4M3;
  out.dynamic = word == "dynamic";
  out.promised = promised && !out.dynamic;
  return out;
}

// Quark: modules by patterns, whose outputs are quantized. Newer files describe each pattern in
// kv_cache_quant_config, older ones list them in export and describe them among the layers.
Result<KvCacheConfig> read_group(const Json& dictionary) {
  KvCacheConfig out;
  const Json* layers = dictionary.find_set("kv_cache_quant_config");
  const Json* exported = dictionary.find_set("export");
  std::string pattern;
  if (layers != nullptr && layers->is_object() && !layers->as_object().empty()) {
    pattern = layers->as_object().front().first;
    out.where = layers->where();
  } else if (exported != nullptr && exported->is_object()) {
    NIBBLE_ASSIGN(const std::vector<std::string> group, names_key(*exported, "kv_cache_group"));
    if (group.empty()) return out;
    pattern = group.front();
    out.where = fmt::format("{}: kv_cache_group", exported->where());
    layers = dictionary.find_set("layer_quant_config");
  } else {
    return out;
  }
  const Json* layer = layers == nullptr ? nullptr : layers->find_set(pattern);
  const Json* output = layer == nullptr ? nullptr : layer->find_set("output_tensors");
  if (output == nullptr || !output->is_object()) {
    out.type = KvType::kE4M3;
    return out;
  }
  NIBBLE_ASSIGN(const std::string type, output->get_string_or("dtype", "fp8_e4m3"));
  NIBBLE_ASSIGN(out.dynamic, bool_key_or(*output, "is_dynamic", false));
  out.promised = !out.dynamic;
  set_type_by_word(type, out);
  return out;
}

Result<void> check_shape(const TensorInfo& info, int64_t heads) {
  const tensor::Shape shape = squeezed(info.shape);
  if (shape.empty() || shape == tensor::Shape{heads}) return {};
  return fail(ErrorCode::kUnsupported,
              fmt::format("{}: expected one number or one for each of {} key-value heads, found {}",
                          info.name, heads, tensor::to_string(info.shape)));
}

Result<std::vector<float>> read_scales(const TensorInfo& info, const KVCacheMethod::ViewOf& view) {
  NIBBLE_ASSIGN(const TensorView stored, view(info));
  NIBBLE_ASSIGN(std::vector<float> scale, read_floats(stored, info.name));
  for (size_t i = 0; i < scale.size(); ++i) {
    if (scale[i] > 0) continue;
    return fail(ErrorCode::kCorrupt, fmt::format("{} is {}; a scale is positive",
                                                 element_name(info.name, info.shape, i), scale[i]));
  }
  return scale;
}

Result<std::vector<float>> read_zeros(const TensorInfo& info, const KVCacheMethod::ViewOf& view) {
  NIBBLE_ASSIGN(const TensorView stored, view(info));
  NIBBLE_ASSIGN(std::vector<float> zero, read_zero_points(stored, info.name));
  NIBBLE_TRY(check_zero_points(zero, info.shape, info.name, -128, 127, "an int8 cache"));
  return zero;
}

}  // namespace

Result<KvCacheConfig> read_kv_cache(const Json& dictionary) {
  std::vector<KvCacheConfig> said;
  // ModelOpt leaves out scales that are 1.
  const Json* method = dictionary.find_set("quant_method");
  const bool promised =
      method == nullptr || !method->is_string() || lower(method->as_string()) != "modelopt";
  const Json* nested = dictionary.find_set("quantization");
  for (const Json* level : {&dictionary, nested}) {
    if (level == nullptr || !level->is_object()) continue;
    const Json* scheme = level->find_set("kv_cache_scheme");
    if (scheme != nullptr && scheme->is_object()) {
      NIBBLE_ASSIGN(KvCacheConfig config, read_scheme(*scheme, promised));
      said.push_back(std::move(config));
    } else if (scheme != nullptr) {
      NIBBLE_ASSIGN(KvCacheConfig config, read_scheme_word(*level, promised));
      said.push_back(std::move(config));
    }
    NIBBLE_ASSIGN(KvCacheConfig config, read_algorithm(*level, "kv_cache_quant_algo"));
    said.push_back(std::move(config));
  }
  NIBBLE_ASSIGN(KvCacheConfig group, read_group(dictionary));
  said.push_back(std::move(group));
  std::erase_if(said, [](const KvCacheConfig& c) { return !c.type && c.unsupported.empty(); });
  if (said.empty()) return KvCacheConfig{};
  for (const KvCacheConfig& other : said) {
    if (other.type == said[0].type && other.dynamic == said[0].dynamic &&
        other.unsupported.empty() == said[0].unsupported.empty()) {
      continue;
    }
    return fail(ErrorCode::kCorrupt,
                fmt::format("{} and {} ask for different KV caches", said[0].where, other.where));
  }
  return std::move(said[0]);
}

Result<KvCacheConfig> find_kv_cache(const base::Json* dictionary,
                                    const base::Json* hf_quant_config) {
  KvCacheConfig own, beside;
  if (dictionary != nullptr) {
    NIBBLE_ASSIGN(own, read_kv_cache(*dictionary));
  }
  if (hf_quant_config != nullptr && hf_quant_config != dictionary) {
    NIBBLE_ASSIGN(beside, read_kv_cache(*hf_quant_config));
  }
  if (own.where.empty()) return beside;
  if (!beside.where.empty() && own.type != beside.type) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{} and {} name different caches; remove the one that is wrong",
                            own.where, beside.where));
  }
  return own;
}

bool stores_kv_scales(const TensorLookup& tensors) {
  return std::any_of(tensors.all.begin(), tensors.all.end(), [](const TensorInfo& info) {
    if (holds_nothing(info)) return false;
    const std::string_view name = info.name;
    for (const char* end : {".k_scale", ".v_scale", ".kv_scale", ".k_cache.scale", ".v_cache.scale",
                            ".k_proj.output_scale", ".v_proj.output_scale"}) {
      if (name.ends_with(end)) return true;
    }
    return false;
  });
}

KVCacheMethod::Side KVCacheMethod::find(char side, std::string_view attention,
                                        const TensorLookup& tensors) {
  Side out;
  for (std::string_view name : kScaleNames) {
    const TensorInfo* found = stored_tensor(tensors, spelled(attention, name, side));
    if (found == nullptr) continue;
    if (out.scale == nullptr) {
      out.scale = found;
    } else if (!name.ends_with("kv_scale")) {  // the older one, for both, may differ
      out.again.push_back(found);
    }
  }
  for (std::string_view name : kBiasNames) {
    if (out.bias == nullptr) out.bias = stored_tensor(tensors, spelled(attention, name, side));
  }
  for (std::string_view name : kZeroNames) {
    const TensorInfo* found = stored_tensor(tensors, spelled(attention, name, side));
    if (found == nullptr) continue;
    if (out.zero == nullptr) {
      out.zero = found;
    } else {
      unused_.emplace_back(found, fmt::format("{} is used", out.zero->name));
    }
  }
  return out;
}

Result<KVCacheMethod> KVCacheMethod::create(std::string_view attention, int64_t heads, KvType cache,
                                            const KvCacheConfig& config,
                                            const TensorLookup& tensors) {
  KVCacheMethod out;
  const bool quantized = kernels::is_quantized(cache);
  out.k_ = out.find('k', attention, tensors);
  out.v_ = out.find('v', attention, tensors);
  const KvType made_for = config.type.value_or(KvType::kE4M3);
  const bool fits =
      quantized && !config.dynamic && (made_for == cache || (is_fp8(made_for) && is_fp8(cache)));
  const bool any = out.k_.scale != nullptr || out.v_.scale != nullptr;
  if (fits && (any || config.promised)) {
    for (const auto& [side, found] : {std::pair{'k', out.k_.scale}, {'v', out.v_.scale}}) {
      if (found != nullptr) continue;
      return fail(
          ErrorCode::kNotFound,
          fmt::format("{}.{}_scale: the checkpoint has no such tensor, by this or another "
                      "name, though {}; --kv-cache-dtype f16 needs none",
                      attention, side,
                      any ? fmt::format("{} is stored", (side == 'k' ? out.v_ : out.k_).scale->name)
                      : config.where.empty() ? "other layers have theirs"
                                             : config.where + " asks for one"));
    }
    out.uses_stored_ = true;
    for (const Side* side : {&out.k_, &out.v_}) {
      NIBBLE_TRY(check_shape(*side->scale, heads));
      for (const TensorInfo* again : side->again) NIBBLE_TRY(check_shape(*again, heads));
      if (side->zero != nullptr) NIBBLE_TRY(check_shape(*side->zero, heads));
      if (side->bias == nullptr) continue;
      return fail(ErrorCode::kUnsupported,
                  fmt::format("{}: a KV cache with a bias is not known here; --kv-cache-dtype f16 "
                              "runs the model without",
                              side->bias->name));
    }
  }
  out.token_scales_ = quantized && !out.uses_stored_ && (cache == KvType::kS8 || config.dynamic);

  const std::string other_cache =
      fmt::format("a scale of a quantized KV cache; the cache here is {}{}", kernels::name(cache),
                  out.token_scales_ ? " with a scale for each token" : "");
  const auto account = [&](const TensorInfo* info, bool used, const std::string& why) {
    if (info == nullptr) return;
    const auto known = std::find(out.used_.begin(), out.used_.end(), info);
    if (known != out.used_.end()) return;
    if (used) {
      out.used_.push_back(info);
    } else if (std::none_of(out.unused_.begin(), out.unused_.end(),
                            [&](const auto& u) { return u.first == info; })) {
      out.unused_.emplace_back(info, why);
    }
  };
  for (const Side* side : {&out.k_, &out.v_}) {
    account(side->scale, out.uses_stored_, other_cache);
    for (const TensorInfo* again : side->again) account(again, out.uses_stored_, other_cache);
    account(side->bias, false, "the bias of a quantized KV cache");
    account(side->zero, out.uses_stored_ && cache == KvType::kS8,
            "a zero point of an int8 KV cache; the cache here has none");
  }
  // An old scale for both beside a newer one for each.
  for (std::string_view name : {"attn.kv_scale", "kv_scale"}) {
    account(stored_tensor(tensors, spelled(attention, name, 'k')), false,
            "the scales of keys and values are stored apart, too");
  }
  const auto account_all = [&](std::span<const std::string_view> names, const char* what) {
    for (std::string_view name : names) {
      account(stored_tensor(tensors, spelled(attention, name, 'q')), false,
              fmt::format("of {}, which are not quantized here", what));
    }
  };
  for (const char side : {'k', 'v'}) {
    account(stored_tensor(tensors, spelled(attention, "?_proj.?_bias", side)), false,
            "the bias of an affine KV cache; the cache here has none");
  }
  account_all(std::span(kScaleNames).first(8), "the queries");
  account_all(kZeroNames, "the queries");
  account_all(kProbNames, "the attention's probabilities");
  return out;
}

Result<kernels::KvScales> KVCacheMethod::process_weights_after_loading(const ViewOf& view) const {
  kernels::KvScales out;
  if (!uses_stored_) return out;
  const std::pair<const Side*, std::pair<std::vector<float>*, std::vector<float>*>> sides[] = {
      {&k_, {&out.k, &out.k_zero}}, {&v_, {&out.v, &out.v_zero}}};
  for (const auto& [side, to] : sides) {
    NIBBLE_ASSIGN(*to.first, read_scales(*side->scale, view));
    for (const TensorInfo* again : side->again) {
      NIBBLE_ASSIGN(const std::vector<float> other, read_scales(*again, view));
      if (other == *to.first) continue;
      return fail(ErrorCode::kCorrupt,
                  fmt::format("{} is {} and {} is {}; they are names of one scale",
                              side->scale->name, to.first->front(), again->name, other.front()));
    }
    const bool used = std::find(used_.begin(), used_.end(), side->zero) != used_.end();
    if (side->zero == nullptr || !used) continue;
    NIBBLE_ASSIGN(*to.second, read_zeros(*side->zero, view));
  }
  return out;
}

}  // namespace nibble::quant
