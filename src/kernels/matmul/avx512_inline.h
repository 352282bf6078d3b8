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

// The parts of a header, for one of its sets.
struct HeaderParts {
  const std::byte* scale;
  const std::byte* zero;
  const std::byte* offset;
};
NIBBLE_INLINE HeaderParts parts_of(const Layout& l, const std::byte* header, int64_t set) {
  const std::byte* zeros = header + l.sets * kTileRows * l.scale_bytes;
  return {header + set * kTileRows * l.scale_bytes, zeros + set * kTileRows * l.zero_bytes,
          zeros + l.sets * kTileRows * l.zero_bytes + set * kTileRows * l.scale_bytes};
}

// The lanes of the first and second half of a tile that are rows of the weight.
NIBBLE_INLINE __mmask16 rows_mask(int64_t rows) {
  return rows >= 16 ? 0xffff : rows <= 0 ? 0 : static_cast<__mmask16>((1u << rows) - 1);
}

// Moves (tokens, 32) between y and its dense copy; what lies beyond the last row of the weight
// stays untouched.
NIBBLE_INLINE void load_y(const float* y, int64_t ldy, int64_t tokens, int64_t rows, float* dense) {
  for (int64_t r = 0; r < tokens; ++r) {
    _mm512_store_ps(dense + r * 32, _mm512_maskz_loadu_ps(rows_mask(rows), y + r * ldy));
    _mm512_store_ps(dense + r * 32 + 16,
                    _mm512_maskz_loadu_ps(rows_mask(rows - 16), y + r * ldy + 16));
  }
}
NIBBLE_INLINE void store_y(const float* dense, int64_t tokens, int64_t rows, float* y,
                           int64_t ldy) {
  for (int64_t r = 0; r < tokens; ++r) {
    _mm512_mask_storeu_ps(y + r * ldy, rows_mask(rows), _mm512_load_ps(dense + r * 32));
    _mm512_mask_storeu_ps(y + r * ldy + 16, rows_mask(rows - 16),
                          _mm512_load_ps(dense + r * 32 + 16));
  }
}

}  // namespace nibble::kernels
