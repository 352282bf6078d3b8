// Activations held as a checkpoint wants them: rounded to the grid of its number type, and given
// back as the float32 numbers of that grid.
//
//   s8    q = clamp(round(x / scale) + zero, -128, 127)      x' = (q - zero) * scale
//   e4m3  q = e4m3(clamp(x / scale, -448, 448))              x' = q * scale
//   e2m1  q = e2m1(clamp(x / scale, -6, 6))                  x' = q * scale
//   e2m3, e3m2: the same within 7.5 and 28
//
// Rounding is to nearest even. Dynamic scales are absmax / 127 (or / 127.5), / 448 or / 6 of the
// token or group, rounded as the format's ScaleRule says; asymmetric ones (max - min) / 255 over a
// range that includes 0. Integers may have fewer bits. A group of zeros stays zeros. Outliers
// (LLM.int8) are given back as they are and count for no scale.
#pragma once

#include <cstdint>

#include "tensor/weight_format.h"

namespace nibble::kernels {

// One token of k inputs; `out` may be `x`. input_scale and input_zero are read for static formats,
// input_scale also where scales are e4m3.
void quantize_activation(const tensor::ActivationFormat& format, float input_scale,
                         float input_zero, const float* x, int64_t k, float* out);

// The same for s8, as integers: q - zero of every input (-255..255) and the scale of every group
// (one when the format has no groups), nan where something is not finite (its q are 0).
void quantize_activation_s8(const tensor::ActivationFormat& format, float input_scale,
                            float input_zero, const float* x, int64_t k, int16_t* q, float* scale);

}  // namespace nibble::kernels
