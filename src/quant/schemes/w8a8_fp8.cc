// w8a8_fp8 (`quant_method: "w8a8_fp8"`): FP8 weights with a scale per output.
//
//   <module>.weight        (N, K)  e4m3
//   <module>.weight_scale  (N, 1)  f32 | bf16 | f16 | e8m0     or () for the whole tensor
//   <module>.input_scale   ()      only where the activations are static
//
//   w[n, k] = weight[n, k] * weight_scale[n]
//
// Activations are e4m3 per token, or per tensor where input scales are stored: the format's configs
// say nothing of it that could be trusted.
#include "quant/scaled_codes.h"
#include "quant/scheme.h"
#include "quant/stored.h"

namespace nibble::quant {
namespace {

bool claims(const CheckpointFacts& facts) { return !facts.gguf && facts.method == "w8a8_fp8"; }

Result<std::unique_ptr<QuantizationConfig>> parse(const CheckpointFacts& facts) {
  auto config = std::make_unique<ScaledCodesConfig>(
      ScaledLinears{.scheme = "w8a8_fp8", .code_types = kFp8Types});
  NIBBLE_TRY(config->read_dynamic(facts, tensor::ActivationFormat::Type::kE4M3));
  return std::unique_ptr<QuantizationConfig>(std::move(config));
}

}  // namespace

extern const Scheme w8a8_fp8_scheme;
const Scheme w8a8_fp8_scheme = {"w8a8_fp8", {}, claims, parse};

}  // namespace nibble::quant
