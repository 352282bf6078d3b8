#include <immintrin.h>

#include "kernels/matmul/avx2.h"

namespace nibble::kernels::avx2 {
namespace {

float largest(__m256 v) {
  const __m128 half = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  const __m128 quarter = _mm_max_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_max_ss(quarter, _mm_shuffle_ps(quarter, quarter, 1)));
}

int32_t total(__m256i v) {
  const __m128i half = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  const __m128i quarter = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(quarter, _mm_shuffle_epi32(quarter, 0xb1)));
}

struct Scale {
  float scale;
  float inverse;
};

Scale scale_of(const float* x, int64_t count) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  __m256 most = _mm256_setzero_ps();
  __m256 nothing = _mm256_setzero_ps();  // x - x: nan where x is not finite
  for (int64_t i = 0; i < count; i += 8) {
    const __m256 v = _mm256_loadu_ps(x + i);
    most = _mm256_max_ps(most, _mm256_andnot_ps(sign, v));
    nothing = _mm256_add_ps(nothing, _mm256_sub_ps(v, v));
  }
  if (_mm256_movemask_ps(_mm256_cmp_ps(nothing, nothing, _CMP_UNORD_Q)) != 0) {
    return {__builtin_nanf(""), 0};
  }
  const float absmax = largest(most);
  if (absmax < 0x1p-100f) return {0, 0};
  return {absmax / 32512.0f, 32512.0f / absmax};
}

}  // namespace

void quantize_s16(const float* x, int64_t k_pad, int64_t unit, int16_t* q, float* scale,
                  int32_t* sum, float* scaled_sum, int64_t stride) noexcept {
  for (int64_t begin = 0; begin < k_pad; begin += unit) {
    const int64_t count = unit < k_pad - begin ? unit : k_pad - begin;
    const Scale s = scale_of(x + begin, count);
    const __m256 inverse = _mm256_set1_ps(s.inverse);
    __m256i all = _mm256_setzero_si256();
    for (int64_t i = begin; i < begin + count; i += 16) {
      __m256i a = _mm256_setzero_si256();
      __m256i b = _mm256_setzero_si256();
      if (s.inverse != 0) {  // nan * 0 would not be 0
        a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i), inverse));
        b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i + 8), inverse));
      }
      all = _mm256_add_epi32(all, _mm256_add_epi32(a, b));
      const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(q + i), packed);
    }
    const int64_t u = begin / unit * stride;
    scale[u] = s.scale;
    sum[u] = total(all);
    scaled_sum[u] = s.scale * static_cast<float>(sum[u]);
  }
}

void split_digits(const int16_t* q, int64_t k_pad, int8_t* out) noexcept {
  const __m256i half = _mm256_set1_epi16(128);
  for (int64_t k = 0; k < k_pad; k += 32, out += 64) {
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(q + k));
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(q + k + 16));
    const __m256i ah = _mm256_srai_epi16(_mm256_add_epi16(a, half), 8);
    const __m256i bh = _mm256_srai_epi16(_mm256_add_epi16(b, half), 8);
    const __m256i al = _mm256_sub_epi16(a, _mm256_slli_epi16(ah, 8));
    const __m256i bl = _mm256_sub_epi16(b, _mm256_slli_epi16(bh, 8));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out),
                        _mm256_permute4x64_epi64(_mm256_packs_epi16(ah, bh), 0xd8));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 32),
                        _mm256_permute4x64_epi64(_mm256_packs_epi16(al, bl), 0xd8));
  }
}

void spread_pairs(const int16_t* q, int64_t k_pad, int64_t rows, int64_t r,
                  int32_t* panel) noexcept {
  const __m128i order = _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
  int32_t* to = panel + r;
  for (int64_t k = 0; k < k_pad; k += 8, to += 4 * rows) {
    const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(q + k));
    const __m128i pairs = _mm_shuffle_epi8(v, order);
    to[0] = _mm_extract_epi32(pairs, 0);
    to[rows] = _mm_extract_epi32(pairs, 1);
    to[2 * rows] = _mm_extract_epi32(pairs, 2);
    to[3 * rows] = _mm_extract_epi32(pairs, 3);
  }
}

}  // namespace nibble::kernels::avx2
