// The quantization dictionary of auto-round, read and checked, before any layer is asked.
//
//   {"bits": 4, "group_size": 128, "sym": true, "packing_format": "auto_round:auto_gptq",
//    "extra_config": {MODULE OR EXPRESSION: {"bits": 8, ...}},
//    "block_name_to_quantize": "model.layers", "modules_to_not_convert": [...],
//    "act_bits": 16, "act_dynamic": true, "act_data_type": ..., "weight_block_size": [128, 128]}
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "nibble/result.h"
#include "quant/gptq_layout.h"
#include "quant/layer_rules.h"
#include "quant/scaled_codes.h"

namespace nibble::quant::auto_round {

// What the dictionary, or an entry of extra_config, says of a layer.
struct Params {
  GptqLayout ints;
  std::string data_type;  // "" where nothing says it
  int64_t act_bits = 16;
  std::string act_data_type;
  std::optional<int64_t> act_group;  // inputs that share a scale; 0 all of a token, -1 all tokens
  bool act_static = false;           // one stored scale
};

struct Config {
  Params general;
  LayerRules<Params> extra;  // single layers, which it names also outside the lists below
  NameMatcher blocks;        // only what is below these is quantized; empty: everything is
  NameMatcher not_converted;
  Area block;  // of fp8 codes
  std::vector<std::string> notes, warnings;
};

Result<Config> read_config(const base::Json& dictionary);

}  // namespace nibble::quant::auto_round
