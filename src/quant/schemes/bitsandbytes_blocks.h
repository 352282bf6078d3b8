// What a 4-bit layer of bitsandbytes says of itself: the sizes of its blocks, found from the shapes
// of its tensors; its quant_state, a JSON among the tensors, that must agree; and the scales.
//
//   <module>.weight.absmax             (NK / B)      f32; u8 with double quantization
//   <module>.weight.quant_map          (16)          f32   the values of the codes: nf4's or fp4's
//   <module>.weight.nested_absmax      (NK / B / b)  f32   double quantization: for b of absmax
//   <module>.weight.nested_quant_map   (256)         f32   the values of the codes of absmax
//   <module>.weight.quant_state.bitsandbytes__nf4    u8    JSON: blocksize, shape, nested_offset
//   ...
//
//   absmax[j] = nested_quant_map[code[j]] * nested_absmax[j / b] + nested_offset
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "quant/scheme.h"

namespace nibble::quant {

struct BnbBlocks {
  int64_t n = 0, k = 0;  // the whole layer's
  tensor::Element element = tensor::Element::kNF4;
  std::string state;    // the suffix of the JSON
  tensor::Shape bytes;  // of the JSON
  int64_t size = 64;    // B
  int64_t nested = 0;   // b; 0: absmax are floats
  int64_t storage = 1;  // bytes of an element of `weight`
  tensor::DType absmax = tensor::DType::kF32;
};

// From the shapes and types of the layer's tensors; nothing when it has no quant_state. Errors: one
// of the other tensors is missing; no size of blocks fits the shapes.
Result<std::optional<BnbBlocks>> find_bnb_blocks(const LinearLayer& layer,
                                                 const TensorLookup& tensors);

// The absmax of every block of a slice of `size` weights, double quantization undone. Errors: the
// quant_state contradicts what was found from the shapes; quant_map holds other values than the
// type's; a number that is not finite.
Result<std::vector<float>> read_bnb_absmax(const BnbBlocks& blocks, int64_t size,
                                           const RawWeights& raw);

// A sentence for each key of the dictionary, if there is one, that says otherwise than the names of
// the stored tensors, which count. Error: a key of the wrong type.
Result<std::vector<std::string>> bnb_contradictions(const CheckpointFacts& facts);

}  // namespace nibble::quant
