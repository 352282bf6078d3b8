// Eight floats in a register, for files compiled with -mavx2 -mfma -mf16c.
//
// The kernels of norm/, rope/, activation/, sample/ and attention/ are written once, in *_simd.h,
// against the names below; avx2.cc and avx512.cc of each folder include one of the two vocabularies
// and then the kernel. Everything lives in an unnamed namespace: a function that another file could
// link would be a wide instruction handed to an old CPU.
#pragma once

#include <immintrin.h>

#include <cstdint>

#define NIBBLE_SIMD avx2
#define NIBBLE_INLINE inline __attribute__((always_inline))

namespace nibble::kernels::avx2 {
namespace {

using F = __m256;
using I = __m256i;
constexpr int kLanes = 8;

// 8 ones, then 8 zeros: the mask of n lanes begins at 8 - n.
alignas(64) constexpr int32_t kMask[16] = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};
NIBBLE_INLINE I mask_of(int64_t n) {
  return _mm256_loadu_si256(reinterpret_cast<const I*>(kMask + 8 - n));
}

NIBBLE_INLINE F zero() { return _mm256_setzero_ps(); }
NIBBLE_INLINE F all(float v) { return _mm256_set1_ps(v); }
NIBBLE_INLINE F load(const float* p) { return _mm256_loadu_ps(p); }
NIBBLE_INLINE void store(float* p, F v) { _mm256_storeu_ps(p, v); }
// The first n lanes, 0 < n <= kLanes; the others are 0 and are neither read nor written.
NIBBLE_INLINE F load_n(const float* p, int64_t n) { return _mm256_maskload_ps(p, mask_of(n)); }
NIBBLE_INLINE void store_n(float* p, int64_t n, F v) { _mm256_maskstore_ps(p, mask_of(n), v); }
NIBBLE_INLINE F keep_n(F v, int64_t n) { return _mm256_and_ps(v, _mm256_castsi256_ps(mask_of(n))); }

NIBBLE_INLINE F add(F a, F b) { return _mm256_add_ps(a, b); }
NIBBLE_INLINE F sub(F a, F b) { return _mm256_sub_ps(a, b); }
NIBBLE_INLINE F mul(F a, F b) { return _mm256_mul_ps(a, b); }
NIBBLE_INLINE F div(F a, F b) { return _mm256_div_ps(a, b); }
NIBBLE_INLINE F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }    // a * b + c
NIBBLE_INLINE F fnma(F a, F b, F c) { return _mm256_fnmadd_ps(a, b, c); }  // c - a * b
// Where one is nan, these give b.
NIBBLE_INLINE F max(F a, F b) { return _mm256_max_ps(a, b); }
NIBBLE_INLINE F min(F a, F b) { return _mm256_min_ps(a, b); }
NIBBLE_INLINE F abs(F v) { return _mm256_andnot_ps(all(-0.0f), v); }
NIBBLE_INLINE F if_less(F a, F b, F yes, F no) {
  return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
NIBBLE_INLINE bool any_not_finite(F v) {
  const F inf = all(__builtin_inff());
  return _mm256_movemask_ps(_mm256_cmp_ps(abs(v), inf, _CMP_NLT_UQ)) != 0;
}
// 2^(n + kBias - 127), where t = n + 1.5 * 2^23 holds the small integer n in its low bits; 0 where
// n + kBias is 0.
template <int kBias>
NIBBLE_INLINE F power_of_two(F t) {
  const I biased = _mm256_add_epi32(_mm256_castps_si256(t), _mm256_set1_epi32(kBias));
  return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
}
// Even and odd lanes exchanged: 1 0 3 2 5 4 7 6.
NIBBLE_INLINE F swap_pairs(F v) { return _mm256_permute_ps(v, 0xb1); }

NIBBLE_INLINE float sum(F v) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
NIBBLE_INLINE float largest(F v) {
  __m128 s = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

NIBBLE_INLINE F load_f16(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
NIBBLE_INLINE void store_f16(uint16_t* p, F v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
NIBBLE_INLINE F load_bf16(const uint16_t* p) {
  const I wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
NIBBLE_INLINE void store_bf16(uint16_t* p, F v) {
  const I bits = _mm256_castps_si256(v);
  const I top = _mm256_srli_epi32(bits, 16);
  const I odd = _mm256_and_si256(top, _mm256_set1_epi32(1));
  const I even = _mm256_srli_epi32(
      _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  const I quiet = _mm256_or_si256(top, _mm256_set1_epi32(0x40));
  const I nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  const I code = _mm256_blendv_epi8(even, quiet, nan);
  const I packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(code, code), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
}

// Bytes as floats. e4m3 comes 2^-8 times its value: its bits are moved to where f16 has them, whose
// exponents count from 15 and not from 7. (Its nan comes as 480.)
NIBBLE_INLINE F load_s8(const uint8_t* p) {
  const __m128i codes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes));
}
NIBBLE_INLINE F load_e5m2(const uint8_t* p) {
  const __m128i codes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return _mm256_cvtph_ps(_mm_unpacklo_epi8(_mm_setzero_si128(), codes));
}
NIBBLE_INLINE F load_e4m3(const uint8_t* p) {
  const __m128i codes = _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  const __m128i moved = _mm_slli_epi16(codes, 7);  // the sign lies in bits 14 and 15 now
  return _mm256_cvtph_ps(_mm_and_si128(moved, _mm_set1_epi16(static_cast<int16_t>(0xbf80))));
}

}  // namespace
}  // namespace nibble::kernels::avx2

#include "kernels/simd/math.inc"
