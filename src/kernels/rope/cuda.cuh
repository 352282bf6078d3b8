// rope.h on a card, for the kernels of attention.
#pragma once

#include <cstdint>

#include "kernels/cuda/abi.h"

namespace nibble::kernels::cuda {

// cos and sin of the pair that element d of a head belongs to, for a token of the step. Neighbours
// have each cos twice and sin as -s, +s.
__device__ inline float2 angle_of(const CudaStep& step, int64_t token, int pair) {
  const int64_t pairs = step.rotary_dim / 2;
  const int64_t at = step.neighbours != 0 ? 2 * (token * pairs + pair) + 1 : token * pairs + pair;
  return {step.cos[at], step.sin[at]};
}

// Element d of a head x after the turn.
__device__ inline float turned(const CudaStep& step, int64_t token, const float* x, int d) {
  const int rotary = static_cast<int>(step.rotary_dim);
  if (d >= rotary) return x[d];
  const bool neighbours = step.neighbours != 0;
  const int pair = neighbours ? d / 2 : d % (rotary / 2);
  const bool second = neighbours ? d % 2 != 0 : d >= rotary / 2;
  const float u = x[neighbours ? 2 * pair : pair];
  const float v = x[neighbours ? 2 * pair + 1 : pair + rotary / 2];
  const float2 a = angle_of(step, token, pair);
  return second ? fmaf(u, a.y, v * a.x) : fmaf(-v, a.y, u * a.x);
}

// A warp turns a head in place.
__device__ inline void turn(const CudaStep& step, int64_t token, float* x, int lane) {
  const int pairs = static_cast<int>(step.rotary_dim / 2);
  const bool neighbours = step.neighbours != 0;
  for (int i = lane; i < pairs; i += 32) {
    float* a = x + (neighbours ? 2 * i : i);
    float* b = neighbours ? a + 1 : a + pairs;
    const float2 angle = angle_of(step, token, i);
    const float u = *a;
    const float v = *b;
    *a = fmaf(-v, angle.y, u * angle.x);
    *b = fmaf(u, angle.y, v * angle.x);
  }
}

}  // namespace nibble::kernels::cuda
