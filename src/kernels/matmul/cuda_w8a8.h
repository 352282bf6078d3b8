// Kernels for cards that multiply codes with codes: which layers they take. Private to matmul/.
#pragma once

#include <string>

#include "device/gpu.h"
#include "kernels/matmul/matmul.h"

namespace nibble::kernels {

enum class Codes : uint8_t { kE4M3, kS8 };

// Why codes times codes will not do for a layer, or "".
std::string codes_refusal(Codes codes, const MatmulProblem& problem, const device::Gpu& gpu,
                          const MatmulPolicy& policy);

// Whether a layer's FP8 weights are multiplied with inputs left as floats, although the checkpoint
// wants them as FP8 too: on cards that have no FP8 products. `exact` does what the checkpoint
// wants.
bool weight_only(const MatmulProblem& problem, const device::Gpu& gpu, const MatmulPolicy& policy);

// The scale of each row of a weight that codes_refusal() takes; empty when it is stored so.
std::vector<float> row_scales(const tensor::QuantizedWeight& weight);

}  // namespace nibble::kernels
