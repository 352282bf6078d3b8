// The ARGUMENTS of compressed-tensors' dictionaries (compressed_tensors_config.h draws them): how
// the weights or the inputs of a group are quantized.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "nibble/result.h"
#include "quant/schemes/compressed_tensors_config.h"

namespace nibble::quant::compressed {

// Those under a key of a group; nothing when absent or null. Unknown keys become warnings. Errors
// name the key and its value, or the two keys that contradict each other.
Result<std::optional<Arguments>> arguments_of(const base::Json& group, std::string_view key,
                                              std::vector<std::string>& warnings);

// What weights, and inputs beside these weights, cannot be. `from` is their dictionary.
Result<void> check_weights(const base::Json& from, const Arguments& weights);
Result<void> check_inputs(const base::Json& group, const Arguments& inputs, const base::Json& from,
                          const std::optional<Arguments>& weights);

}  // namespace nibble::quant::compressed
