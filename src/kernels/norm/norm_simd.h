// norm.h written against kernels/simd/; avx2.cc and avx512.cc name the vocabulary and include this.
#pragma once

#include "kernels/norm/norm.h"
#include NIBBLE_SIMD_HEADER

namespace nibble::kernels::NIBBLE_SIMD {
namespace {

// sum over the row of term(x) in four registers, so that additions do not wait for one another.
// `load_at(i)` and `load_tail(i, n)` give the row; a tail's missing lanes are put to 0 by `term`'s
// caller through keep_n.
template <class Load, class LoadTail, class Term>
NIBBLE_INLINE float sum_row(int64_t n, const Load& load_at, const LoadTail& load_tail,
                            const Term& term) {
  F s0 = zero();
  F s1 = zero();
  F s2 = zero();
  F s3 = zero();
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    s0 = term(load_at(i), s0);
    s1 = term(load_at(i + kLanes), s1);
    s2 = term(load_at(i + 2 * kLanes), s2);
    s3 = term(load_at(i + 3 * kLanes), s3);
  }
  for (; i + kLanes <= n; i += kLanes) s0 = term(load_at(i), s0);
  if (i < n) s1 = add(s1, keep_n(term(load_tail(i, n - i), zero()), n - i));
  return sum(add(add(s0, s1), add(s2, s3)));
}

// y = x * factor * w, with the weights of the norm.
NIBBLE_INLINE void scale_row(const RmsNorm& norm, const float* x, float factor, float* y) {
  const F f = all(factor);
  const F one = all(norm.add_one ? 1.0f : 0.0f);
  int64_t i = 0;
  if (norm.weight == nullptr) {
    for (; i + kLanes <= norm.n; i += kLanes) store(y + i, mul(load(x + i), f));
    if (i < norm.n) store_n(y + i, norm.n - i, mul(load_n(x + i, norm.n - i), f));
    return;
  }
  const float* w = norm.weight;
  for (; i + kLanes <= norm.n; i += kLanes) {
    store(y + i, mul(mul(load(x + i), f), add(load(w + i), one)));
  }
  if (i < norm.n) {
    const int64_t left = norm.n - i;
    store_n(y + i, left, mul(mul(load_n(x + i, left), f), add(load_n(w + i, left), one)));
  }
}

NIBBLE_INLINE float rms_factor(const RmsNorm& norm, float squares) {
  return 1.0f / __builtin_sqrtf(squares / static_cast<float>(norm.n) + norm.eps);
}

void rms_norm_row(const RmsNorm& norm, const float* x, float* y) noexcept {
  const float squares = sum_row(
      norm.n, [&](int64_t i) { return load(x + i); },
      [&](int64_t i, int64_t left) { return load_n(x + i, left); },
      [](F v, F s) { return fma(v, v, s); });
  scale_row(norm, x, rms_factor(norm, squares), y);
}

void add_rms_norm_row(const RmsNorm& norm, const float* delta, float* residual, float* y) noexcept {
  const auto update = [&](int64_t i) {
    const F r = add(load(residual + i), load(delta + i));
    store(residual + i, r);
    return r;
  };
  const auto update_tail = [&](int64_t i, int64_t left) {
    const F r = add(load_n(residual + i, left), load_n(delta + i, left));
    store_n(residual + i, left, r);
    return r;
  };
  const float squares = sum_row(norm.n, update, update_tail, [](F v, F s) { return fma(v, v, s); });
  scale_row(norm, residual, rms_factor(norm, squares), y);
}

NIBBLE_INLINE F shift_and_scale(const LayerNorm& norm, F x, F mean, F factor, int64_t i,
                                int64_t left) {
  const bool whole = left >= kLanes;
  F v = mul(sub(x, mean), factor);
  if (norm.weight != nullptr) {
    v = mul(v, whole ? load(norm.weight + i) : load_n(norm.weight + i, left));
  }
  if (norm.bias != nullptr) v = add(v, whole ? load(norm.bias + i) : load_n(norm.bias + i, left));
  return v;
}

void layer_norm_row(const LayerNorm& norm, const float* x, float* y) noexcept {
  const auto load_at = [&](int64_t i) { return load(x + i); };
  const auto load_tail = [&](int64_t i, int64_t left) { return load_n(x + i, left); };
  const float n = static_cast<float>(norm.n);
  const F mean = all(sum_row(norm.n, load_at, load_tail, [](F v, F s) { return add(s, v); }) / n);
  const float squares = sum_row(norm.n, load_at, load_tail, [&](F v, F s) {
    const F d = sub(v, mean);
    return fma(d, d, s);
  });
  const F factor = all(1.0f / __builtin_sqrtf(squares / n + norm.eps));
  int64_t i = 0;
  for (; i + kLanes <= norm.n; i += kLanes) {
    store(y + i, shift_and_scale(norm, load(x + i), mean, factor, i, kLanes));
  }
  if (i < norm.n) {
    const int64_t left = norm.n - i;
    store_n(y + i, left, shift_and_scale(norm, load_n(x + i, left), mean, factor, i, left));
  }
}

}  // namespace
}  // namespace nibble::kernels::NIBBLE_SIMD
