// exp, the logistic function and the normal distribution on registers. Included by avx2.h and
// avx512.h, whose vocabulary it is written in; both give the same bits.
//
// The polynomials were fitted for the least largest error (Remez-like reweighted least squares in
// double) on the intervals said; activation_test.cc measures the bounds stated here.
#pragma once

namespace nibble::kernels::NIBBLE_SIMD {
namespace {

// x = n ln 2 + r with |r| <= ln 2 / 2: gives e^r, and in t the bits of n + 1.5 * 2^23.
NIBBLE_INLINE F exp_of_rest(F x, F* t) {
  const F round = all(12582912.0f);  // 1.5 * 2^23: adding it leaves an integer in the low bits
  *t = fma(x, all(1.44269504f), round);
  const F n = sub(*t, round);
  // ln 2 in two parts, the first with few bits: n times it is exact.
  F r = fnma(n, all(0.693145752f), x);
  r = fnma(n, all(1.42860677e-6f), r);
  F q = all(0.0013950987f);
  q = fma(q, r, all(0.008369176f));
  q = fma(q, r, all(0.0416662f));
  q = fma(q, r, all(0.16666517f));
  q = fma(q, r, all(0.5f));
  return add(fma(mul(r, r), q, r), all(1.0f));
}

// e^x with a relative error of at most 1.5e-7. Below -86.99 it is 0, above 88.73 inf; nan stays.
NIBBLE_INLINE F exp(F x) {
  F t;
  const F p = exp_of_rest(max(all(-87.3f), min(all(89.0f), x)), &t);
  // 2^(n-1) and then 2, so that n = 128 fits; n = -126 becomes 0.
  return mul(mul(p, power_of_two<126>(t)), all(2.0f));
}

// The same for x <= 0, a little faster. Below -87.7 it is 0.
NIBBLE_INLINE F exp_falling(F x) {
  F t;
  const F p = exp_of_rest(max(all(-88.0f), x), &t);
  return mul(p, power_of_two<127>(t));  // n = -127 becomes 0
}

// 1 / (1 + e^-x)
NIBBLE_INLINE F logistic(F x) { return div(all(1.0f), add(all(1.0f), exp(sub(zero(), x)))); }

// tanh with an absolute error of at most 2.5e-7.
NIBBLE_INLINE F tanh(F x) { return sub(all(1.0f), div(all(2.0f), add(all(1.0f), exp(add(x, x))))); }

// The normal distribution function, (1 + erf(x / sqrt 2)) / 2, with an absolute error of at most
// 1.5e-7, and for x from -7 to 0 a relative error of at most (2 x^2 + 16) 2^-24.
//
//   a = |x| / sqrt 2      a < 0.9:  erf(a)  = a P(a^2)
//                         else:     erfc(a) = exp(L(a) - a^2)
NIBBLE_INLINE F normal(F x) {
  const F a = mul(abs(x), all(0.707106781f));
  const F s = mul(a, a);
  F p = all(-0.00060865615f);
  p = fma(p, s, all(0.005011706f));
  p = fma(p, s, all(-0.0267791f));
  p = fma(p, s, all(0.11282158f));
  p = fma(p, s, all(-0.37612528f));
  p = fma(p, s, all(1.1283791f));
  const F near = fnma(a, p, all(1.0f));
  const F b = min(all(6.0f), a);  // L is fitted up to 6; beyond, erfc is below 1e-16
  F l = all(-8.433436e-08f);
  l = fma(l, b, all(3.370415e-06f));
  l = fma(l, b, all(-6.10703e-05f));
  l = fma(l, b, all(0.0006676392f));
  l = fma(l, b, all(-0.004955133f));
  l = fma(l, b, all(0.026731744f));
  l = fma(l, b, all(-0.11032334f));
  l = fma(l, b, all(0.36819115f));
  l = fma(l, b, all(-1.1301346f));
  l = fma(l, b, all(0.0002748246f));
  const F far = exp(sub(l, s));
  const F tail = mul(all(0.5f), if_less(a, all(0.9f), near, far));  // of erfc(a)
  return if_less(x, zero(), tail, sub(all(1.0f), tail));
}

}  // namespace
}  // namespace nibble::kernels::NIBBLE_SIMD
