// AMD Quark, as its export_safetensors writes folders.
//
//   fp8    <module>.weight (N, K) e4m3 | e5m2, weight_scale () | (N), or weight_scale_inv in blocks
//   mxfp4  <module>.weight (N, K/2) u8, weight_scale (N, K/32) u8: e8m0
//   mxfp6  <module>.weight (N, 3K/4) u8, weight_scale (N, K/32) u8, or (N, K/G) floats
//   mx     the same with fp4 or fp6 elements, but weight_scale s8 exponents that are called u8, and
//          the 6 bits of four codes split: their upper 2 in one byte, their lower 4 in two
//   nvfp4  <module>.weight (N, K/2) u8, weight_scale (N, K/16) e4m3, weight_scale_2 ()
//   ints   <module>.weight, weight_scale, weight_zero_point: quark_ints.h
//
// Which of them a layer has, the type and shape of `weight` tell; only e2m3 from e3m2 the dtype in
// the configuration. What happens to a layer's input is a matter of the configuration alone:
// `layer_quant_config` by name, `layer_type_quant_config`, then `global_quant_config`, each
// {"weight": {...}, "input_tensors": {...}}.
#include <fmt/format.h>

#include "quant/activations.h"
#include "quant/scaled_codes.h"
#include "quant/scheme.h"
#include "quant/schemes/quark_config.h"
#include "quant/schemes/quark_ints.h"
#include "quant/stored.h"
#include "quant/stored_floats.h"

namespace nibble::quant {
namespace {

using tensor::DType;
using tensor::TensorInfo;

class QuarkConfig : public QuantizationConfig {
 public:
  std::string_view scheme() const override { return "quark"; }
  std::vector<const NameMatcher*> matchers() const override {
    return {&config_.layers.matcher(), &config_.excluded};
  }

  Result<std::unique_ptr<LinearMethod>> linear_method(const LinearLayer& layer,
                                                      const TensorLookup& tensors) const override {
    NIBBLE_ASSIGN(const quark::LayerConfig* named, config_.layers.find(layer.module));
    const quark::LayerConfig& config = named != nullptr ? *named : config_.general;
    const TensorInfo* weight = find_tensor(tensors, layer.module, "weight");
    // What is stored outranks the lists. (The shared method also reports a missing weight.)
    if (weight == nullptr || tensor::is_plain_float(weight->dtype)) {
      return unquantized_method(layer, tensors);
    }
    const bool cached = config_.quantizes_cache && feeds_attention(layer.module);
    if (config.quantizes_outputs && !cached) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("{}: its output_tensors are given; what a layer gives out is not "
                              "quantized here",
                              layer.module));
    }
    NIBBLE_ASSIGN(const ScaleBeside scale, scale_beside(layer, tensors, *weight));
    if (weight->dtype == DType::kS32 || weight->dtype == DType::kS8) {
      return quark_ints_method(layer, tensors,
                               {.reordered = config_.pack_reordered,
                                .symmetric = config.symmetric,
                                .is_signed = config.is_signed},
                               config.activation);
    }
    ScaledCodes codes;
    codes.scheme = scheme();
    codes.scale = scale.suffix;
    codes.activation = config.activation;
    NIBBLE_ASSIGN(const FloatScales scales,
                  read_stored_floats(layer, *weight, *scale.info,
                                     {config.block, "block_size", config.six_bits()}, codes));
    // Nothing else says what four bits in bytes are.
    if (codes.codes == Codes::kNibblesK && !config.dtype.empty() && config.dtype != "fp4") {
      return fail(ErrorCode::kCorrupt,
                  fmt::format("{} {} {} has 4 bits for each input, but its dtype is \"{}\"; of "
                              "such bytes fp4 is read",
                              weight->name, tensor::name(weight->dtype),
                              tensor::to_string(weight->shape), config.dtype));
    }
    if (config.mx) NIBBLE_TRY(as_mx(*scale.info, scales, codes));
    if (find_tensor(tensors, layer.module, "weight_scale_2") != nullptr) {
      codes.scale2 = "weight_scale_2";
    }
    if (codes.activation.scale_rule == ScaleRule::kE4M3) {
      codes.input_scale = "input_scale_2";
    }
    return scaled_codes_method(layer, tensors, std::move(codes));
  }

  Result<void> read(const base::Json& dictionary) {
    NIBBLE_ASSIGN(config_, quark::read_config(dictionary));
    warnings = config_.warnings;
    return {};
  }

 private:
  // The outputs of these are what a KV cache holds, or the queries beside it.
  static bool feeds_attention(std::string_view module) {
    for (const char* name : {"q_proj", "k_proj", "v_proj", "qkv_proj", "query_key_value"}) {
      if (module.substr(module.rfind('.') + 1) == name) return true;
    }
    return false;
  }

  // Codes and scales of dtype "mx" are stored otherwise than those of the single types.
  static Result<void> as_mx(const TensorInfo& scale, FloatScales scales, ScaledCodes& codes) {
    if (scales != FloatScales::kPowersOfTwo || codes.codes == Codes::kBytes) {
      return fail(
          ErrorCode::kUnsupported,
          fmt::format("{} is {}, but the dtype is mx, of which fp4 and fp6 with scales of u8 "
                      "are read",
                      scale.name, tensor::name(scale.dtype)));
    }
    codes.signed_exponents = scale.dtype == DType::kU8;  // a type of its own says itself
    if (codes.codes == Codes::kE2M3) codes.codes = Codes::kSplitE2M3;
    if (codes.codes == Codes::kE3M2) codes.codes = Codes::kSplitE3M2;
    return {};
  }

  quark::Config config_;
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
