// A layer as AutoAWQ stores it, for the schemes that share it: awq and auto-round. Layout "gemm":
//
//   <module>.qweight  (K, N/8) s32   eight 4-bit codes along N, in the order below
//   <module>.qzeros   (g, N/8) s32   zero points, packed likewise
//   <module>.scales   (g, N)         f16 | bf16 | f32
//
//   word c:   bits  28..31  24..27  20..23  16..19  12..15  8..11  4..7  0..3
//   output 8c +         7       5       3       1       6      4     2     0
//
// Layout "gemv", eight codes a word in their order, the lowest bits first; W is at least g / 8, and
// what lies beyond the groups is not read:
//
//   <module>.qweight  (N, K/8) s32   along K
//   <module>.qzeros   (N, W)   s32   along the groups
//   <module>.scales   (N, 8 W)       f16 | bf16 | f32
//
//   w[n, k] = (q[k, n] - z[g, n]) * s[g, n]      g = k / G; the stored zero point is the zero point
#pragma once

#include <array>
#include <memory>
#include <string_view>

#include "nibble/result.h"
#include "quant/method.h"

namespace nibble::quant {

// Where outputs 8c, 8c + 1, ... lie in word c.
inline constexpr std::array<int, 8> kAwqShift = {0, 16, 4, 20, 8, 24, 12, 28};

// The method of a layer that is stored so; `group` is 0 for all inputs, `scheme` must outlive it.
// The shape of the scales tells the layouts apart. Error: outputs or inputs that do not fill words.
Result<std::unique_ptr<LinearMethod>> awq_method(std::string_view scheme, const LinearLayer& layer,
                                                 const TensorLookup& tensors, int64_t group);

}  // namespace nibble::quant
