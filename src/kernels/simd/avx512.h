// Sixteen floats in a register, for files compiled with AVX-512 F, BW, VL and DQ. See avx2.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

#define NIBBLE_SIMD avx512
#define NIBBLE_INLINE inline __attribute__((always_inline))

namespace nibble::kernels::avx512 {
namespace {

using F = __m512;
using I = __m512i;
constexpr int kLanes = 16;

NIBBLE_INLINE __mmask16 mask_of(int64_t n) {
  return static_cast<__mmask16>((uint32_t{1} << n) - 1);
}

NIBBLE_INLINE F zero() { return _mm512_setzero_ps(); }
NIBBLE_INLINE F all(float v) { return _mm512_set1_ps(v); }
NIBBLE_INLINE F load(const float* p) { return _mm512_loadu_ps(p); }
NIBBLE_INLINE void store(float* p, F v) { _mm512_storeu_ps(p, v); }
NIBBLE_INLINE F load_n(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(mask_of(n), p); }
NIBBLE_INLINE void store_n(float* p, int64_t n, F v) { _mm512_mask_storeu_ps(p, mask_of(n), v); }
NIBBLE_INLINE F keep_n(F v, int64_t n) { return _mm512_maskz_mov_ps(mask_of(n), v); }

NIBBLE_INLINE F add(F a, F b) { return _mm512_add_ps(a, b); }
NIBBLE_INLINE F sub(F a, F b) { return _mm512_sub_ps(a, b); }
NIBBLE_INLINE F mul(F a, F b) { return _mm512_mul_ps(a, b); }
NIBBLE_INLINE F div(F a, F b) { return _mm512_div_ps(a, b); }
NIBBLE_INLINE F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
NIBBLE_INLINE F fnma(F a, F b, F c) { return _mm512_fnmadd_ps(a, b, c); }
// The masked form: g++ 12 warns about the undefined register inside the plain one.
NIBBLE_INLINE F max(F a, F b) { return _mm512_maskz_max_ps(0xffff, a, b); }
NIBBLE_INLINE F min(F a, F b) { return _mm512_maskz_min_ps(0xffff, a, b); }
NIBBLE_INLINE F abs(F v) { return _mm512_andnot_ps(all(-0.0f), v); }
NIBBLE_INLINE F if_less(F a, F b, F yes, F no) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes);
}
NIBBLE_INLINE bool any_not_finite(F v) {
  return _mm512_cmp_ps_mask(abs(v), all(__builtin_inff()), _CMP_NLT_UQ) != 0;
}
template <int kBias>
NIBBLE_INLINE F power_of_two(F t) {
  const I biased = _mm512_add_epi32(_mm512_castps_si512(t), _mm512_set1_epi32(kBias));
  return _mm512_castsi512_ps(_mm512_maskz_slli_epi32(0xffff, biased, 23));
}
NIBBLE_INLINE F swap_pairs(F v) { return _mm512_maskz_permute_ps(0xffff, v, 0xb1); }

NIBBLE_INLINE __m256 low_half(F v) { return _mm512_maskz_extractf32x8_ps(0xff, v, 0); }
NIBBLE_INLINE __m256 high_half(F v) { return _mm512_maskz_extractf32x8_ps(0xff, v, 1); }
NIBBLE_INLINE float sum(F v) {
  const __m256 h = _mm256_add_ps(low_half(v), high_half(v));
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
NIBBLE_INLINE float largest(F v) {
  const __m256 h = _mm256_max_ps(low_half(v), high_half(v));
  __m128 s = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

NIBBLE_INLINE F load_f16(const uint16_t* p) {
  return _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
NIBBLE_INLINE void store_f16(uint16_t* p, F v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_maskz_cvtps_ph(0xffff, v, _MM_FROUND_TO_NEAREST_INT));
}
NIBBLE_INLINE F load_bf16(const uint16_t* p) {
  const I wide =
      _mm512_maskz_cvtepu16_epi32(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return _mm512_castsi512_ps(_mm512_maskz_slli_epi32(0xffff, wide, 16));
}
NIBBLE_INLINE void store_bf16(uint16_t* p, F v) {
  const I bits = _mm512_castps_si512(v);
  const I top = _mm512_maskz_srli_epi32(0xffff, bits, 16);
  const I odd = _mm512_and_si512(top, _mm512_set1_epi32(1));
  const I even = _mm512_maskz_srli_epi32(
      0xffff, _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
  const I quiet = _mm512_or_si512(top, _mm512_set1_epi32(0x40));
  const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  const I code = _mm512_mask_blend_epi32(nan, even, quiet);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_maskz_cvtepi32_epi16(0xffff, code));
}

NIBBLE_INLINE __m128i load_bytes(const uint8_t* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
NIBBLE_INLINE F load_s8(const uint8_t* p) {
  return _mm512_maskz_cvtepi32_ps(0xffff, _mm512_maskz_cvtepi8_epi32(0xffff, load_bytes(p)));
}
NIBBLE_INLINE F load_e5m2(const uint8_t* p) {
  const __m256i codes = _mm256_slli_epi16(_mm256_cvtepu8_epi16(load_bytes(p)), 8);
  return _mm512_maskz_cvtph_ps(0xffff, codes);
}
NIBBLE_INLINE F load_e4m3(const uint8_t* p) {
  const __m256i moved = _mm256_slli_epi16(_mm256_cvtepi8_epi16(load_bytes(p)), 7);
  const __m256i kept = _mm256_and_si256(moved, _mm256_set1_epi16(static_cast<int16_t>(0xbf80)));
  return _mm512_maskz_cvtph_ps(0xffff, kept);
}

}  // namespace
}  // namespace nibble::kernels::avx512

#include "kernels/simd/math.inc"
