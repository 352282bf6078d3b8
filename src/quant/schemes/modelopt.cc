// NVIDIA ModelOpt (`hf_quant_config.json`, or `quant_method: "modelopt"`), and W4AFP8, which
// borrows its label.
//
//   quant_algo                  codes              activations
//   FP8                         e4m3 per tensor    e4m3, static
//   FP8_PER_CHANNEL_PER_TOKEN   e4m3 per output    e4m3 per token
//   FP8_PB_WO                   e4m3 128x128       float
//   W4A16_AWQ, W4A8_AWQ         int4 in groups     float; e4m3, static
//   W4A16_NVFP4, NVFP4          e2m1 in groups     float; e2m1 in groups
//   W4A8_NVFP4_FP8              e2m1 in groups     e4m3, static
//   MXFP8, MXFP4                groups of 32       likewise
//   W8A16, W8A8_SQ_PER_CHANNEL  int8 per output    float; int8, static
//   MIXED_PRECISION             one of these for each layer of quantized_layers
//
// quant/modelopt.cc draws what each stores. Common to all:
//
//   <module>.input_scale      ()   f32   static activations, or the second level of e2m1 ones
//   <module>.pre_quant_scale  (K)        multiplies the input (AWQ, SmoothQuant)
//   <module>.weight_scale_2   ()   f32   multiplies NVFP4's scales. Of W4A8_AWQ it belongs to the
//                                        hardware's second step from int4 to e4m3: not read
//
// W4AFP8 folders say MIXED_PRECISION and name no layers, or `quant_method: "w4afp8"`: the tensors
// alone say what each layer is.
#include "quant/modelopt.h"

#include <fmt/format.h>

#include "quant/scaled_codes.h"
#include "quant/scheme.h"

namespace nibble::quant {
namespace {

constexpr std::string_view kMixed = "MIXED_PRECISION";

class ModelOptConfig : public QuantizationConfig {
 public:
  std::string_view scheme() const override { return "modelopt"; }
  std::vector<const NameMatcher*> matchers() const override { return {&excluded_, &listed_}; }

  Result<std::unique_ptr<LinearMethod>> linear_method(const LinearLayer& layer,
                                                      const TensorLookup& tensors) const override {
    if (settings_.algo.name != kMixed) {
      return modelopt_method("modelopt", layer, tensors, settings_.algo, settings_.where);
    }
    NIBBLE_ASSIGN(const std::optional<size_t> entry, listed_.match(layer.module));
    return modelopt_method(
        "modelopt", layer, tensors, entry ? settings_.layers[*entry].second : ModelOptAlgo{},
        listed_.where(), listed_.empty() ? ModelOptInputs::kNamed : ModelOptInputs::kShown);
  }

  Result<void> read(const CheckpointFacts& facts) {
    settings_.where = "the checkpoint";
    if (facts.quantization != nullptr) {
      NIBBLE_ASSIGN(settings_, read_modelopt(*facts.quantization, warnings));
      NIBBLE_TRY(compare_with_sidecar(facts));
    }
    const bool unnamed = settings_.algo.name.empty();
    if (unnamed || (settings_.algo.name == kMixed && settings_.layers.empty())) {
      notes.push_back(fmt::format("{} names no {}: every layer is read as its tensors are stored",
                                  settings_.where, unnamed ? "algorithm" : "quantized layers"));
    }
    if (unnamed) settings_.algo.name = kMixed;
    NIBBLE_ASSIGN(excluded_,
                  NameMatcher::compile(settings_.exclude, settings_.where + ": excluded modules",
                                       Says::kLeftAlone));
    std::vector<std::string> names;
    for (const auto& [name, algo] : settings_.layers) names.push_back(name);
    NIBBLE_ASSIGN(listed_,
                  NameMatcher::compile(std::move(names), settings_.where + ": quantized_layers",
                                       Says::kOnlyThese));
    for (size_t i = 0; i < settings_.layers.size(); ++i) {
      if (settings_.layers[i].second.name.empty()) listed_.set_says(i, Says::kLeftAlone);
    }
    return {};
  }

 private:
  // The nested spelling in hf_quant_config.json and the flat one in config.json: either is enough,
  // both must agree. What only one of them says counts.
  Result<void> compare_with_sidecar(const CheckpointFacts& facts) {
    if (facts.hf_quant_config == nullptr || facts.hf_quant_config == facts.quantization) return {};
    NIBBLE_ASSIGN(ModelOptSettings other, read_modelopt(*facts.hf_quant_config, warnings));
    if (std::string text = difference(settings_, other); !text.empty()) {
      return fail(ErrorCode::kCorrupt, std::move(text));
    }
    if (settings_.algo.name.empty()) settings_.algo.name = other.algo.name;
    if (settings_.algo.group == 0) settings_.algo.group = other.algo.group;
    if (settings_.exclude.empty()) settings_.exclude = std::move(other.exclude);
    if (settings_.layers.empty()) settings_.layers = std::move(other.layers);
    return {};
  }

  ModelOptSettings settings_;
  NameMatcher excluded_, listed_;
};

bool claims(const CheckpointFacts& facts) { return !facts.gguf && facts.method == "modelopt"; }

Result<std::unique_ptr<QuantizationConfig>> parse(const CheckpointFacts& facts) {
  auto config = std::make_unique<ModelOptConfig>();
  NIBBLE_TRY(config->read(facts));
  return std::unique_ptr<QuantizationConfig>(std::move(config));
}

constexpr std::string_view kAliases[] = {"modelopt_fp8",   "modelopt_fp4",   "modelopt_nvfp4",
                                         "modelopt_mxfp8", "modelopt_mixed", "w4afp8"};

}  // namespace

extern const Scheme modelopt_scheme;
const Scheme modelopt_scheme = {"modelopt", kAliases, claims, parse};

}  // namespace nibble::quant
