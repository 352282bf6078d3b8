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

// Four neighbours of a head from element d on, a multiple of 4, in parts: whoever turns many asks
// for all that is to be loaded first. These functions are for rotary_dim % 8 == 0 and d <
// rotary_dim.
struct Angles4 {
  float4 cos;
  float4 sin;
};
__device__ inline Angles4 angles_4(const CudaStep& step, int64_t token, int d) {
  const int rotary = static_cast<int>(step.rotary_dim);
  const int stride = step.neighbours != 0 ? rotary : rotary / 2;
  const int64_t at = token * stride + (d >= stride ? d - stride : d);
  return {*reinterpret_cast<const float4*>(step.cos + at),
          *reinterpret_cast<const float4*>(step.sin + at)};
}
// Where the four begin that these are turned with.
__device__ inline int partner_4(const CudaStep& step, int d) {
  const int half = static_cast<int>(step.rotary_dim / 2);
  return step.neighbours != 0 ? d : d >= half ? d - half : d + half;
}
__device__ inline float4 turned_4(const CudaStep& step, int d, float4 own, float4 other,
                                  const Angles4& angles) {
  const bool neighbours = step.neighbours != 0;  // then sin is -s, +s
  const float sign = neighbours || d >= static_cast<int>(step.rotary_dim / 2) ? 1.0f : -1.0f;
  const float4 with = neighbours ? float4{own.y, own.x, own.w, own.z} : other;
  const float4 c = angles.cos;
  const float4 s = angles.sin;
  return {fmaf(sign * with.x, s.x, own.x * c.x), fmaf(sign * with.y, s.y, own.y * c.y),
          fmaf(sign * with.z, s.z, own.z * c.z), fmaf(sign * with.w, s.w, own.w * c.w)};
}

// Elements d to d + 3 of a head of a token, of any rotary_dim; x is aligned.
__device__ inline float4 turned_4(const CudaStep& step, int64_t token, const float* x, int d) {
  const auto four = [](const float* from) { return *reinterpret_cast<const float4*>(from); };
  const int rotary = static_cast<int>(step.rotary_dim);
  const float4 own = four(x + d);
  if (d >= rotary) return own;
  if (rotary % 8 != 0) {
    return {turned(step, token, x, d), turned(step, token, x, d + 1), turned(step, token, x, d + 2),
            turned(step, token, x, d + 3)};
  }
  return turned_4(step, d, own, four(x + partner_4(step, d)), angles_4(step, token, d));
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
