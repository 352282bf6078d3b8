// Sparse weights, whose zeros are not stored, in the layouts that compressed-tensors 0.12 and
// earlier wrote: any zeros, or two in every four inputs.
//
// sparse-bitmask, beside or instead of a quantization to bytes:
//
//   <module>.compressed   (kept)          the kept values of all rows, in their order
//   <module>.bitmask      (N, ceil(K/8))  u8, bit k % 8 of byte k / 8: input k is kept
//   <module>.row_offsets  (N)             s64, where a row begins in `compressed`
//   <module>.shape        (2)             N, K
//
// (The first versions said <module>.weight.compressed and so on.)
//
// sparse-24-bitmask, the same with rows of one length:
//
//   <module>.compressed  (N, K/2)
//   <module>.bitmask     (N, ceil(K/8))
//   <module>.shape       (2, 1)
//
// marlin-24: 4- or 8-bit codes, offset by half their range, arranged for one GPU kernel.
//
//   <module>.weight_packed  (K/32, 16 N / P)  s32, P = 32 / bits codes a word
//   <module>.meta           (K/32, 2 N)       s16, four pairs of 2-bit places each
//   <module>.scale_packed   (g, N)            f16
//
// Kept code c of output n (c < K/2) stands, with t = c / 16 and i the place in a chunk of 1024
// codes (64 outputs by 16) that a fixed permutation gives, in row t, code 1024 (n / 64) + i.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "nibble/result.h"
#include "tensor/tensor.h"

namespace nibble::quant::compressed {

// Spreads (N, K/2) units of `unit` bytes over (N, K); the inputs between become `zero` (one unit).
// K is a multiple of 4. Error: a row of the mask that does not keep half of the inputs.
Result<void> spread_mask24(const tensor::TensorView& kept, const tensor::TensorView& mask,
                           int64_t n, int64_t k, int64_t unit, std::byte* out);

// The same for rows of any length, which begin at `offset` in `kept`; of a `part` of the rows the
// last is followed by others. Error: a row whose mask keeps other than what lies between its offset
// and the next.
Result<void> spread_mask(const tensor::TensorView& kept, const tensor::TensorView& mask,
                         std::span<const int32_t> offset, bool part, int64_t k, int64_t unit,
                         std::byte* out);

// Codes (N, K), less `minus`, from the marlin-24 layout. N is a multiple of 64, K of 32. Error: a
// pair in `meta` that names one place twice.
Result<void> unpack_marlin24(const std::byte* words, const tensor::TensorView& meta, int64_t n,
                             int64_t k, int64_t bits, uint8_t minus, uint8_t* code);

// Scales (g, N) of that layout -> (N, g). `permuted`: the tool permutes them when a group has fewer
// inputs than are kept in all.
std::vector<float> unpack_marlin24_scales(std::span<const float> stored, int64_t n, int64_t groups,
                                          bool permuted);

}  // namespace nibble::quant::compressed
