// Checkpoints whose weights were rotated so that the inputs of their layers must be rotated as the
// model runs (QuaRot, SpinQuant). Most of it shows in no tensor, only in a key that any tool may
// add to its dialect: without the rotation every such layer would be wrong.
#pragma once

#include "base/json.h"
#include "nibble/result.h"

namespace nibble::quant {

// Error: a quantization dictionary asks for such rotations, by one of
//
//   rotation, rotation_config, hadamard_config, spinquant_config, ... with a value that says so
//   meta: {rotation}                                       GPTQModel
//   extra_config: {LAYER: the same}                        auto-round
//   algo_config: [{"name": "rotation" | "quarot", ...}]    Quark, where r1 (unless kept online) and
//                                                          r2 are in the weights, and r3 cancels in
//                                                          a cache of floats
//
// compressed-tensors' `transform_config` is none of them: its scheme reads it.
Result<void> check_rotations(const base::Json& dictionary);

}  // namespace nibble::quant
