// What the AVX2 files share. Private to matmul/.
#pragma once

#include <immintrin.h>

#include "kernels/matmul/kernel.h"
#include "kernels/matmul/unroll.h"

namespace nibble::kernels {

NIBBLE_INLINE __m256i load(const std::byte* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
NIBBLE_INLINE __m256i broadcast(const void* p) {
  int32_t v;
  __builtin_memcpy(&v, p, 4);
  return _mm256_set1_epi32(v);
}

// 8 scales or offsets.
NIBBLE_INLINE __m256 load_scales(ScaleStore store, const std::byte* p) {
  if (store == ScaleStore::kF32) return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
  const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  if (store == ScaleStore::kF16) return _mm256_cvtph_ps(half);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

// 8 zeros.
NIBBLE_INLINE __m256i load_zeros(int64_t bytes, const std::byte* p) {
  if (bytes == 1) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  }
  return _mm256_cvtepi16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
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

// Moves (tokens, 32) between y and its dense copy; what lies beyond the last row of the weight
// stays untouched.
NIBBLE_INLINE void load_y(const float* y, int64_t ldy, int64_t tokens, int64_t rows, float* dense) {
  const int64_t count = rows < kTileRows ? rows : kTileRows;
  for (int64_t t = 0; t < tokens; ++t) {
    __builtin_memcpy(dense + t * kTileRows, y + t * ldy, static_cast<size_t>(count) * 4);
  }
}
NIBBLE_INLINE void store_y(const float* dense, int64_t tokens, int64_t rows, float* y,
                           int64_t ldy) {
  if (rows >= kTileRows) {
    for (int64_t t = 0; t < tokens; ++t) {
      NIBBLE_UNROLL
      for (int64_t i = 0; i < kTileRows; i += 8) {
        _mm256_storeu_ps(y + t * ldy + i, _mm256_load_ps(dense + t * kTileRows + i));
      }
    }
    return;
  }
  for (int64_t t = 0; t < tokens; ++t) {
    __builtin_memcpy(y + t * ldy, dense + t * kTileRows, static_cast<size_t>(rows) * 4);
  }
}

}  // namespace nibble::kernels
