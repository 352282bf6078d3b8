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

#include "quant/activations.h"
#include "quant/awq_layout.h"
#include "quant/gptq_layout.h"
#include "quant/scaled_codes.h"
#include "quant/scheme.h"
#include "quant/schemes/auto_round_config.h"
#include "quant/stored.h"
#include "quant/stored_floats.h"

namespace nibble::quant {
namespace {

using tensor::DType;
using tensor::TensorInfo;

using auto_round::Params;

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

class AutoRoundConfig : public QuantizationConfig {
 public:
  std::string_view scheme() const override { return "auto-round"; }
  std::vector<const NameMatcher*> matchers() const override {
    return {&config_.extra.matcher(), &config_.not_converted, &config_.blocks};
  }

  Result<std::unique_ptr<LinearMethod>> linear_method(const LinearLayer& layer,
                                                      const TensorLookup& tensors) const override {
    NIBBLE_ASSIGN(const Params* named, config_.extra.find(layer.module));
    const Params& params = named != nullptr ? *named : config_.general;
    const TensorInfo* qweight = find_tensor(tensors, layer.module, "qweight");
    const TensorInfo* weight = find_tensor(tensors, layer.module, "weight");
    if (find_tensor(tensors, layer.module, "weight_packed") != nullptr) {
      return float_method(layer, tensors, "weight_packed", params);
    }
    if (is_left_plain(layer, tensors, /*listed_so=*/false)) {
      const bool codes = weight != nullptr && !tensor::is_plain_float(weight->dtype);
      return codes ? float_method(layer, tensors, "weight", params)
                   : unquantized_method(layer, tensors);
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

  // extra_config speaks of single layers, also of those outside the blocks.
  Result<Listed> listed(const LinearLayer& layer) const override {
    NIBBLE_ASSIGN(Listed single, listed_by(config_.extra.matcher(), layer));
    if (single.says != Says::kNothing) return single;
    return QuantizationConfig::listed(layer);
  }

  Result<void> read(const base::Json& dictionary) {
    NIBBLE_ASSIGN(config_, auto_round::read_config(dictionary));
    notes = config_.notes;
    warnings = config_.warnings;
    return {};
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
    NIBBLE_ASSIGN(const ScaleBeside beside, scale_beside(layer, tensors, weight));
    codes.scale = beside.suffix;
    const TensorInfo* scale = beside.info;
    if (scale->dtype == DType::kU8 && layer.k > 16 &&
        squeezed(scale->shape) == squeezed({layer.n, layer.k / 16})) {
      return fail(
          ErrorCode::kUnsupported,
          fmt::format("{} {} {}: one for 16 inputs: scales of nvfp4_v2 (e5m3), which are "
                      "not read",
                      scale->name, tensor::name(scale->dtype), tensor::to_string(scale->shape)));
    }
    NIBBLE_ASSIGN(const FloatScales scales,
                  read_stored_floats(layer, weight, *scale,
                                     {config_.block, "weight_block_size", "not of 6 bits"}, codes));
    if (codes.codes != Codes::kBytes && scales == FloatScales::kPlain) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("{} is {}: of the packed floats of auto-round mx_fp is read, whose "
                              "scales are u8, and nv_fp, whose scales are e4m3",
                              scale->name, tensor::name(scale->dtype)));
    }
    // mx_int is stored exactly as mx_fp is.
    if (!params.data_type.empty() && !contains(params.data_type, "fp")) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("{} is {} {}: so floats are stored (fp, mx_fp, nv_fp), but data_type "
                              "is \"{}\", which is not read",
                              weight.name, tensor::name(weight.dtype),
                              tensor::to_string(weight.shape), params.data_type));
    }
    NIBBLE_ASSIGN(codes.activation, activation_for(layer, params, scales));
    if (scales == FloatScales::kE4M3) {
      codes.scale2 = "weight_global_scale";
      codes.input_scale = "input_global_scale";
      codes.scale2_divides = codes.input_scale_divides = true;
      codes.input_scale_unused = "the config leaves the inputs alone";
    }
    return scaled_codes_method(layer, tensors, std::move(codes));
  }

  // What the layer's inputs become; `scales` are those of its weights.
  Result<tensor::ActivationFormat> activation_for(const LinearLayer& layer, const Params& params,
                                                  FloatScales scales) const {
    if (params.act_bits >= 16) return tensor::ActivationFormat{};
    const std::string& kind = params.act_data_type;
    const bool is_float = kind.empty() || contains(kind, "fp") || contains(kind, "float");
    if (!is_float || contains(kind, "e5m2") || (params.act_bits != 4 && params.act_bits != 8)) {
      return fail(
          ErrorCode::kUnsupported,
          fmt::format("{}: act_bits is {} and act_data_type \"{}\"; beside weights that are "
                      "floats inputs of e4m3 (8 bits) and e2m1 (4 bits) are read",
                      layer.module, params.act_bits, kind));
    }
    const ActivationType type =
        params.act_bits == 4 ? ActivationType::kE2M1 : ActivationType::kE4M3;
    const bool mx = scales == FloatScales::kPowersOfTwo;
    if (mx || (scales == FloatScales::kE4M3 && params.act_bits == 4)) {
      const int64_t group = mx ? 32 : 16;
      if (params.act_group && *params.act_group != group) {
        return fail(ErrorCode::kUnsupported,
                    fmt::format("{}: act_group_size is not {}, which goes with scales like those "
                                "of its weights",
                                layer.module, group));
      }
      const bool up = contains(kind, "rceil");
      return per_group(type, group,
                       !mx  ? ScaleRule::kE4M3
                       : up ? ScaleRule::kE8M0Ceil
                            : ScaleRule::kE8M0Floor);
    }
    if (params.act_static) return stored_scale(type);
    const int64_t group = params.act_group.value_or(config_.block.k);
    if (group >= 0) return group > 0 ? per_group(type, group) : per_token(type);
    tensor::ActivationFormat out = per_token(type);
    out.granularity = tensor::ActivationFormat::Granularity::kTensor;
    return out;
  }

  auto_round::Config config_;
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
