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

#include "quant/scaled_codes.h"
#include "quant/scheme.h"
#include "quant/schemes/quark_ints.h"
#include "quant/stored.h"

namespace nibble::quant {
namespace {

using tensor::ActivationFormat;
using tensor::DType;
using tensor::Element;
using tensor::TensorInfo;

// What the configuration says of a kind of layer.
struct LayerConfig {
  ActivationFormat activation;
  bool quantizes_weights = false;
  bool symmetric = true;  // integer weights
  std::string dtype;      // of the weights
  Area block;
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
  NIBBLE_ASSIGN(const bool dynamic, spec->get_bool_or("is_dynamic", false));
  NIBBLE_ASSIGN(const bool symmetric, spec->get_bool_or("symmetric", true));
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
  NIBBLE_ASSIGN(out.symmetric, weight->get_bool_or("symmetric", true));
  NIBBLE_ASSIGN(out.dtype, weight->get_string_or("dtype", ""));
  NIBBLE_ASSIGN(out.block, block_key(*weight, "block_size"));
  return out;
}

class QuarkConfig : public QuantizationConfig {
 public:
  std::string_view scheme() const override { return "quark"; }
  std::vector<const NameMatcher*> matchers() const override { return {&layers_, &excluded_}; }

  Result<std::unique_ptr<LinearMethod>> linear_method(const LinearLayer& layer,
                                                      const TensorLookup& tensors) const override {
    NIBBLE_ASSIGN(const std::optional<size_t> rule, layers_.match(layer.module));
    const LayerConfig& config = rule ? of_layers_[*rule] : general_;
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
      return quark_ints_method(
          layer, tensors,
          {.reordered = pack_reordered_, .symmetric = config.symmetric, .is_signed = signed_},
          config.activation);
    }
    ScaledCodes codes;
    codes.scheme = scheme();
    codes.scale = suffix;
    codes.activation = config.activation;
    if (is_fp8(weight->dtype)) {
      codes.element = element_of_fp8(weight->dtype);
      codes.code_types = kFp8Types;
      NIBBLE_ASSIGN(codes.area, area_of(layer, *scale, config.block, "block_size"));
      return scaled_codes_method(layer, tensors, std::move(codes));
    }
    if (layer.k % 4 == 0 && squeezed(weight->shape) == squeezed({layer.n, layer.k / 4 * 3})) {
      return fp6_method(layer, tensors, *weight, *scale, config.dtype, std::move(codes));
    }
    return fp4_method(layer, tensors, *weight, *scale, std::move(codes));
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
  // The inputs that share a scale of shape (N, K / group), of more than one group; 0: none do.
  static int64_t group_of(const LinearLayer& layer, const TensorInfo& scale) {
    if (scale.shape.size() != 2 || scale.shape[0] != layer.n || scale.shape[1] < 2) return 0;
    return layer.k % scale.shape[1] == 0 ? layer.k / scale.shape[1] : 0;
  }

  Result<std::unique_ptr<LinearMethod>> fp6_method(
      const LinearLayer& layer, const TensorLookup& tensors, const TensorInfo& weight,
      const TensorInfo& scale, const std::string& dtype, ScaledCodes codes) const {
    if (dtype != "fp6_e2m3" && dtype != "fp6_e3m2") {
      return fail(ErrorCode::kCorrupt,
                  fmt::format("{} {} {} has 6 bits for each of {} inputs, but its dtype is \"{}\", "
                              "neither fp6_e2m3 nor fp6_e3m2",
                              weight.name, tensor::name(weight.dtype),
                              tensor::to_string(weight.shape), layer.k, dtype));
    }
    const bool e2m3 = dtype == "fp6_e2m3";
    codes.element = e2m3 ? Element::kE4M3 : Element::kE5M2;
    codes.codes = e2m3 ? Codes::kE2M3 : Codes::kE3M2;
    codes.code_types = {DType::kU8};
    codes.area = {1, group_of(layer, scale)};  // one group: per output
    return scaled_codes_method(layer, tensors, std::move(codes));
  }

  Result<std::unique_ptr<LinearMethod>> fp4_method(const LinearLayer& layer,
                                                   const TensorLookup& tensors,
                                                   const TensorInfo& weight,
                                                   const TensorInfo& scale,
                                                   ScaledCodes codes) const {
    const int64_t group = scale.dtype == DType::kE4M3 ? 16 : 32;
    if (squeezed(weight.shape) != squeezed({layer.n, layer.k / 2}) || layer.k % group != 0) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("{} {} {}: of Quark's byte formats fp8 (N, K), int8 (N, K), fp6 "
                              "(N, 3K/4) and fp4 (N, K/2) in groups of {} are read; N is {} and "
                              "K {}",
                              weight.name, tensor::name(weight.dtype),
                              tensor::to_string(weight.shape), group, layer.n, layer.k));
    }
    codes.element = Element::kE2M1;
    codes.codes = Codes::kNibblesK;
    codes.code_types = {DType::kU8};
    codes.area = {1, group};
    if (find_tensor(tensors, layer.module, "weight_scale_2") != nullptr) {
      codes.scale2 = "weight_scale_2";
    }
    if (codes.activation.scale_rule == ActivationFormat::ScaleRule::kE4M3) {
      codes.input_scale = "input_scale_2";
    }
    return scaled_codes_method(layer, tensors, std::move(codes));
  }

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
    const base::Json* layers = dictionary.find_set("layer_quant_config");
    if (layers == nullptr) return {};
    const std::string where = dictionary.where() + ": layer_quant_config";
    if (!layers->is_object()) {
      return fail(ErrorCode::kCorrupt,
                  fmt::format("{}: expected an object, found {}", where, layers->describe()));
    }
    std::vector<std::string> rules;
    for (const auto& [pattern, config] : layers->as_object()) {
      NIBBLE_ASSIGN(LayerConfig read, read_layer(config));
      of_layers_.push_back(read);
      rules.push_back(pattern);
    }
    NIBBLE_ASSIGN(layers_, NameMatcher::compile(std::move(rules), where, Says::kQuantized));
    for (size_t i = 0; i < of_layers_.size(); ++i) {
      if (!of_layers_[i].quantizes_weights) layers_.set_says(i, Says::kLeftAlone);
    }
    return {};
  }

  LayerConfig general_;
  NameMatcher layers_, excluded_;
  std::vector<LayerConfig> of_layers_;  // of each rule of layers_
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
