// Random weights of a given format, for benchmarks: --load-format dummy.
#pragma once

#include <cstdint>

#include "nibble/result.h"
#include "tensor/weight_format.h"

namespace nibble::load {

// Codes drawn evenly over what the format can hold (floats: normally), scales such that the outputs
// of a layer are about as large as its inputs. The same arguments give the same weight.
Result<tensor::QuantizedWeight> dummy_weight(const tensor::WeightFormat& format, int64_t n,
                                             int64_t k, uint64_t seed);

}  // namespace nibble::load
