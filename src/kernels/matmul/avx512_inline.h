// What the AVX-512 files share. Private to matmul/.
#pragma once

#include <immintrin.h>

#include "kernels/matmul/kernel.h"
#include "kernels/matmul/unroll.h"

namespace nibble::kernels {

NIBBLE_INLINE __m512i load(const std::byte* p) { return _mm512_loadu_si512(p); }
NIBBLE_INLINE __m512i broadcast(const void* p) {
  int32_t v;
  __builtin_memcpy(&v, p, 4);
  return _mm512_set1_epi32(v);
}

// 16 scales or offsets.
NIBBLE_INLINE __m512 load_scales(ScaleStore store, const std::byte* p) {
  if (store == ScaleStore::kF32) return _mm512_loadu_ps(p);
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  if (store == ScaleStore::kF16) return _mm512_cvtph_ps(half);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

// 16 zeros.
NIBBLE_INLINE __m512i load_zeros(int64_t bytes, const std::byte* p) {
  if (bytes == 1) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  return _mm512_cvtepi16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

// The lanes of the first and second half of a tile that are rows of the weight.
NIBBLE_INLINE __mmask16 rows_mask(int64_t rows) {
  return rows >= 16 ? 0xffff : rows <= 0 ? 0 : static_cast<__mmask16>((1u << rows) - 1);
}

}  // namespace nibble::kernels
