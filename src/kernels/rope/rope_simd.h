// rope.h written against kernels/simd/; avx2.cc and avx512.cc name the vocabulary and include this.
#pragma once

#include "kernels/rope/rope.h"
#include NIBBLE_SIMD_HEADER

namespace nibble::kernels::NIBBLE_SIMD {
namespace {

void rotate_halves(const float* cos, const float* sin, int64_t pairs, float* x) noexcept {
  float* y = x + pairs;
  int64_t i = 0;
  for (; i + kLanes <= pairs; i += kLanes) {
    const F c = load(cos + i);
    const F s = load(sin + i);
    const F a = load(x + i);
    const F b = load(y + i);
    store(x + i, fnma(b, s, mul(a, c)));
    store(y + i, fma(a, s, mul(b, c)));
  }
  if (i < pairs) {
    const int64_t left = pairs - i;
    const F c = load_n(cos + i, left);
    const F s = load_n(sin + i, left);
    const F a = load_n(x + i, left);
    const F b = load_n(y + i, left);
    store_n(x + i, left, fnma(b, s, mul(a, c)));
    store_n(y + i, left, fma(a, s, mul(b, c)));
  }
}

void rotate_neighbours(const float* cos, const float* sin, int64_t n, float* x) noexcept {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const F v = load(x + i);
    store(x + i, fma(swap_pairs(v), load(sin + i), mul(v, load(cos + i))));
  }
  if (i < n) {
    const int64_t left = n - i;
    const F v = load_n(x + i, left);
    store_n(x + i, left, fma(swap_pairs(v), load_n(sin + i, left), mul(v, load_n(cos + i, left))));
  }
}

}  // namespace
}  // namespace nibble::kernels::NIBBLE_SIMD
