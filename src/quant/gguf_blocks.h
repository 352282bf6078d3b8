// GGUF's block types in canonical form.
//
// A block type packs 32 or 256 consecutive elements of a row; block layouts and formulas are those
// of ggml (ggml-common.h, ggml-quants.c) as the `gguf` Python package documents them in its
// quants.py. dequantize_row of the canonical form gives bit for bit what they give.
#pragma once

#include <cstdint>

#include "nibble/result.h"
#include "tensor/dtype.h"
#include "tensor/tensor.h"
#include "tensor/weight_format.h"

namespace nibble::quant {

// True for the types that gguf_to_canonical reads: plain floats and block types.
bool gguf_readable(tensor::DType dtype);

// The canonical format of a GGUF tensor whose rows have k elements. Precondition: gguf_readable.
tensor::WeightFormat gguf_format(tensor::DType dtype, int64_t k);

// (n, k) elements of type `dtype` -> codes and scales. Plain floats are not copied: the result
// points into `stored`. Errors: sizes that do not fit together, a row that is no whole number of
// blocks.
Result<tensor::QuantizedWeight> gguf_to_canonical(tensor::DType dtype, int64_t n, int64_t k,
                                                  const tensor::TensorView& stored);

}  // namespace nibble::quant
