// FP8 (`quant_method: "fp8"`): weights of one byte with a scale per tensor, output or block.
//
//   <module>.weight            (N, K)   e4m3 | e5m2 | their fnuz forms
//   <module>.weight_scale_inv  () | (N) | (N, 1) | (ceil(N/bn), ceil(K/bk))   f32 | bf16 | f16 |
//   e8m0
//         or weight_scale, or one per part (q, k, v) of a layer that is stored fused
//   <module>.input_scale       ()       static activations (transformers writes activation_scale)
//
//   w[n, k] = weight[n, k] * scale      also for the name weight_scale_inv: it multiplies
//
// Blocks are those of `weight_block_size`, (128, 128) as DeepSeek has them; the last one of a row
// or column is short where the size does not divide. (transformers 5 instead stretches the blocks.)
// Activations are e4m3: per tensor when static; else per token, per token and bk inputs with
// blocks.
//
// `--quantization fp8` over a folder that is not quantized makes it so while loading, linear layers
// but not the embedding and the head: one scale per output, max(absmax / 448, 1 / (448 * 512)), and
// code = e4m3(w / scale); activations per token. (Per output and not per tensor, so that the
// weights do not depend on which projections a runtime fuses.)
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/number.h"
#include "quant/activations.h"
#include "quant/keys.h"
#include "quant/scaled_codes.h"
#include "quant/scheme.h"
#include "quant/stored.h"

namespace nibble::quant {
namespace {

using tensor::DType;
using tensor::TensorInfo;
using tensor::TensorView;
using Activation = tensor::ActivationFormat;

// Plain floats in the checkpoint, e4m3 once loaded.
class OnlineFp8Method : public LinearMethod {
 public:
  OnlineFp8Method(const LinearLayer& layer, const TensorLookup& tensors) {
    // A scale needs the whole row: the inputs are not cut.
    specs_ = {
        wanted(Slot::kWeight, "weight", kFloats, {layer.n, layer.k}, {0}, {1, layer.k, layer.k})};
    add_bias(layer, tensors, specs_);
  }

  std::string_view scheme() const override { return "fp8"; }
  tensor::WeightFormat weight_format() const override {
    tensor::WeightFormat format;
    format.element = tensor::Element::kE4M3;
    format.scaled = true;
    return format;
  }
  Activation activation_format() const override { return per_token(ActivationType::kE4M3); }
  std::vector<WeightSpec> create_weights() const override { return specs_; }

  Result<tensor::QuantizedWeight> process_weights_after_loading(
      int64_t n, int64_t k, const RawWeights& raw) const override {
    NIBBLE_ASSIGN(const TensorView* weight, need(raw, Slot::kWeight, "weight", {n, k}));
    tensor::QuantizedWeight out = empty_weight(n, k);
    NIBBLE_ASSIGN(out.code_owner, tensor::Buffer::allocate(static_cast<size_t>(n * k)));
    const auto code = out.code_owner.as<uint8_t>();
    const uint64_t row_bytes = weight->bytes / static_cast<uint64_t>(n);
    for (int64_t row = 0; row < n; ++row) {
      const TensorView view{weight->dtype, {1, k}, weight->data + row * row_bytes, row_bytes};
      NIBBLE_ASSIGN(const std::vector<float> w,
                    read_floats(view, fmt::format("weight: output {}", row)));
      float most = 0;
      for (float v : w) most = std::max(most, std::fabs(v));
      const float scale = std::max(most / 448.0f, 1.0f / (448.0f * 512.0f));
      for (int64_t i = 0; i < k; ++i) {
        const float v = std::clamp(w[static_cast<size_t>(i)] / scale, -448.0f, 448.0f);
        code[static_cast<size_t>(row * k + i)] = base::e4m3_from_f32(v);
      }
      out.scale.push_back(scale);
    }
    out.code = {DType::kE4M3, {n, k}, out.code_owner.data(), out.code_owner.size()};
    return out;
  }

