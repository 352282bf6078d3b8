// The quantization dictionary of compressed-tensors, read and checked, before any layer is asked.
//
//   {"config_groups": {"group_0": {"targets": ["Linear"], "weights": ARGUMENTS,
//                                  "input_activations": ARGUMENTS | null, "format": ...}},
//    "ignore": ["lm_head"], "format": ..., "kv_cache_scheme": ..., "transform_config": ...,
//    "sparsity_config": ..., "version": "0.12.2"}
//
//   ARGUMENTS = {"num_bits": 4, "type": "int" | "float", "symmetric": true, "strategy": ...,
//                "group_size": 128, "block_structure": [128, 128], "dynamic": false | true |
//                "local", "actorder": null | "group" | "weight", "scale_dtype": ...}
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "nibble/result.h"
#include "quant/matcher.h"

namespace nibble::quant::compressed {

enum class Strategy : uint8_t { kTensor, kChannel, kGroup, kTensorGroup, kBlock, kToken, kHead };

// How one thing, the weights or the inputs, is quantized.
struct Arguments {
  std::string where;  // "config.json: quantization_config: config_groups: group_0: weights"
  int64_t bits = 8;
  bool is_float = false;
  bool symmetric = true;
  Strategy strategy = Strategy::kTensor;
  int64_t group = 0;  // along K; 0: all inputs
  int64_t block_n = 0;
  int64_t block_k = 0;
  bool dynamic = false;       // scales are found at run time
  bool local = false;         // those of the groups, below a stored one of the whole tensor
  bool act_order = false;     // actorder "group"
  bool power_of_two = false;  // scales are bytes, exponents of two
  bool names_scale = false;   // scale_dtype is given
};

struct Group {
  std::string name;  // "group_0"
  std::string where;
  std::optional<Arguments> weights;
  std::optional<Arguments> inputs;
  bool quantizes_outputs = false;
};

// x becomes x H / sqrt(size) before a layer uses it, H a Hadamard matrix in each block of `size`.
struct InputTransform {
  std::string name;
  int64_t size = 0;  // 0: all inputs
  NameMatcher targets;
  bool every_linear = false;
  NameMatcher ignored;
};

struct Config {
  std::vector<Group> groups;
  // The targets of all groups that quantize weights: names and regular expressions, each with the
  // index of its group, in the order in which the tool lets them win.
  NameMatcher targets;
  std::vector<size_t> group_of_target;
  std::vector<std::pair<std::string, size_t>> classes;  // "Linear"
  NameMatcher ignored;
  std::vector<InputTransform> transforms;
  // Since 0.18 packed codes may lie across two words; before, a word held 32 / bits whole codes.
  // Nothing: the dictionary has no version.
  std::optional<bool> dense_words;
  std::vector<std::string> notes;
  std::vector<std::string> warnings;
};

Result<Config> read_config(const base::Json& dictionary);

// Whether a target is the name of a class ("Linear", "LlamaAttention") and not of a module.
bool is_class_name(std::string_view target);

}  // namespace nibble::quant::compressed
