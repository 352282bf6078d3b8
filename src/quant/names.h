// The names that people type for schemes: values of --quantization, and of quant_method, as engines
// and tools of the field accept them. A name of a scheme's own is an alias in its file; here stand
// those that mean one of several schemes, those that say how weights are stored, and those of
// quantizations that are made while loading.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "nibble/result.h"
#include "quant/scheme.h"

namespace nibble::quant {

// Lower case, '_' as '-': `compressed_tensors` and `compressed-tensors` are one name.
std::string normalized(std::string_view name);

// The schemes that `name` may be asked over, as words, the one it means first; "" where it is a
// name of one scheme or of none.
std::string_view schemes_for(std::string_view name);

// Nothing, or that `name` means weights of other types than any that the checkpoint stores, with
// both: "means weights stored as e4m3, but none is: model.layers.0.mlp.up_proj.weight is s8".
std::optional<std::string> contradicted(const CheckpointFacts& facts, std::string_view name);

// Nothing, or why `name`, which quantizes while loading, is not done.
std::optional<std::string> why_not_made(std::string_view name);

}  // namespace nibble::quant
