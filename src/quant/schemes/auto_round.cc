// auto-round (Cheng et al. 2023, SignRound), whose folders hold one of several layouts. Which one a
// layer has, its tensors say:
//
//   qweight (K b/32, N), qzeros, scales     GPTQ's layout (gptq_layout.h)    2 to 8 bits
//   qweight (K, N/8), qzeros, scales        AutoAWQ's (awq_layout.h)         4 bits
//   weight (N, K) e4m3 | e5m2, weight_scale | weight_scale_inv     FP8; input_scale when static
//   the same with weight_scale (N, K/32) u8                        mx_fp of 8 bits
//   weight_packed (N, K/2) u8, weight_scale (N, K/32) u8           mx_fp of 4 bits
//   weight_packed (N, K/2) u8, weight_scale (N, K/16) e4m3,        nv_fp; input_global_scale when
//   weight_global_scale (1) f32, which divides                     inputs are quantized
//
// Only the version of GPTQ's zero points is a matter of the label, `packing_format` (before 0.4,
// `backend`): with auto_gptq they are stored less one, in auto-round's own format and gptqmodel's
// as they are. Symmetric ones show it themselves.
//
// `extra_config` has the bits of single layers, by name or by regular expression (searched for);
// AutoScheme writes its choices there.
#include <fmt/format.h>

#include "quant/awq_layout.h"
#include "quant/gptq_layout.h"
#include "quant/scaled_codes.h"
#include "quant/scheme.h"
#include "quant/stored.h"

namespace nibble::quant {
namespace {

using tensor::DType;
using tensor::TensorInfo;

// What the dictionary, or an entry of extra_config, says of a layer.
struct Params {
  GptqLayout ints;
  int64_t act_bits = 16;
};

constexpr std::string_view kKnown =
    "quant_method bits group_size sym data_type packing_format backend extra_config act_bits "
    "act_dynamic act_sym act_data_type act_group_size activation_scheme weight_block_size fmt";
// Which layers are quantized the stored tensors say; the rest is how the weights were found.
constexpr std::string_view kHarmless =
    "block_name_to_quantize to_quant_block_names quant_block_list modules_to_not_convert "
    "autoround_version iters lr minmax_lr enable_minmax_tuning enable_quanted_input scale_dtype "
    "low_gpu_mem_usage low_cpu_mem_usage seqlen nsamples batch_size train_bs gradient_accumulate_"
    "steps amp dataset enable_norm_bias_tuning not_use_best_mse super_bits super_group_size "
    "regex_config enable_alg_ext static_kv_dtype static_attention_dtype quant_lm_head lm_head "
    "use_quant_input scale_calculation_mode multimodal quant_nontext_module model_free "
    "supported_types rotation_config hadamard_config spinquant_config";

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

class AutoRoundConfig : public QuantizationConfig {
 public:
  std::string_view scheme() const override { return "auto-round"; }
  std::vector<const NameMatcher*> matchers() const override { return {&extra_}; }

  Result<std::unique_ptr<LinearMethod>> linear_method(const LinearLayer& layer,
                                                      const TensorLookup& tensors) const override {
    NIBBLE_ASSIGN(const std::optional<size_t> rule, extra_.match(layer.module));
    const Params& params = rule ? overrides_[*rule] : general_;
    const TensorInfo* qweight = find_tensor(tensors, layer.module, "qweight");
    const TensorInfo* weight = find_tensor(tensors, layer.module, "weight");
    if (find_tensor(tensors, layer.module, "weight_packed") != nullptr) {
      return float_method(layer, tensors, "weight_packed", params);
    }
    // What is stored outranks the lists.
    if (qweight == nullptr && weight != nullptr) {
      if (tensor::is_plain_float(weight->dtype)) return unquantized_method(layer, tensors);
      return float_method(layer, tensors, "weight", params);
    }
    if (params.act_bits < 16) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("{}: act_bits is {}, but its weights are packed integers, which are "
                              "read with float activations only",
                              layer.module, params.act_bits));
    }
    if (qweight != nullptr && squeezed(qweight->shape) == squeezed({layer.k, layer.n / 8})) {
      return awq_layer(layer, tensors, params.ints);
    }
    return gptq_method(scheme(), layer, tensors, params.ints);
  }

  Result<void> read(const base::Json& dictionary) {
    check_keys(dictionary, kKnown, kHarmless, warnings);
    NIBBLE_TRY(read_packing(dictionary));
    NIBBLE_ASSIGN(general_, read_params(dictionary, general_));
    NIBBLE_TRY(read_extra(dictionary));
    return read_activations(dictionary);
  }

