// FBGEMM's FP8 (`quant_method: "fbgemm_fp8"`), as Meta published Llama 3.1 405B in it.
//
//   <module>.weight        (N, K)  e4m3
//   <module>.weight_scale  (N, 1)  f32
//
//   w[n, k] = weight[n, k] * weight_scale[n]
//
// Activations are e4m3 per token; a token's absmax counts no further than `activation_scale_ub`,
// and what lies beyond saturates.
#include <fmt/format.h>

#include <cmath>

#include "quant/keys.h"
#include "quant/scaled_codes.h"
#include "quant/scheme.h"
#include "quant/stored.h"

namespace nibble::quant {
namespace {

constexpr float kDefaultBound = 1200;  // transformers'

Result<void> read(const base::Json& dictionary, ScaledCodesConfig& config) {
  check_keys(dictionary, "quant_method activation_scale_ub modules_to_not_convert ignored_layers",
             "", config.warnings);
  if (dictionary.find_set("activation_scale_ub") == nullptr) {
    config.notes.push_back(fmt::format("{}: activation_scale_ub is not given: taken as {}",
                                       dictionary.where(), kDefaultBound));
  }
  NIBBLE_ASSIGN(const double bound,
                double_key_or(dictionary, "activation_scale_ub", kDefaultBound));
  const auto narrow = static_cast<float>(bound);
  if (!(narrow > 0) || std::isinf(narrow)) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}: activation_scale_ub: expected a positive number, found {}",
                            dictionary.where(), bound));
  }
  config.linears.activation.upper_bound = narrow;
  return config.read_ignored(dictionary, {"modules_to_not_convert", "ignored_layers"});
}

bool claims(const CheckpointFacts& facts) { return !facts.gguf && facts.method == "fbgemm_fp8"; }

Result<std::unique_ptr<QuantizationConfig>> parse(const CheckpointFacts& facts) {
  auto config = std::make_unique<ScaledCodesConfig>(
      ScaledLinears{.scheme = "fbgemm_fp8", .code_types = kFp8Types});
  config->linears.activation.type = tensor::ActivationFormat::Type::kE4M3;
  if (facts.quantization != nullptr) {
    NIBBLE_TRY(read(*facts.quantization, *config));
  } else {
    config->linears.activation.upper_bound = kDefaultBound;
    config->notes.push_back(
        fmt::format("no quantization_config: activation_scale_ub is taken as {}", kDefaultBound));
  }
  return std::unique_ptr<QuantizationConfig>(std::move(config));
}

}  // namespace

extern const Scheme fbgemm_fp8_scheme;
const Scheme fbgemm_fp8_scheme = {"fbgemm_fp8", {}, claims, parse};

}  // namespace nibble::quant
