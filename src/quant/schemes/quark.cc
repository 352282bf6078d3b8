// AMD Quark, as its export_safetensors writes folders.
//
//   fp8    <module>.weight (N, K) e4m3 | e5m2, weight_scale () | (N), or weight_scale_inv in blocks
//   mxfp4  <module>.weight (N, K/2) u8, weight_scale (N, K/32) u8: e8m0
//   mxfp6  <module>.weight (N, 3K/4) u8, weight_scale (N, K/32) u8, or (N, K/G) floats
//   nvfp4  <module>.weight (N, K/2) u8, weight_scale (N, K/16) e4m3, weight_scale_2 ()
//   ints   <module>.weight, weight_scale, weight_zero_point: quark_ints.h
//
// Which of them a layer has, the type and shape of `weight` tell; only e2m3 from e3m2 the dtype in
// the configuration. What happens to a layer's input is a matter of the configuration alone:
// `layer_quant_config` by name, `layer_type_quant_config`, then `global_quant_config`, each
// {"weight": {...}, "input_tensors": {...}}.
#include <fmt/format.h>

#include "quant/keys.h"
#include "quant/layer_rules.h"
#include "quant/scaled_codes.h"
#include "quant/scheme.h"
#include "quant/schemes/quark_ints.h"
#include "quant/stored.h"
#include "quant/stored_floats.h"

namespace nibble::quant {
namespace {

using tensor::ActivationFormat;
using tensor::DType;
using tensor::TensorInfo;

// What the configuration says of a kind of layer.
struct LayerConfig {
  ActivationFormat activation;
  bool quantizes_weights = false;
  bool symmetric = true;  // integer weights
  std::string dtype;      // of the weights
  Area block;

