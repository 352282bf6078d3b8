// The quantization dictionary of Quark, read and checked, before any layer is asked.
//
//   {"global_quant_config": LAYER, "layer_type_quant_config": {"Linear": LAYER},
//    "layer_quant_config": {"*mlp*": LAYER}, "exclude": ["lm_head"],
//    "export": {"pack_method": "reorder"}}
//
//   LAYER  = {"weight": TENSOR, "input_tensors": TENSOR}; two levels are a list of two TENSORs
//   TENSOR = {"dtype": "fp8_e4m3", "qscheme": "per_group", "group_size": 32, "is_dynamic": true,
//             "scale_format": "e8m0", "scale_calculation_mode": "even", "symmetric": true}
//
// The dtype "mx" is that of mx_element_dtype in groups with a power of two each; what it stores
// differs from the others (see ScaledCodes::signed_exponents, Codes::kSplitE2M3).
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "nibble/result.h"
#include "quant/layer_rules.h"
#include "quant/scaled_codes.h"

namespace nibble::quant::quark {

// What the configuration says of a kind of layer.
struct LayerConfig {
  tensor::ActivationFormat activation;
  bool quantizes_weights = false;
  bool symmetric = true;  // integer weights
  bool is_signed = true;  // int4 and uint4 are stored alike
  std::string dtype;      // of the weights; of dtype "mx" its elements
  bool mx = false;
  bool quantizes_outputs = false;
  Area block;

  // "e2m3" of "fp6_e2m3"; other types as they are.
  std::string six_bits() const { return dtype.starts_with("fp6_") ? dtype.substr(4) : dtype; }
};

struct Config {
  LayerConfig general;
  LayerRules<LayerConfig> layers;
  NameMatcher excluded;
  bool pack_reordered = true;
  bool quantizes_cache = false;
  std::vector<std::string> warnings;
};

Result<Config> read_config(const base::Json& dictionary);

}  // namespace nibble::quant::quark
