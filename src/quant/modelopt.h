// What NVIDIA ModelOpt's checkpoints say, in either of their two spellings, and how one of their
// layers is read. Shared by the schemes that read such folders: modelopt, petit_nvfp4.
//
//   nested, hf_quant_config.json       {"producer": {"name": "modelopt"}, "quantization":
//                                       {"quant_algo", "group_size", "kv_cache_quant_algo",
//                                        "exclude_modules", "quantized_layers"}}
//   flat, config.json                  {"quant_method": "modelopt", "quant_algo", "ignore",
//                                       "kv_cache_scheme", "config_groups", "quantized_layers"}
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "nibble/result.h"
#include "quant/method.h"

namespace nibble::quant {

// An algorithm by ModelOpt's name, upper case; "" where none is named. 0: no group size is given.
struct ModelOptAlgo {
  std::string name;
  int64_t group = 0;
  friend bool operator==(const ModelOptAlgo&, const ModelOptAlgo&) = default;
};

struct ModelOptSettings {
  std::string where;  // "hf_quant_config.json: quantization"
  ModelOptAlgo algo;
  std::string kv_cache;  // "FP8"; "" when the cache is left alone
  std::vector<std::string> exclude;
  std::vector<std::pair<std::string, ModelOptAlgo>> layers;  // quantized_layers, in order
};

// Reads either spelling, also the nested one inside config.json. Unknown keys become warnings.
// Errors name key and value: an algorithm that is not known or cannot be read, a list that is none.
Result<ModelOptSettings> read_modelopt(const base::Json& dictionary,
                                       std::vector<std::string>& warnings);

// "" or the first difference, with both values. What one of the two does not say is no difference.
std::string difference(const ModelOptSettings& a, const ModelOptSettings& b);

// What becomes of a layer's inputs.
enum class ModelOptInputs : uint8_t {
  kNamed,      // as its algorithm says; where none is named, as is likely for what is stored
  kShown,      // no algorithm is named: as what is stored shows, which must leave no choice
  kLeftAlone,  // floats, whatever the algorithm says
};

// The method for a layer. What is stored decides the kind of the weights (plain floats are
// unquantized); `algo`, if it has a name, must be of that kind. Errors name the layer, what is
// stored, what was said, and `where`.
Result<std::unique_ptr<LinearMethod>> modelopt_method(
    std::string_view scheme, const LinearLayer& layer, const TensorLookup& tensors,
    const ModelOptAlgo& algo, std::string_view where,
    ModelOptInputs inputs = ModelOptInputs::kNamed);

}  // namespace nibble::quant
