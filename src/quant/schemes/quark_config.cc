#include "quant/schemes/quark_config.h"

#include <fmt/format.h>

#include <utility>

#include "quant/activations.h"
#include "quant/keys.h"
#include "quant/scheme.h"

namespace nibble::quant::quark {
namespace {

using base::Json;
using tensor::ActivationFormat;

constexpr std::string_view kKnown =
    "quant_method global_quant_config layer_quant_config layer_type_quant_config exclude export "
    "kv_cache_quant_config quant_mode";
constexpr std::string_view kHarmless =
    "algo_config softmax_quant_spec version kv_cache_post_rope min_kv_scale shared_scale_groups "
    "log_severity_level quant_flow kv_cache_group";

// The nearer of the two levels of a tensor's specification; null when it is left alone.
const Json* spec_in(const Json& config, std::string_view key) {
  const Json* spec = config.find_set(key);
  if (spec != nullptr && spec->is_array()) {
    return spec->as_array().empty() ? nullptr : &spec->as_array()[0];
  }
  return spec;
}

Result<ScaleRule> mx_rule(const Json& spec) {
  NIBBLE_ASSIGN(const std::string mode,
                choice_key(spec, "scale_calculation_mode", {"even", "floor", "ceil"}));
  return mode == "even"    ? ScaleRule::kE8M0Nearest
         : mode == "floor" ? ScaleRule::kE8M0Floor
                           : ScaleRule::kE8M0Above;
}

ActivationType type_of(const std::string& dtype) {
  return dtype == "int8"       ? ActivationType::kS8
         : dtype == "fp4"      ? ActivationType::kE2M1
         : dtype == "fp6_e2m3" ? ActivationType::kE2M3
         : dtype == "fp6_e3m2" ? ActivationType::kE3M2
                               : ActivationType::kE4M3;
}

// Those of dtype "mx" are found at run time, whatever is_dynamic says.
Result<ActivationFormat> mx_activation(const Json& spec) {
  NIBBLE_TRY(spec.get_string("mx_element_dtype"));  // it has no default
  NIBBLE_ASSIGN(const std::string dtype,
                choice_key(spec, "mx_element_dtype", {"fp4", "fp6_e2m3", "fp6_e3m2", "fp8_e4m3"}));
  NIBBLE_ASSIGN(const int64_t group, int_key_or(spec, "group_size", 32));
  if (group != 32) {
    return fail(
        ErrorCode::kUnsupported,
        fmt::format("{}: group_size is {}, but dtype mx has groups of 32", spec.where(), group));
  }
  NIBBLE_ASSIGN(const ScaleRule rule, mx_rule(spec));
  return per_group(type_of(dtype), group, rule);
}

// e5m3, of which scales are bytes too, is none of them.
Result<std::string> scale_format(const Json& spec, std::string_view absent) {
  if (spec.find_set("scale_format") == nullptr) return std::string(absent);
  return choice_key(spec, "scale_format", {"float32", "e8m0", "e4m3", "float16", "bfloat16"});
}

// input_tensors -> the activations.
Result<ActivationFormat> activation_of(const Json& config) {
  using Granularity = ActivationFormat::Granularity;
  ActivationFormat out;
  const Json* spec = spec_in(config, "input_tensors");
  if (spec == nullptr) return out;
  NIBBLE_TRY(spec->get_string("dtype"));  // it has no default
  NIBBLE_ASSIGN(const std::string dtype, choice_key(*spec, "dtype",
                                                    {"fp8_e4m3", "int8", "fp4", "fp6_e2m3",
                                                     "fp6_e3m2", "mx", "float16", "bfloat16"}));
  if (dtype == "mx") return mx_activation(*spec);
  if (dtype == "float16" || dtype == "bfloat16") return out;
  NIBBLE_ASSIGN(const std::string qscheme,
                choice_key(*spec, "qscheme", {"per_tensor", "per_channel", "per_group"}));
  NIBBLE_ASSIGN(const bool dynamic, bool_key_or(*spec, "is_dynamic", false));
  NIBBLE_ASSIGN(const bool symmetric, bool_key_or(*spec, "symmetric", true));
  out.type = type_of(dtype);
  out.asymmetric = !symmetric && dtype == "int8";
  if (qscheme == "per_group") {
    NIBBLE_ASSIGN(out.group, group_size_key(*spec, "group_size"));
    if (out.group > 0) out.granularity = Granularity::kGroup;  // -1: the whole token
    const Json* levels = config.find_set("input_tensors");
    NIBBLE_ASSIGN(const std::string scales,
                  scale_format(*spec, dtype == "fp4" ? "e8m0" : "float32"));
    if (dtype == "fp4" && levels->is_array()) {
      out.scale_rule = ScaleRule::kE4M3;
    } else if (scales == "e8m0") {
      NIBBLE_ASSIGN(out.scale_rule, mx_rule(*spec));
    }
  }
  if (dynamic && qscheme == "per_tensor") out.granularity = Granularity::kTensor;
  if (dynamic) return out;
  if (qscheme != "per_tensor") {
    return fail(ErrorCode::kUnsupported,
                fmt::format("{}: input_tensors are {} and static; static ones are read per tensor",
                            config.where(), qscheme));
  }
  out.granularity = Granularity::kTensor;
  out.is_static = true;
  return out;
}

// Of a specification of weights, or of a list of two levels, of which the last has the codes.
Result<void> read_types(const Json& weight, LayerConfig& out) {
  if (weight.is_array()) {
    for (const Json& level : weight.as_array()) NIBBLE_TRY(read_types(level, out));
    return {};
  }
  NIBBLE_TRY(weight.get_string("dtype"));  // it has no default
  NIBBLE_ASSIGN(const std::string dtype,
                choice_key(weight, "dtype",
                           {"int8", "uint8", "int4", "uint4", "fp8_e4m3", "fp8_e5m2", "fp6_e2m3",
                            "fp6_e3m2", "fp4", "mx", "float16", "bfloat16", "float32"}));
  NIBBLE_TRY(scale_format(weight, ""));
  out.is_signed = !dtype.starts_with("uint");
  return {};
}

Result<LayerConfig> read_layer(const Json& config) {
  LayerConfig out;
  if (config.find_set("bias") != nullptr) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("{}: the bias is quantized, which is not read", config.where()));
  }
  out.quantizes_outputs = spec_in(config, "output_tensors") != nullptr;
  NIBBLE_ASSIGN(out.activation, activation_of(config));
  const Json* weight = spec_in(config, "weight");
  if (weight == nullptr) return out;
  out.quantizes_weights = true;
  NIBBLE_ASSIGN(out.symmetric, bool_key_or(*weight, "symmetric", true));
  const Json* dtype = weight->find_set("dtype");
  out.mx = dtype != nullptr && dtype->is_string() && dtype->as_string() == "mx";
  NIBBLE_ASSIGN(out.dtype, weight->get_string_or(out.mx ? "mx_element_dtype" : "dtype", ""));
  NIBBLE_TRY(read_types(*config.find("weight"), out));
  NIBBLE_ASSIGN(out.block, block_key(*weight, "block_size"));
  return out;
}

