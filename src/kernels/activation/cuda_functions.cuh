// activation.h's functions of numbers in registers, for the kernels that end with one.
#pragma once

#include "kernels/activation/activation.h"

namespace nibble::kernels::cuda {

// x / (1 + e^-u) by the two instructions that approximate 2^a and 1 / a to 2^-22: for large -u,
// where e^-u is off by more, the result is near 0. u = -inf and x = -inf give nan, as the exact
// division does.
__device__ inline float logistic(float x, float u) {
  float e;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(u * -1.44269504f));
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(1.0f + e));
  return x * inverse;
}

template <Activation kF>
__device__ inline float apply(float x) {
  switch (kF) {
    case Activation::kSilu:
      return logistic(x, x);
    case Activation::kGelu:
      return 0.5f * x * erfcf(-x * 0.70710678118654752f);
    case Activation::kGeluTanh:
      // (1 + tanh u) / 2 is the logistic function of 2 u; 2 sqrt(2 / pi) = 1.5957691.
      return logistic(x, x * fmaf(x * x, 0.044715f * 1.59576912f, 1.59576912f));
    case Activation::kQuickGelu:
      return logistic(x, 1.702f * x);
    case Activation::kRelu:
      return x < 0.0f ? 0.0f : x;
    case Activation::kRelu2:
      return x < 0.0f ? 0.0f : x * x;
  }
  return x;
}
template <Activation kF, int kCount>
__device__ inline void apply(float (&x)[kCount]) {
#pragma unroll
  for (float& v : x) v = apply<kF>(v);
}
// The choice is made once for all of them.
template <int kCount>
__device__ inline void apply(Activation f, float (&x)[kCount]) {
  switch (f) {
    case Activation::kSilu:
      return apply<Activation::kSilu>(x);
    case Activation::kGelu:
      return apply<Activation::kGelu>(x);
    case Activation::kGeluTanh:
      return apply<Activation::kGeluTanh>(x);
    case Activation::kQuickGelu:
      return apply<Activation::kQuickGelu>(x);
    case Activation::kRelu:
      return apply<Activation::kRelu>(x);
    case Activation::kRelu2:
      return apply<Activation::kRelu2>(x);
  }
}

}  // namespace nibble::kernels::cuda
