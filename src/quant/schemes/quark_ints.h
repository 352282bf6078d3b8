// Integer weights as AMD Quark packs them.
//
//   per group    weight (K, N/8) s32 | (K, N) s8   weight_scale (g, N)   zero point (g, N/8) | (g,
//   N) per output   weight (N, K/8) s32 | (N, K) s8   weight_scale (N)      zero point (N/8) | (N)
//   per tensor   likewise                          weight_scale ()       zero point ()
//
//   w = (code - zero) * scale, or with a second level (int4 over fp8) times weight_scale, which
//   then is one number, while the scales of the outputs are weight_scale_2
//
// Eight 4-bit codes lie in a word in AutoAWQ's order ("reorder") or their own ("order"); int4 is
// two's complement, uint4 is not. Symmetric weights have zero points of 0, which is checked.
#pragma once

#include <memory>
#include <string_view>

#include "nibble/result.h"
#include "quant/method.h"

namespace nibble::quant {

struct QuarkInts {
  bool reordered = true;
  bool symmetric = true;
  bool is_signed = true;
  // As the folders are called that Quark writes for others' loaders.
  std::string_view scheme = "quark";
  std::string_view weight = "weight", scale = "weight_scale", zero = "weight_zero_point";
};

// Precondition: the layer has a weight of s32 or s8 and a scale. The names outlive the method.
// Error: shapes that are none of these, sizes that do not fill words.
Result<std::unique_ptr<LinearMethod>> quark_ints_method(const LinearLayer& layer,
                                                        const TensorLookup& tensors, QuarkInts ints,
                                                        const tensor::ActivationFormat& activation);

}  // namespace nibble::quant
