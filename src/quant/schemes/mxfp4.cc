// MXFP4 (`quant_method: "mxfp4"`), as gpt-oss has it: e2m1 codes, and a power of two for each 32
// inputs (OCP Microscaling Formats 1.0). Activations stay floats.
//
//   <module>.weight_blocks  (N, K/32, 16)  u8   two codes a byte, the even input in the low half
//   <module>.weight_scales  (N, K/32)      u8   e8m0: 2^(byte - 127); 255 is no number
//
//         or blocks and scales; or weight (N, K/2) and weight_scale, as other writers name them
//
//   w[n, k] = e2m1 * 2^(scale[n, k / 32] - 127)
#include <fmt/format.h>

#include "quant/scaled_codes.h"
#include "quant/scheme.h"
#include "quant/stored.h"

namespace nibble::quant {
namespace {

using tensor::DType;
using tensor::TensorInfo;

struct Names {
  std::string_view codes, scales;
};
constexpr Names kNames[] = {{"weight_blocks", "weight_scales"},
                            {"blocks", "scales"},
                            {"weight", "weight_scale"},
                            {"weight", "weight_scale_inv"}};

class Mxfp4Config : public QuantizationConfig {
 public:
  std::string_view scheme() const override { return "mxfp4"; }
  std::vector<const NameMatcher*> matchers() const override { return {&not_converted_}; }

  Result<std::unique_ptr<LinearMethod>> linear_method(const LinearLayer& layer,
                                                      const TensorLookup& tensors) const override {
    const TensorInfo* alone = nullptr;  // codes without scales
    for (const Names& names : kNames) {
      const TensorInfo* codes = find_tensor(tensors, layer.module, names.codes);
      const TensorInfo* scales = find_tensor(tensors, layer.module, names.scales);
      // What is stored outranks the list.
      if (codes == nullptr || tensor::is_plain_float(codes->dtype)) continue;
      if (scales != nullptr) return method(layer, tensors, names, *codes);
      if (alone == nullptr) alone = codes;
    }
    if (alone == nullptr) return unquantized_method(layer, tensors);
    return fail(
        ErrorCode::kNotFound,
        fmt::format("{} is {}, but has no scale: neither weight_scales, scales, weight_scale "
                    "nor weight_scale_inv is stored",
                    alone->name, tensor::name(alone->dtype)));
  }

  Result<void> read(const base::Json& dictionary) {
    check_keys(dictionary, "quant_method modules_to_not_convert ignored_layers",
               "dequantize use_kernels", warnings);
    NIBBLE_ASSIGN(
        not_converted_,
        names_list(dictionary, {"modules_to_not_convert", "ignored_layers"}, Says::kLeftAlone));
    return {};
  }

 private:
  static Result<std::unique_ptr<LinearMethod>> method(const LinearLayer& layer,
                                                      const TensorLookup& tensors,
                                                      const Names& names, const TensorInfo& info) {
    if (layer.k % 32 != 0) {
      return fail(ErrorCode::kUnsupported, fmt::format("{}: {} inputs do not fill whole groups of "
                                                       "32",
                                                       layer.module, layer.k));
    }
    ScaledCodes codes{.scheme = "mxfp4",
                      .element = tensor::Element::kE2M1,
                      .codes = info.shape.size() > 2 ? Codes::kBlocks : Codes::kNibblesK,
                      .code_types = {DType::kU8},
                      .weight = std::string(names.codes),
                      .scale = std::string(names.scales),
                      .area = {1, 32}};
    codes.input_scale_unused = "the activations are not quantized";
    return scaled_codes_method(layer, tensors, std::move(codes));
  }

  NameMatcher not_converted_;
};

bool claims(const CheckpointFacts& facts) { return !facts.gguf && facts.method == "mxfp4"; }

Result<std::unique_ptr<QuantizationConfig>> parse(const CheckpointFacts& facts) {
  return parse_dictionary<Mxfp4Config>(facts);
}

constexpr std::string_view kAliases[] = {"gpt_oss_mxfp4"};

}  // namespace

extern const Scheme mxfp4_scheme;
const Scheme mxfp4_scheme = {"mxfp4", kAliases, claims, parse};

}  // namespace nibble::quant
