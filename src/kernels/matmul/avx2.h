// What avx2*.cc gives to prepare.cc. Private to matmul/.
#pragma once

#include <cstdint>

namespace nibble::kernels::avx2 {

// q = round(x / scale) with scale = absmax / 32512 over each unit of 16, 32, 64 or 128 inputs; x is
// padded with zeros to k_pad. A unit with something that is not finite gets the scale nan and all
// q = 0; a unit below 2^-100 gets the scale 0. Writes scale and sum of each unit at a stride.
void quantize_s16(const float* x, int64_t k_pad, int64_t unit, int16_t* q, float* scale,
                  int32_t* sum, float* scaled_sum, int64_t stride) noexcept;

// q as digits: per 32 inputs 32 high ones, then 32 low ones.
void split_digits(const int16_t* q, int64_t k_pad, int8_t* out) noexcept;

// Token r of a panel of `rows`: pairs (0, 2) (1, 3) of each four neighbours.
void spread_pairs(const int16_t* q, int64_t k_pad, int64_t rows, int64_t r,
                  int32_t* panel) noexcept;

}  // namespace nibble::kernels::avx2
