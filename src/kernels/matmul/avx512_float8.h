// 8-bit floats to f16 with AVX-512. Private to matmul/.
#pragma once

#include <immintrin.h>

#include "kernels/matmul/float8.h"
#include "kernels/matmul/unroll.h"

namespace nibble::kernels {

// Bytes in the high halves of 16-bit lanes -> f16 that, times kFix, are the numbers.
template <Float8 kFloat>
NIBBLE_INLINE __m512i half_of(__m512i high) {
  constexpr bool kThreeBits = kFloat == Float8::kE4M3 || kFloat == Float8::kE4M3FNUZ;
  if constexpr (kThreeBits) {  // s eeee mmm 0.. -> s 0eeee mmm 0..
    high = _mm512_and_si512(_mm512_srai_epi16(high, 1), _mm512_set1_epi16(-0x4080));
  }
  if constexpr (kFloat == Float8::kE4M3) {  // 1111.111 is nan: its carry sets the last exponent bit
    const __m512i carry = _mm512_add_epi16(high, _mm512_set1_epi16(0x80));
    high = _mm512_or_si512(high, _mm512_and_si512(carry, _mm512_set1_epi16(0x4000)));
  } else if constexpr (kFloat == Float8::kE4M3FNUZ) {  // -0 is nan
    const __mmask32 nan = _mm512_cmpeq_epi16_mask(high, _mm512_set1_epi16(-0x8000));
    high = _mm512_mask_set1_epi16(high, nan, 0x7e00);
  }
  return high;
}

// The even and the odd bytes of a line, as f16.
template <Float8 kFloat>
NIBBLE_INLINE __m512i even_halves(__m512i line) {
  return half_of<kFloat>(_mm512_slli_epi16(line, 8));
}
template <Float8 kFloat>
NIBBLE_INLINE __m512i odd_halves(__m512i line) {
  return half_of<kFloat>(_mm512_and_si512(line, _mm512_set1_epi16(-0x100)));
}

}  // namespace nibble::kernels
