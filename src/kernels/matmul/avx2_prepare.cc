#include <immintrin.h>

#include "kernels/matmul/avx2.h"

namespace nibble::kernels::avx2 {
namespace {

// The largest of 8 numbers that are not negative.
int32_t largest(__m256i v) {
  const __m128i half = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  const __m128i quarter = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(quarter, _mm_shuffle_epi32(quarter, 0xb1)));
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

// Magnitudes compare like the integers of their bits, and what is not finite is the largest.
Scale scale_of(int32_t largest_bits) {
  if (largest_bits >= 0x7f800000) return {__builtin_nanf(""), 0};
  float absmax;
  __builtin_memcpy(&absmax, &largest_bits, 4);
  if (absmax < 0x1p-100f) return {0, 0};
  return {absmax * (1.0f / 32512.0f), 32512.0f / absmax};
}

__m256i round(const float* x, __m256 inverse) {
  return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), inverse));
}

// One unit of `count` inputs, a multiple of 16; gives its sum.
inline __attribute__((always_inline)) int32_t quantize_unit(const float* x, int64_t count,
                                                            int16_t* q, float* scale) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i most = _mm256_setzero_si256();
  for (int64_t i = 0; i < count; i += 8) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i));
    most = _mm256_max_epi32(most, _mm256_and_si256(bits, magnitude));
  }
  const Scale s = scale_of(largest(most));
  *scale = s.scale;
  if (s.inverse == 0) {  // nan * 0 would not be 0
    for (int64_t i = 0; i < count; ++i) q[i] = 0;
    return 0;
  }
  const __m256 inverse = _mm256_set1_ps(s.inverse);
  const __m256i one = _mm256_set1_epi16(1);
  __m256i sum = _mm256_setzero_si256();
  for (int64_t i = 0; i < count; i += 16) {
    const __m256i both = _mm256_packs_epi32(round(x + i, inverse), round(x + i + 8, inverse));
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(both, one));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(q + i), _mm256_permute4x64_epi64(both, 0xd8));
  }
  return total(sum);
}

}  // namespace

void quantize_s16(const float* x, int64_t k_pad, int64_t unit, int16_t* q, float* scale,
                  int32_t* sum, float* scaled_sum, int64_t stride) noexcept {
  for (int64_t k = 0; k < k_pad; k += unit) {
    const int64_t count = unit < k_pad - k ? unit : k_pad - k;
    // The usual unit is unrolled.
    *sum = count == 32 ? quantize_unit(x + k, 32, q + k, scale)
                       : quantize_unit(x + k, count, q + k, scale);
    *scaled_sum = *scale * static_cast<float>(*sum);
    sum += stride;
    scale += stride;
    scaled_sum += stride;
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

namespace {

// Lane j of v[i] becomes lane i of v[j].
void transpose(__m256i (&v)[8]) {
  __m256i pair[8];
  for (int i = 0; i < 4; ++i) {
    pair[2 * i] = _mm256_unpacklo_epi32(v[2 * i], v[2 * i + 1]);
    pair[2 * i + 1] = _mm256_unpackhi_epi32(v[2 * i], v[2 * i + 1]);
  }
  __m256i four[8];
  for (int i = 0; i < 2; ++i) {
    four[4 * i] = _mm256_unpacklo_epi64(pair[4 * i], pair[4 * i + 2]);
    four[4 * i + 1] = _mm256_unpackhi_epi64(pair[4 * i], pair[4 * i + 2]);
    four[4 * i + 2] = _mm256_unpacklo_epi64(pair[4 * i + 1], pair[4 * i + 3]);
    four[4 * i + 3] = _mm256_unpackhi_epi64(pair[4 * i + 1], pair[4 * i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    v[i] = _mm256_permute2x128_si256(four[i], four[i + 4], 0x20);
    v[i + 4] = _mm256_permute2x128_si256(four[i], four[i + 4], 0x31);
  }
}

// The first `count` lanes. Masked stores are slow on Zen 2 and 3.
void store_lanes(__m256i v, int64_t count, int32_t* to) {
  if (count >= 8) return _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), v);
  __m128i half = _mm256_castsi256_si128(v);
  if ((count & 4) != 0) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), half);
    half = _mm256_extracti128_si256(v, 1);
    to += 4;
  }
  if ((count & 2) != 0) {
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), half);
    half = _mm_unpackhi_epi64(half, half);
    to += 2;
  }
  if ((count & 1) != 0) *to = _mm_cvtsi128_si32(half);
}

// (rows, lanes) of 32-bit lanes, 8 lanes x 8 rows at a time -> (lanes, rows). `order` shuffles the
// bytes of each 128 bits on the way.
void spread(const int32_t* from, int64_t lanes, int64_t rows, __m256i order, int32_t* to) {
  for (int64_t first = 0; first < rows; first += 8) {
    const int64_t count = rows - first;
    for (int64_t lane = 0; lane < lanes; lane += 8) {
      __m256i v[8];
      for (int64_t i = 0; i < 8; ++i) {
        const int64_t row = first + (i < count ? i : count - 1);
        const int32_t* at = from + row * lanes + lane;
        v[i] = _mm256_shuffle_epi8(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)), order);
      }
      transpose(v);
      for (int64_t i = 0; i < 8; ++i) store_lanes(v[i], count, to + (lane + i) * rows + first);
    }
  }
}

}  // namespace

void spread_pairs(const int16_t* q, int64_t k_pad, int64_t rows, int32_t* panel) noexcept {
  const __m128i order = _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
  spread(reinterpret_cast<const int32_t*>(q), k_pad / 2, rows, _mm256_broadcastsi128_si256(order),
         panel);
}

void spread_floats(const float* x, int64_t k_pad, int64_t rows, float* panel) noexcept {
  const __m128i same = _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  spread(reinterpret_cast<const int32_t*>(x), k_pad, rows, _mm256_broadcastsi128_si256(same),
         reinterpret_cast<int32_t*>(panel));
}

}  // namespace nibble::kernels::avx2