  // "e2m3" of "fp6_e2m3"; other types as they are.
  std::string six_bits() const { return dtype.starts_with("fp6_") ? dtype.substr(4) : dtype; }
};

constexpr std::string_view kKnown =
    "quant_method global_quant_config layer_quant_config layer_type_quant_config exclude export "
    "kv_cache_quant_config quant_mode";
constexpr std::string_view kHarmless =
    "algo_config softmax_quant_spec version kv_cache_post_rope min_kv_scale shared_scale_groups "
    "log_severity_level quant_flow kv_cache_group";

// The nearer of the two levels of a tensor's specification; null when it is left alone.
const base::Json* spec_in(const base::Json& config, std::string_view key) {
  const base::Json* spec = config.find_set(key);
  if (spec != nullptr && spec->is_array()) {
    return spec->as_array().empty() ? nullptr : &spec->as_array()[0];
  }
  return spec;
}

Result<ActivationFormat::ScaleRule> mx_rule(const base::Json& spec) {
  using Rule = ActivationFormat::ScaleRule;
  NIBBLE_ASSIGN(const std::string mode,
                choice_key(spec, "scale_calculation_mode", {"even", "floor", "ceil"}));
  return mode == "even"    ? Rule::kE8M0Nearest
         : mode == "floor" ? Rule::kE8M0Floor
                           : Rule::kE8M0Above;
}

// input_tensors -> the activations.
Result<ActivationFormat> activation_of(const base::Json& config) {
  using Granularity = ActivationFormat::Granularity;
  ActivationFormat out;
  const base::Json* spec = spec_in(config, "input_tensors");
  if (spec == nullptr) return out;
  NIBBLE_ASSIGN(const std::string dtype, choice_key(*spec, "dtype",
                                                    {"fp8_e4m3", "int8", "fp4", "fp6_e2m3",
                                                     "fp6_e3m2", "float16", "bfloat16"}));
  if (dtype == "float16" || dtype == "bfloat16") return out;
  NIBBLE_ASSIGN(const std::string qscheme,
                choice_key(*spec, "qscheme", {"per_tensor", "per_channel", "per_group"}));
  NIBBLE_ASSIGN(const bool dynamic, bool_key_or(*spec, "is_dynamic", false));
  NIBBLE_ASSIGN(const bool symmetric, bool_key_or(*spec, "symmetric", true));
  out.type = dtype == "int8"       ? ActivationFormat::Type::kS8
             : dtype == "fp4"      ? ActivationFormat::Type::kE2M1
             : dtype == "fp6_e2m3" ? ActivationFormat::Type::kE2M3
             : dtype == "fp6_e3m2" ? ActivationFormat::Type::kE3M2
                                   : ActivationFormat::Type::kE4M3;
  out.asymmetric = !symmetric && dtype == "int8";
  if (qscheme == "per_group") {
    out.granularity = Granularity::kGroup;
    NIBBLE_ASSIGN(out.group, group_size_key(*spec, "group_size"));
    const base::Json* levels = config.find_set("input_tensors");
    NIBBLE_ASSIGN(const std::string scales,
                  spec->get_string_or("scale_format", dtype == "fp4" ? "e8m0" : "float32"));
    if (dtype == "fp4" && levels->is_array()) {
      out.scale_rule = ActivationFormat::ScaleRule::kE4M3;
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

Result<LayerConfig> read_layer(const base::Json& config) {
  LayerConfig out;
  if (config.find_set("bias") != nullptr) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("{}: the bias is quantized, which is not read", config.where()));
  }
  // output_tensors are those of k_proj and v_proj: the KV cache.
  NIBBLE_ASSIGN(out.activation, activation_of(config));
  const base::Json* weight = spec_in(config, "weight");
  if (weight == nullptr) return out;
  out.quantizes_weights = true;
  NIBBLE_ASSIGN(out.symmetric, bool_key_or(*weight, "symmetric", true));
  NIBBLE_ASSIGN(out.dtype, weight->get_string_or("dtype", ""));
  NIBBLE_ASSIGN(out.block, block_key(*weight, "block_size"));
  return out;
}

class QuarkConfig : public QuantizationConfig {
 public:
  std::string_view scheme() const override { return "quark"; }
  std::vector<const NameMatcher*> matchers() const override {
    return {&layers_.matcher(), &excluded_};
  }

  Result<std::unique_ptr<LinearMethod>> linear_method(const LinearLayer& layer,
                                                      const TensorLookup& tensors) const override {
    NIBBLE_ASSIGN(const LayerConfig* named, layers_.find(layer.module));
    const LayerConfig& config = named != nullptr ? *named : general_;
    const TensorInfo* weight = find_tensor(tensors, layer.module, "weight");
    // What is stored outranks the lists. (The shared method also reports a missing weight.)
    if (weight == nullptr || tensor::is_plain_float(weight->dtype)) {
      return unquantized_method(layer, tensors);
    }
    const bool inverse = find_tensor(tensors, layer.module, "weight_scale_inv") != nullptr;
    const std::string suffix = inverse ? "weight_scale_inv" : "weight_scale";
    const TensorInfo* scale = find_tensor(tensors, layer.module, suffix);
    if (scale == nullptr) {
      return fail(ErrorCode::kNotFound,
                  fmt::format("{} is {}, but {}.weight_scale is missing", weight->name,
                              tensor::name(weight->dtype), layer.module));
    }
    if (weight->dtype == DType::kS32 || weight->dtype == DType::kS8) {
      return quark_ints_method(layer, tensors, {pack_reordered_, config.symmetric, signed_},
                               config.activation);
    }
    ScaledCodes codes;
    codes.scheme = scheme();
    codes.scale = suffix;
    codes.activation = config.activation;
    NIBBLE_TRY(read_stored_floats(layer, *weight, *scale,
                                  {config.block, "block_size", config.six_bits()}, codes));
    if (find_tensor(tensors, layer.module, "weight_scale_2") != nullptr) {
      codes.scale2 = "weight_scale_2";
    }
    if (codes.activation.scale_rule == ActivationFormat::ScaleRule::kE4M3) {
      codes.input_scale = "input_scale_2";
    }
    return scaled_codes_method(layer, tensors, std::move(codes));
  }

  Result<void> read(const base::Json& dictionary) {
    check_keys(dictionary, kKnown, kHarmless, warnings);
    if (const base::Json* all = dictionary.find_set("global_quant_config")) {
      NIBBLE_ASSIGN(general_, read_layer(*all));
      NIBBLE_TRY(read_signedness(*all));
    }
    if (const base::Json* types = dictionary.find_set("layer_type_quant_config")) {
      if (const base::Json* linear = types->find_set("Linear")) {
        NIBBLE_ASSIGN(general_, read_layer(*linear));
        NIBBLE_TRY(read_signedness(*linear));
      }
    }
    NIBBLE_TRY(read_layers(dictionary));
    if (const base::Json* exported = dictionary.find_set("export")) {
      NIBBLE_ASSIGN(const std::string method,
                    choice_key(*exported, "pack_method", {"reorder", "order"}));
      pack_reordered_ = method == "reorder";
      NIBBLE_TRY(choice_key(*exported, "weight_format", {"real_quantized", "fake_quantized"}));
    }
    NIBBLE_ASSIGN(excluded_, names_list(dictionary, {"exclude"}, Says::kLeftAlone));
    return {};
  }

 private:
  // int4 and uint4 are stored alike; one kind of integers a folder.
  Result<void> read_signedness(const base::Json& config) {
    const base::Json* weight = config.find_set("weight");
    if (weight != nullptr && weight->is_array() && !weight->as_array().empty()) {
      weight = &weight->as_array().back();
    }
    if (weight == nullptr) return {};
    NIBBLE_ASSIGN(const std::string dtype, weight->get_string_or("dtype", "int8"));
    signed_ = dtype.rfind("uint", 0) != 0;
    return {};
  }

  Result<void> read_layers(const base::Json& dictionary) {
    NIBBLE_ASSIGN(const base::JsonObject layers, objects_key(dictionary, "layer_quant_config"));
    for (const auto& [pattern, config] : layers) {
      NIBBLE_ASSIGN(LayerConfig read, read_layer(config));
      const Says says = read.quantizes_weights ? Says::kQuantized : Says::kLeftAlone;
      layers_.add(pattern, std::move(read), says);
    }
    return layers_.compile(dictionary.where() + ": layer_quant_config");
  }

  LayerConfig general_;
  LayerRules<LayerConfig> layers_;
  NameMatcher excluded_;
  bool pack_reordered_ = true, signed_ = true;
};

bool claims(const CheckpointFacts& facts) { return !facts.gguf && facts.method == "quark"; }

Result<std::unique_ptr<QuantizationConfig>> parse(const CheckpointFacts& facts) {
  return parse_dictionary<QuarkConfig>(
      facts, "quark needs a quantization_config: only it says what is done to activations");
}

constexpr std::string_view kAliases[] = {"amd-quark", "quark_mxfp4"};

}  // namespace

extern const Scheme quark_scheme;
const Scheme quark_scheme = {"quark", kAliases, claims, parse};

}  // namespace nibble::quant