 private:
  std::vector<WeightSpec> specs_;
};

// modules_to_convert is known and not asked: the stored tensors say it.
constexpr std::string_view kKnown =
    "quant_method activation_scheme weight_block_size ignored_layers modules_to_not_convert "
    "scale_fmt fmt store_dtype expert_dtype modules_to_convert kv_cache_scheme";
constexpr std::string_view kHarmless =
    "dequantize kv_cache_quant_method packed_modules_mapping meta kv_cache_quant_targets "
    "kv_cache_quant_layers ignore_patterns export";

class Fp8Config : public ScaledCodesConfig {
 public:
  Fp8Config() : ScaledCodesConfig({.scheme = "fp8", .code_types = kFp8Types}) {}

  Result<std::unique_ptr<LinearMethod>> linear_method(const LinearLayer& layer,
                                                      const TensorLookup& tensors) const override {
    const TensorInfo* weight = find_tensor(tensors, layer.module, "weight");
    if (online_ && !layer.vocabulary && weight != nullptr) {
      return std::unique_ptr<LinearMethod>(std::make_unique<OnlineFp8Method>(layer, tensors));
    }
    return ScaledCodesConfig::linear_method(layer, tensors);
  }

  Result<void> read(const base::Json& dictionary, const TensorLookup& tensors) {
    check_keys(dictionary, kKnown, kHarmless, warnings);
    NIBBLE_TRY(dictionary.get_string("activation_scheme"));  // it has no default
    NIBBLE_ASSIGN(const std::string activation,
                  choice_key(dictionary, "activation_scheme", {"dynamic", "static"}));
    NIBBLE_TRY(choice_key(dictionary, "scale_fmt", {"float", "ue8m0"}));
    NIBBLE_TRY(choice_key(dictionary, "expert_dtype", {"fp8"}));
    NIBBLE_TRY(choice_key(dictionary, "store_dtype", {"fp8"}));
    NIBBLE_ASSIGN(linears.block, block_key(dictionary, "weight_block_size"));
    if (activation == "static" && linears.block.n != 0) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("{}: activation_scheme is static, but weight_block_size is given; "
                              "block weights have dynamic activations",
                              dictionary.where()));
    }
    set_activation(activation == "static");
    if (linears.block.n == 0) find_blocks(tensors);
    return read_ignored(dictionary, {"ignored_layers", "modules_to_not_convert"});
  }

  // Without a dictionary (--quantization fp8) the tensors say the rest.
  void infer(const TensorLookup& tensors) {
    online_ = std::none_of(tensors.all.begin(), tensors.all.end(), is_quantized_tensor);
    if (online_) {
      notes.push_back(
          "no tensor is quantized: linear layers become e4m3 with a scale per output while "
          "loading");
      return;
    }
    const bool is_static =
        std::any_of(tensors.all.begin(), tensors.all.end(),
                    [](const TensorInfo& info) { return info.name.ends_with(".input_scale"); });
    notes.push_back(fmt::format("no quantization_config: activations taken as {}",
                                is_static ? "static, for there are input scales" : "dynamic"));
    set_activation(is_static);
    find_blocks(tensors);
  }

 private:
  // Per tensor when static; else per token, per token and bk inputs with blocks.
  void set_activation(bool is_static) {
    linears.activation = linears.block.n != 0 ? per_group(ActivationType::kE4M3, linears.block.k)
                         : is_static          ? stored_scale(ActivationType::kE4M3)
                                              : per_token(ActivationType::kE4M3);
    linears.input_scale_unused = "activation_scheme is dynamic";
  }

  bool online_ = false;
};

bool claims(const CheckpointFacts& facts) { return !facts.gguf && facts.method == "fp8"; }

Result<std::unique_ptr<QuantizationConfig>> parse(const CheckpointFacts& facts) {
  auto config = std::make_unique<Fp8Config>();
  if (facts.quantization == nullptr) {
    config->infer(facts.tensors);
  } else {
    NIBBLE_TRY(config->read(*facts.quantization, facts.tensors));
  }
  return std::unique_ptr<QuantizationConfig>(std::move(config));
}

constexpr std::string_view kAliases[] = {"finegrained_fp8", "fp8_e4m3", "fp8_e5m2",
                                         "deepseek_v4_fp8"};
}  // namespace

extern const Scheme fp8_scheme;
const Scheme fp8_scheme = {"fp8", kAliases, claims, parse};

}  // namespace nibble::quant
