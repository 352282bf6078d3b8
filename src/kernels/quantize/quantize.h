// Activations held as a checkpoint wants them: rounded to the grid of its number type, and given
// back as the float32 numbers of that grid.
//
//   s8    q = clamp(round(x / scale) + zero, -128, 127)      x' = (q - zero) * scale
//   e4m3  q = e4m3(clamp(x / scale, -448, 448))              x' = q * scale
//
// Rounding is to nearest even. Dynamic scales are absmax / 127 or absmax / 448 of the token or
// group; asymmetric ones (max - min) / 255 over a range that includes 0. Outliers (LLM.int8) are
// given back as they are and count for no scale.
#pragma once

#include <cstdint>

#include "tensor/weight_format.h"

namespace nibble::kernels {

// One token of k inputs; `out` may be `x`. input_scale and input_zero are read for static formats.
void quantize_activation(const tensor::ActivationFormat& format, float input_scale,
                         float input_zero, const float* x, int64_t k, float* out);

}  // namespace nibble::kernels
