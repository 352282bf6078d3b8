// blockwise_int8 (`quant_method: "blockwise_int8"`): int8 weights with a scale per block, the
// layout of DeepSeek's FP8 with other codes.
//
//   <module>.weight            (N, K)                        s8
//   <module>.weight_scale_inv  (ceil(N/bn), ceil(K/bk))      f32 | bf16 | f16     or weight_scale
//
//   w[n, k] = weight[n, k] * weight_scale_inv[n / bn, k / bk]      it multiplies
//
// Activations are int8, symmetric, per token and bk inputs, to nearest.
#include <fmt/format.h>

#include "quant/keys.h"
#include "quant/scaled_codes.h"
#include "quant/scheme.h"
#include "quant/stored.h"

namespace nibble::quant {
namespace {

using Activation = tensor::ActivationFormat;

Result<void> read(const base::Json& dictionary, ScaledCodesConfig& config) {
  check_keys(dictionary,
             "quant_method activation_scheme weight_block_size ignored_layers "
             "modules_to_not_convert",
             "packed_modules_mapping", config.warnings);
  NIBBLE_TRY(choice_key(dictionary, "activation_scheme", {"dynamic"}));
  NIBBLE_ASSIGN(config.linears.block, block_key(dictionary, "weight_block_size"));
  if (config.linears.block.n == 0) {
    return fail(ErrorCode::kNotFound,
                fmt::format("{}: weight_block_size is missing; blockwise_int8 needs it",
                            dictionary.where()));
  }
  Activation& activation = config.linears.activation;
  activation.type = Activation::Type::kS8;
  activation.granularity = Activation::Granularity::kGroup;
  activation.group = config.linears.block.k;
  return config.read_ignored(dictionary, {"ignored_layers", "modules_to_not_convert"});
}

bool claims(const CheckpointFacts& facts) {
  return !facts.gguf && facts.method == "blockwise_int8";
}

Result<std::unique_ptr<QuantizationConfig>> parse(const CheckpointFacts& facts) {
  if (facts.quantization == nullptr) {
    return fail(ErrorCode::kNotFound,
                "blockwise_int8 needs a quantization_config that says weight_block_size");
  }
  auto config = std::make_unique<ScaledCodesConfig>(
      ScaledLinears{.scheme = "blockwise_int8", .code_types = {tensor::DType::kS8}});
  NIBBLE_TRY(read(*facts.quantization, *config));
  return std::unique_ptr<QuantizationConfig>(std::move(config));
}

}  // namespace

extern const Scheme blockwise_int8_scheme;
const Scheme blockwise_int8_scheme = {"blockwise_int8", {}, claims, parse};

}  // namespace nibble::quant
