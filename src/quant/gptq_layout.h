// A layer as GPTQ's tools store it, for the schemes that share the layout: gptq and auto-round.
//
//   <module>.qweight  (K b/32, N) s32   b-bit codes along K, lowest bits first; for b = 3, 5, 6
//                                       and 7, 32 codes are one number in b words
//   <module>.qzeros   (g, N b/32) s32   zero points, packed likewise along N
//   <module>.scales   (g, N)            f16 | bf16 | f32
//   <module>.g_idx    (K)               the group of each input; k / G without act-order
//
//   w[n, k] = (q[k, n] - z[g, n]) * s[g, n]      g = g_idx[k]
//
// Zero points come in two versions: version 2 stores z; version 1 stores z - 1, subtracted from
// whole words, so that a z of 0 borrows from its neighbour; adding it back to whole words undoes
// that. With 3, 5, 6 and 7 bits each field wraps by itself (GPTQModel, utils/model_dequant.py).
// Symmetric weights have z = 2^(b-1) everywhere, which is checked.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "nibble/result.h"
#include "quant/method.h"

namespace nibble::quant {

struct GptqLayout {
  int64_t bits = 4;
  int64_t group = 0;  // 0: all inputs
  bool desc_act = false;
  bool sym = true;
  bool v2 = false;
  // Symmetric zero points tell their version themselves; true where the dialect's label does not.
  bool any_version = false;
  // No label at all: a layer whose stored zero points are all 2^(b-1) is of version 2 and
  // symmetric.
  bool unlabelled = false;
  std::string version = "checkpoint_format is gptq";  // what says v2, in messages
};

// The method of a layer that is stored so; `scheme` must outlive it. Errors: other bits than 2 to
// 8; sizes that do not fill words; a qweight that holds codes of other bits.
Result<std::unique_ptr<LinearMethod>> gptq_method(std::string_view scheme, const LinearLayer& layer,
                                                  const TensorLookup& tensors, GptqLayout layout);

}  // namespace nibble::quant
