// Act-order: the inputs of a group are scattered, and g_idx says which group each belongs to.
#pragma once

#include <cstdint>
#include <span>

#include "nibble/result.h"
#include "tensor/weight_format.h"

namespace nibble::quant {

// Fills weight.order: the inputs sorted by group, those of one group in their own order. `weight`
// has n, k, format.group_k, and scale and zero of (N, groups).
//
// A whole layer has group_k inputs in each group (the last may be short); another count is an
// error, and so is a group out of range. A slice of the inputs holds as many of each group as
// happen to be there: scale and zero are spread to one per input, and format.group_k becomes 1.
Result<void> sort_by_group(std::span<const int32_t> g_idx, int64_t groups, bool slice,
                           tensor::QuantizedWeight& weight);

// Without act-order: g_idx must count up by one every `group` inputs (0: one group), in a whole
// layer from 0 on. A slice of the inputs may begin anywhere.
Result<void> check_group_order(std::span<const int32_t> g_idx, int64_t group, bool slice);

}  // namespace nibble::quant