Result<void> read_layers(const Json& dictionary, Config& config) {
  NIBBLE_ASSIGN(const base::JsonObject layers, objects_key(dictionary, "layer_quant_config"));
  for (const auto& [pattern, layer] : layers) {
    NIBBLE_ASSIGN(LayerConfig read, read_layer(layer));
    const Says says = read.quantizes_weights ? Says::kQuantized : Says::kLeftAlone;
    config.layers.add(pattern, std::move(read), says);
  }
  return config.layers.compile(dictionary.where() + ": layer_quant_config");
}

}  // namespace

Result<Config> read_config(const Json& dictionary) {
  Config config;
  check_keys(dictionary, kKnown, kHarmless, config.warnings);
  if (const Json* all = dictionary.find_set("global_quant_config")) {
    NIBBLE_ASSIGN(config.general, read_layer(*all));
  }
  if (const Json* types = dictionary.find_set("layer_type_quant_config")) {
    if (const Json* linear = types->find_set("Linear")) {
      NIBBLE_ASSIGN(config.general, read_layer(*linear));
    }
  }
  NIBBLE_TRY(read_layers(dictionary, config));
  if (const Json* exported = dictionary.find_set("export")) {
    NIBBLE_ASSIGN(const std::string method,
                  choice_key(*exported, "pack_method", {"reorder", "order"}));
    config.pack_reordered = method == "reorder";
    NIBBLE_ASSIGN(const std::vector<std::string> cached, names_key(*exported, "kv_cache_group"));
    config.quantizes_cache = !cached.empty();
    NIBBLE_TRY(choice_key(*exported, "weight_format", {"real_quantized", "fake_quantized"}));
  }
  NIBBLE_ASSIGN(const base::JsonObject cache, objects_key(dictionary, "kv_cache_quant_config"));
  config.quantizes_cache = config.quantizes_cache || !cache.empty();
  NIBBLE_ASSIGN(config.excluded, names_list(dictionary, {"exclude"}, Says::kLeftAlone));
  return config;
}

}  // namespace nibble::quant::quark
