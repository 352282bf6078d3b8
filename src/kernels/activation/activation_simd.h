// activation.h written against kernels/simd/; avx2.cc and avx512.cc name the vocabulary and include
// this.
#pragma once

#include "kernels/activation/activation.h"
#include NIBBLE_SIMD_HEADER

namespace nibble::kernels::NIBBLE_SIMD {
namespace {

template <Activation kF>
NIBBLE_INLINE F apply(F x) {
  if constexpr (kF == Activation::kSilu) {
    return div(x, add(all(1.0f), exp(sub(zero(), x))));
  } else if constexpr (kF == Activation::kGelu) {
    return mul(x, normal(x));
  } else if constexpr (kF == Activation::kGeluTanh) {
    // (1 + tanh u) / 2 is the logistic function of 2 u; 2 sqrt(2 / pi) = 1.5957691.
    const F cubic = fma(mul(x, x), all(0.044715f * 1.59576912f), all(1.59576912f));
    return div(x, add(all(1.0f), exp(sub(zero(), mul(cubic, x)))));
  } else if constexpr (kF == Activation::kQuickGelu) {
    return div(x, add(all(1.0f), exp(mul(x, all(-1.702f)))));
  } else {
    const F positive = max(zero(), x);
    return kF == Activation::kRelu ? positive : mul(positive, positive);
  }
}

template <Activation kF>
void activate_as(const float* x, int64_t n, float* y) noexcept {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(y + i, apply<kF>(load(x + i)));
  if (i < n) store_n(y + i, n - i, apply<kF>(load_n(x + i, n - i)));
}

template <Activation kF>
void activate_gated_as(const float* gate, const float* up, int64_t n, float* y) noexcept {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    store(y + i, mul(apply<kF>(load(gate + i)), load(up + i)));
  }
  if (i < n) store_n(y + i, n - i, mul(apply<kF>(load_n(gate + i, n - i)), load_n(up + i, n - i)));
}

void activate_row(Activation f, const float* x, int64_t n, float* y) noexcept {
  switch (f) {
    case Activation::kSilu:
      return activate_as<Activation::kSilu>(x, n, y);
    case Activation::kGelu:
      return activate_as<Activation::kGelu>(x, n, y);
    case Activation::kGeluTanh:
      return activate_as<Activation::kGeluTanh>(x, n, y);
    case Activation::kQuickGelu:
      return activate_as<Activation::kQuickGelu>(x, n, y);
    case Activation::kRelu:
      return activate_as<Activation::kRelu>(x, n, y);
    case Activation::kRelu2:
      return activate_as<Activation::kRelu2>(x, n, y);
  }
}

void activate_gated_row(Activation f, const float* gate, const float* up, int64_t n,
                        float* y) noexcept {
  switch (f) {
    case Activation::kSilu:
      return activate_gated_as<Activation::kSilu>(gate, up, n, y);
    case Activation::kGelu:
      return activate_gated_as<Activation::kGelu>(gate, up, n, y);
    case Activation::kGeluTanh:
      return activate_gated_as<Activation::kGeluTanh>(gate, up, n, y);
    case Activation::kQuickGelu:
      return activate_gated_as<Activation::kQuickGelu>(gate, up, n, y);
    case Activation::kRelu:
      return activate_gated_as<Activation::kRelu>(gate, up, n, y);
    case Activation::kRelu2:
      return activate_gated_as<Activation::kRelu2>(gate, up, n, y);
  }
}

void add_to_row(const float* x, int64_t n, float* y) noexcept {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(y + i, add(load(y + i), load(x + i)));
  if (i < n) store_n(y + i, n - i, add(load_n(y + i, n - i), load_n(x + i, n - i)));
}

void scale_by_row(float factor, int64_t n, float* y) noexcept {
  const F f = all(factor);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(y + i, mul(load(y + i), f));
  if (i < n) store_n(y + i, n - i, mul(load_n(y + i, n - i), f));
}

void soft_cap_row(float cap, int64_t n, float* y) noexcept {
  const F c = all(cap);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(y + i, mul(c, tanh(div(load(y + i), c))));
  if (i < n) store_n(y + i, n - i, mul(c, tanh(div(load_n(y + i, n - i), c))));
}

int64_t first_not_finite(const float* x, int64_t n) noexcept {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    if (any_not_finite(load(x + i))) break;
  }
  for (; i < n; ++i) {
    if (!(__builtin_fabsf(x[i]) < __builtin_inff())) return i;
  }
  return n;
}

}  // namespace
}  // namespace nibble::kernels::NIBBLE_SIMD
