// Floats of 8, 6 and 4 bits, which several tools store alike: the types and shapes of a layer's
// codes and scales say which they are.
//
//   fp8     codes (N, K)     e4m3 | e5m2 | ...   scale   floats () | (N) | parts | blocks
//   mxfp8   codes (N, K)     likewise            scale   u8 | e8m0 (N, ceil(K/32))
//   fp6     codes (N, 3K/4)  u8                  scale   u8 | e8m0 (N, ceil(K/32)), or floats
//   mxfp4   codes (N, K/2)   u8                  scale   u8 | e8m0 (N, ceil(K/32))
//   nvfp4   codes (N, K/2)   u8                  scale   e4m3 (N, ceil(K/16))
//
// Only e2m3 from e3m2, both of 6 bits, no tensor tells.
#pragma once

#include <string>
#include <string_view>

#include "nibble/result.h"
#include "quant/method.h"
#include "quant/scaled_codes.h"

namespace nibble::quant {

// What the scales are.
enum class FloatScales : uint8_t {
  kPlain,
  kPowersOfTwo,  // for 32 inputs each (OCP Microscaling Formats 1.0)
  kE4M3,         // for 16 inputs each, below one scale of the tensor (NVFP4)
};

// What a config says beside the tensors.
struct FloatClaims {
  Area block;  // of fp8; (0, 0): the shapes decide
  std::string_view block_key;
  std::string six_bits;  // "e2m3", "e3m2", or what else is said of the codes
};

// Fills in element, codes, code_types and area of `out`. Errors: codes of another type or shape, 6
// bits of neither kind, scales that do not fit; each with what is stored and the layer's sizes.
Result<FloatScales> read_stored_floats(const LinearLayer& layer, const tensor::TensorInfo& codes,
                                       const tensor::TensorInfo& scale, const FloatClaims& claims,
                                       ScaledCodes& out);

}  // namespace nibble::quant
