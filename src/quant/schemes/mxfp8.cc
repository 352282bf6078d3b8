// MXFP8 (`quant_method: "mxfp8"`): e4m3 codes, and a power of two for each 32 inputs (OCP
// Microscaling Formats 1.0). Activations are held the same way, each group's power of two rounded
// up so that nothing saturates.
//
//   <module>.weight            (N, K)             e4m3
//   <module>.weight_scale_inv  (N, ceil(K/32))    u8 | e8m0     2^(byte - 127); it multiplies
//         or weight_scale
//
//   w[n, k] = weight[n, k] * 2^(weight_scale_inv[n, k / 32] - 127)
#include <fmt/format.h>

#include "quant/activations.h"
#include "quant/keys.h"
#include "quant/scaled_codes.h"
#include "quant/scheme.h"
#include "quant/stored.h"

namespace nibble::quant {
namespace {

constexpr Area kGroup = {1, 32};

ScaledLinears linears() {
  ScaledLinears out{.scheme = "mxfp8", .code_types = {tensor::DType::kE4M3}, .block = kGroup};
  out.block_key = "the format";
  out.activation = per_group(ActivationType::kE4M3, kGroup.k, ScaleRule::kE8M0Ceil);
  return out;
}

Result<void> read(const base::Json& dictionary, ScaledCodesConfig& config) {
  check_keys(dictionary,
             "quant_method activation_scheme weight_block_size group_size scale_fmt fmt "
             "ignored_layers modules_to_not_convert ignore exclude_modules",
             "packed_modules_mapping kv_cache_scheme kv_cache_quant_algo", config.warnings);
  NIBBLE_TRY(choice_key(dictionary, "activation_scheme", {"dynamic"}));
  NIBBLE_TRY(choice_key(dictionary, "scale_fmt", {"ue8m0"}));
  NIBBLE_ASSIGN(const Area block, block_key(dictionary, "weight_block_size"));
  NIBBLE_ASSIGN(const int64_t group, int_key_or(dictionary, "group_size", kGroup.k));
  if ((block.n != 0 && (block.n != kGroup.n || block.k != kGroup.k)) || group != kGroup.k) {
    return fail(
        ErrorCode::kUnsupported,
        fmt::format("{}: {}; MXFP8 has one scale for 32 inputs of an output, [1, 32]",
                    dictionary.where(),
                    block.n != 0 ? fmt::format("weight_block_size is [{}, {}]", block.n, block.k)
                                 : fmt::format("group_size is {}", group)));
  }
  return config.read_ignored(
      dictionary, {"ignored_layers", "modules_to_not_convert", "ignore", "exclude_modules"});
}

bool claims(const CheckpointFacts& facts) { return !facts.gguf && facts.method == "mxfp8"; }

Result<std::unique_ptr<QuantizationConfig>> parse(const CheckpointFacts& facts) {
  auto config = std::make_unique<ScaledCodesConfig>(linears());
  if (facts.quantization != nullptr) NIBBLE_TRY(read(*facts.quantization, *config));
  return std::unique_ptr<QuantizationConfig>(std::move(config));
}

}  // namespace

extern const Scheme mxfp8_scheme;
const Scheme mxfp8_scheme = {"mxfp8", {}, claims, parse};

}  // namespace nibble::quant
