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
  const bool second = neighbours ? d % 2 != 0 : d >= rotary / 2;
  const int pair = neighbours ? d / 2 : second ? d - rotary / 2 : d;
  const float u = x[neighbours ? 2 * pair : pair];
  const float v = x[neighbours ? 2 * pair + 1 : pair + rotary / 2];
  const float2 a = angle_of(step, token, pair);
  return second ? fmaf(u, a.y, v * a.x) : fmaf(-v, a.y, u * a.x);
}

// Elements d to d + 3 of a head of a token; d is a multiple of 4, x is aligned.
__device__ inline float4 turned_4(const CudaStep& step, int64_t token, const float* x, int d) {
  const auto four = [](const float* from) { return *reinterpret_cast<const float4*>(from); };
  const int rotary = static_cast<int>(step.rotary_dim);
  const int half = rotary / 2;
  const float4 own = four(x + d);
  if (d >= rotary) return own;
  if (rotary % 8 != 0) {
    return {turned(step, token, x, d), turned(step, token, x, d + 1), turned(step, token, x, d + 2),
            turned(step, token, x, d + 3)};
  }
  if (step.neighbours != 0) {
    const float4 c = four(step.cos + token * rotary + d);
    const float4 s = four(step.sin + token * rotary + d);  // -s, +s
    return {fmaf(own.y, s.x, own.x * c.x), fmaf(own.x, s.y, own.y * c.y),
            fmaf(own.w, s.z, own.z * c.z), fmaf(own.z, s.w, own.w * c.w)};
  }
  const bool second = d >= half;
  const int pair = second ? d - half : d;
  const float4 other = four(x + (second ? pair : pair + half));
  const float4 c = four(step.cos + token * half + pair);
  const float4 s = four(step.sin + token * half + pair);
  const float sign = second ? 1.0f : -1.0f;
  return {fmaf(sign * other.x, s.x, own.x * c.x), fmaf(sign * other.y, s.y, own.y * c.y),
          fmaf(sign * other.z, s.z, own.z * c.z), fmaf(sign * other.w, s.w, own.w * c.w)};
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
