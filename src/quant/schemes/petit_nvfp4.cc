// petit_nvfp4: ModelOpt's NVFP4 tensors under another engine's name, which runs them with float
// activations. Its config.json holds the settings in the nested spelling:
//
//   "quantization_config": {"quant_method": "petit_nvfp4",
//                           "quantization": {"quant_algo": "NVFP4", "group_size": 16, ...}}
//
//   <module>.weight          (N, K/2)   u8     two e2m1 codes a byte, the even input in the low
//   half <module>.weight_scale    (N, K/16)  e4m3 <module>.weight_scale_2  ()         f32
//   <module>.input_scale     ()         f32    not read: the activations are not quantized
//
//   w[n, k] = e2m1 * (weight_scale[n, k / 16] * weight_scale_2)
#include <fmt/format.h>

#include "quant/modelopt.h"
#include "quant/scaled_codes.h"
#include "quant/scheme.h"

namespace nibble::quant {
namespace {

class PetitConfig : public QuantizationConfig {
 public:
  std::string_view scheme() const override { return "petit_nvfp4"; }
  std::vector<const NameMatcher*> matchers() const override { return {&excluded_}; }

  Result<std::unique_ptr<LinearMethod>> linear_method(const LinearLayer& layer,
                                                      const TensorLookup& tensors) const override {
    return modelopt_method("petit_nvfp4", layer, tensors, settings_.algo, settings_.where,
                           ModelOptInputs::kLeftAlone);
  }

  Result<void> read(const CheckpointFacts& facts) {
    settings_.algo = {"NVFP4", 0};
    settings_.where = "--quantization petit_nvfp4";
    if (facts.quantization != nullptr) {
      NIBBLE_ASSIGN(settings_, read_modelopt(*facts.quantization, warnings));
      if (facts.hf_quant_config != nullptr && facts.hf_quant_config != facts.quantization) {
        NIBBLE_ASSIGN(const auto other, read_modelopt(*facts.hf_quant_config, warnings));
        if (std::string text = difference(settings_, other); !text.empty()) {
          return fail(ErrorCode::kCorrupt, std::move(text));
        }
      }
      if (settings_.algo.name != "NVFP4") {
        return fail(ErrorCode::kUnsupported,
                    fmt::format("{}: quant_algo is \"{}\", but quant_method petit_nvfp4 is for "
                                "NVFP4",
                                settings_.where, settings_.algo.name));
      }
    }
    NIBBLE_ASSIGN(excluded_,
                  NameMatcher::compile(settings_.exclude, settings_.where + ": excluded modules",
                                       Says::kLeftAlone));
    return {};
  }

 private:
  ModelOptSettings settings_;
  NameMatcher excluded_;
};

bool claims(const CheckpointFacts& facts) { return !facts.gguf && facts.method == "petit_nvfp4"; }

Result<std::unique_ptr<QuantizationConfig>> parse(const CheckpointFacts& facts) {
  auto config = std::make_unique<PetitConfig>();
  NIBBLE_TRY(config->read(facts));
  return std::unique_ptr<QuantizationConfig>(std::move(config));
}

}  // namespace

extern const Scheme petit_nvfp4_scheme;
const Scheme petit_nvfp4_scheme = {"petit_nvfp4", {}, claims, parse};

}  // namespace nibble::quant