 private:
  static Result<std::unique_ptr<LinearMethod>> awq_layer(const LinearLayer& layer,
                                                         const TensorLookup& tensors,
                                                         const GptqLayout& params) {
    if (params.bits != 4) {
      return fail(ErrorCode::kCorrupt,
                  fmt::format("{}.qweight is packed as AutoAWQ does it, in 4 bits, but bits is {}",
                              layer.module, params.bits));
    }
    return awq_method("auto-round", layer, tensors, params.group);
  }

  // FP8, and micro-scaled floats of 4 and 8 bits.
  Result<std::unique_ptr<LinearMethod>> float_method(const LinearLayer& layer,
                                                     const TensorLookup& tensors,
                                                     const std::string& suffix,
                                                     const Params& params) const {
    const TensorInfo& weight = *find_tensor(tensors, layer.module, suffix);
    ScaledCodes codes;
    codes.scheme = scheme();
    codes.weight = suffix;
    if (find_tensor(tensors, layer.module, "weight_scale_inv") != nullptr) {
      codes.scale = "weight_scale_inv";
    }
    const TensorInfo* scale = find_tensor(tensors, layer.module, codes.scale);
    if (scale == nullptr) {
      return fail(ErrorCode::kNotFound,
                  fmt::format("{} is {}, but {}.weight_scale is missing", weight.name,
                              tensor::name(weight.dtype), layer.module));
    }
    const bool mx = scale->dtype == DType::kU8, packed = suffix == "weight_packed";
    const bool nv = packed && !mx;
    const int64_t group = nv ? 16 : 32;
    if (nv && scale->dtype != DType::kE4M3) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("{} is {}: of the packed floats of auto-round mx_fp is read, whose "
                              "scales are u8, and nv_fp, whose scales are e4m3",
                              scale->name, tensor::name(scale->dtype)));
    }
    if ((mx || nv) && layer.k % group != 0) {
      return fail(ErrorCode::kUnsupported, fmt::format("{}: {} inputs are not whole groups of {}",
                                                       layer.module, layer.k, group));
    }
    if (packed && mx && squeezed(scale->shape) == squeezed({layer.n, layer.k / 16})) {
      return fail(
          ErrorCode::kUnsupported,
          fmt::format("{} {} {}: one for 16 inputs: scales of nvfp4_v2 (e5m3), which are "
                      "not read",
                      scale->name, tensor::name(scale->dtype), tensor::to_string(scale->shape)));
    }
    codes.element = packed ? tensor::Element::kE2M1 : element_of_fp8(weight.dtype);
    codes.codes = packed ? Codes::kNibblesK : Codes::kBytes;
    codes.code_types = packed ? std::vector{DType::kU8} : kFp8Types;
    if (!packed && !is_fp8(weight.dtype)) {
      return fail(ErrorCode::kCorrupt,
                  fmt::format("{}: expected a type of fp8 or a plain float, found {}", weight.name,
                              tensor::name(weight.dtype)));
    }
    codes.area = {1, group};
    if (!mx && !nv) {
      NIBBLE_ASSIGN(codes.area, area_of(layer, *scale, block_, "weight_block_size"));
    }
    codes.activation = activation_for(params, mx, nv);
    if (nv) {
      codes.scale2 = "weight_global_scale";
      codes.input_scale = "input_global_scale";
      codes.scale2_divides = codes.input_scale_divides = true;
      codes.input_scale_unused = "the config leaves the inputs alone";
    }
    return scaled_codes_method(layer, tensors, std::move(codes));
  }

  tensor::ActivationFormat activation_for(const Params& params, bool mx, bool nv) const {
    using Activation = tensor::ActivationFormat;
    Activation out;
    if (params.act_bits >= 16) return out;
    out.type = params.act_bits == 4 ? Activation::Type::kE2M1 : Activation::Type::kE4M3;
    if (mx) {
      out.granularity = Activation::Granularity::kGroup;
      out.group = 32;
      out.scale_rule = ceil_ ? Activation::ScaleRule::kE8M0Ceil : Activation::ScaleRule::kE8M0Floor;
    } else if (nv && params.act_bits == 4) {
      out.granularity = Activation::Granularity::kGroup;
      out.group = 16;
      out.scale_rule = Activation::ScaleRule::kE4M3;
    } else if (static_) {
      out.granularity = Activation::Granularity::kTensor;
      out.is_static = true;
    } else if (block_.k > 0) {
      out.granularity = Activation::Granularity::kGroup;
      out.group = block_.k;
    }
    return out;
  }

  Result<void> read_packing(const base::Json& dictionary) {
    NIBBLE_ASSIGN(std::string label, dictionary.get_string_or("packing_format", ""));
    const char* key = "packing_format";
    if (label.empty()) {
      NIBBLE_ASSIGN(label, dictionary.get_string_or("backend", "auto"));
      key = "backend";
    }
    GptqLayout& ints = general_.ints;
    const bool own = contains(label, "auto_round") || contains(label, "autoround");
    const bool less_one = contains(label, "gptq") && !contains(label, "gptqmodel");
    ints.v2 = own && !less_one;
    ints.any_version = true;
    ints.version = fmt::format("{} is {}", key, label);
    if (contains(label, "fake")) {
      notes.push_back(
          fmt::format("{}: {} is {}: the weights are stored as floats, already rounded; "
                      "activations are left alone",
                      dictionary.where(), key, label));
    }
    return {};
  }

  // `p` holds what the key's absence means.
  static Result<Params> read_params(const base::Json& from, Params p) {
    NIBBLE_ASSIGN(p.ints.bits, int_key_or(from, "bits", p.ints.bits));
    const base::Json* group = from.find_set("group_size");
    if (group != nullptr && !group->is_array()) {  // FP8's blocks are a list
      NIBBLE_ASSIGN(const int64_t size, int_key(from, "group_size"));
      if (size != 0) {  // 0 is per tensor, of FP8
        NIBBLE_ASSIGN(p.ints.group, group_size_key(from, "group_size"));
      }
    }
    NIBBLE_ASSIGN(p.ints.sym, from.get_bool_or("sym", p.ints.sym));
    NIBBLE_ASSIGN(p.act_bits, int_key_or(from, "act_bits", p.act_bits));
    return p;
  }

  // {"module or regular expression": {"bits": ...}}. A name that is no expression is an exact name
  // and comes first.
  Result<void> read_extra(const base::Json& dictionary) {
    const base::Json* extra = dictionary.find_set("extra_config");
    if (extra == nullptr) return {};
    const std::string where = fmt::format("{}: extra_config", dictionary.where());
    if (!extra->is_object()) {
      return fail(ErrorCode::kCorrupt,
                  fmt::format("{}: expected an object, found {}", where, extra->describe()));
    }
    std::vector<std::string> rules;
    for (const bool exact : {true, false}) {
      for (const auto& [key, value] : extra->as_object()) {
        if ((key.find_first_of("*+?[](){}|^$\\") == std::string::npos) != exact) continue;
        if (!value.is_object()) {
          return fail(ErrorCode::kCorrupt, fmt::format("{}: {}: expected an object, found {}",
                                                       where, key, value.describe()));
        }
        NIBBLE_ASSIGN(Params params, read_params(value, general_));
        overrides_.push_back(std::move(params));
        rules.push_back(exact ? key : fmt::format("re:.*(?:{})", key));
      }
    }
    NIBBLE_ASSIGN(extra_, NameMatcher::compile(std::move(rules), where, Says::kQuantized));
    for (size_t i = 0; i < overrides_.size(); ++i) {
      if (overrides_[i].ints.bits >= 16) extra_.set_says(i, Says::kLeftAlone);
    }
    return {};
  }

  Result<void> read_activations(const base::Json& dictionary) {
    NIBBLE_ASSIGN(const bool dynamic, dictionary.get_bool_or("act_dynamic", true));
    static_ = !dynamic;
    NIBBLE_ASSIGN(const std::string kind, dictionary.get_string_or("act_data_type", ""));
    ceil_ = contains(kind, "rceil");
    const base::Json* group = dictionary.find_set("group_size");
    const bool listed = group != nullptr && group->is_array();
    NIBBLE_ASSIGN(block_, block_key(dictionary, listed ? "group_size" : "weight_block_size"));
    return {};
  }

  Params general_;
  NameMatcher extra_;
  std::vector<Params> overrides_;  // of each rule of extra_
  Area block_;
  bool static_ = false, ceil_ = false;  // activations: per tensor; powers of two rounded up
};

bool claims(const CheckpointFacts& facts) { return !facts.gguf && facts.method == "auto-round"; }

Result<std::unique_ptr<QuantizationConfig>> parse(const CheckpointFacts& facts) {
  return parse_dictionary<AutoRoundConfig>(
      facts, "auto-round needs a quantization_config that says bits and group_size");
}

constexpr std::string_view kAliases[] = {"intel/auto-round", "autoround", "inc"};

}  // namespace

extern const Scheme auto_round_scheme;
const Scheme auto_round_scheme = {"auto-round", kAliases, claims, parse};

}  // namespace nibble::quant
