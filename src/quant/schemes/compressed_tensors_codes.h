// The codes of one layer of a compressed-tensors checkpoint, in each of the ways they are stored.
#pragma once

#include "nibble/result.h"
#include "quant/method.h"
#include "quant/schemes/compressed_tensors_form.h"

namespace nibble::quant::compressed {

// Fills out.code (and its owner); out.n, out.k and out.order are known. `n` are the outputs of the
// whole layer.
Result<void> read_codes(const Form& form, int64_t n, const RawWeights& raw,
                        tensor::QuantizedWeight& out);

}  // namespace nibble::quant::compressed
