// 8-bit floats to f16 with AVX2. Private to matmul/.
#pragma once

#include <immintrin.h>

#include "kernels/matmul/float8.h"
#include "kernels/matmul/unroll.h"

namespace nibble::kernels {

// Bytes in the high halves of 16-bit lanes -> f16 that, times kFix, are the numbers.
template <Float8 kFloat>
NIBBLE_INLINE __m256i half_of(__m256i high) {
  constexpr bool kThreeBits = kFloat == Float8::kE4M3 || kFloat == Float8::kE4M3FNUZ;
  if constexpr (kThreeBits) {  // s eeee mmm 0.. -> s 0eeee mmm 0..
    high = _mm256_and_si256(_mm256_srai_epi16(high, 1), _mm256_set1_epi16(-0x4080));
  }
  if constexpr (kFloat == Float8::kE4M3) {  // 1111.111 is nan: its carry sets the last exponent bit
    const __m256i carry = _mm256_add_epi16(high, _mm256_set1_epi16(0x80));
    high = _mm256_or_si256(high, _mm256_and_si256(carry, _mm256_set1_epi16(0x4000)));
  } else if constexpr (kFloat == Float8::kE4M3FNUZ) {  // -0 is nan
    const __m256i nan = _mm256_cmpeq_epi16(high, _mm256_set1_epi16(-0x8000));
    high = _mm256_or_si256(high, _mm256_and_si256(nan, _mm256_set1_epi16(0x7e00)));
  }
  return high;
}

// The even and the odd bytes of a line, as f16.
template <Float8 kFloat>
NIBBLE_INLINE __m256i even_halves(__m256i line) {
  return half_of<kFloat>(_mm256_slli_epi16(line, 8));
}
template <Float8 kFloat>
NIBBLE_INLINE __m256i odd_halves(__m256i line) {
  return half_of<kFloat>(_mm256_and_si256(line, _mm256_set1_epi16(-0x100)));
}

}  // namespace nibble::kernels
