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

// 8 numbers of a header: scales or offsets, and each row's number of the super header.
NIBBLE_INLINE __m256 load_f16(const std::byte* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
NIBBLE_INLINE __m256 load_scales(ScaleStore store, const std::byte* p, const std::byte* super) {
  if (store == ScaleStore::kF32) return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
  if (store == ScaleStore::kF16) return load_f16(p);
  if (store == ScaleStore::kSuper) {
    const __m128i times = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(times)), load_f16(super));
  }
  if (store >= ScaleStore::kE4M3) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    const __m256 number = _mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(bytes), 7));
    const __m256 second = _mm256_loadu_ps(reinterpret_cast<const float*>(super));
    return store == ScaleStore::kE4M3 ? _mm256_mul_ps(number, second)
                                      : _mm256_div_ps(number, second);
  }
  const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

// 8 zeros.
NIBBLE_INLINE __m256i load_zeros(int64_t bytes, const std::byte* p) {
  if (bytes == 1) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  }
  return _mm256_cvtepi16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

// What the 8 rows from `row` on of a group do to their codes.
NIBBLE_INLINE __m256 scales_of(const Layout& l, const Header<const std::byte>& h, int64_t row) {
  return load_scales(l.scale_store, h.scale + row * l.scale_bytes,
                     h.super_scale + row * l.super_scale_bytes);
}
NIBBLE_INLINE __m256 offsets_of(const Layout& l, const Header<const std::byte>& h, int64_t row) {
  return load_scales(l.scale_store, h.offset + row * l.scale_bytes, h.super_offset + row * 2);
}
NIBBLE_INLINE __m256i zeros_of(const Layout& l, const Header<const std::byte>& h, int64_t row) {
  return l.zero_bytes == 0 ? _mm256_set1_epi32(l.zero_const)
                           : load_zeros(l.zero_bytes, h.zero + row * l.zero_bytes);
}

// How integer codes are stored: as the packing of that name, and e2m1 in n4, whose doubled values
// 0 1 2 3 4 6 8 12 and their negatives are looked up, plus 12 to be unsigned.
enum class Codes { kN2, kN4, kN6, kN8, kE2M1 };

NIBBLE_INLINE __m256i nibbles(const std::byte* line, int half) {
  return _mm256_and_si256(_mm256_srli_epi16(load(line), 4 * half), _mm256_set1_epi8(15));
}

// Unsigned codes of 8 rows, inputs 16 * half + 4 * j .. + 3 of a block. `block` is the block moved
// to the rows. The arguments are constants where this is used.
template <Codes kCodes>
NIBBLE_INLINE __m256i load_codes(const std::byte* block, int half, int j) {
  if constexpr (kCodes == Codes::kN8) return load(block + (4 * half + j) * 128);
  if constexpr (kCodes == Codes::kN2) {
    return _mm256_and_si256(_mm256_srli_epi16(load(block + half * 128), 2 * j),
                            _mm256_set1_epi8(3));
  }
  const __m256i low = nibbles(block + j * 128, half);
  if constexpr (kCodes == Codes::kN6) {
    const __m256i pairs = load(block + 512 + half * 128);
    const __m256i moved =
        j < 2 ? _mm256_slli_epi16(pairs, 4 - 2 * j) : _mm256_srli_epi16(pairs, 2 * j - 4);
    return _mm256_or_si256(low, _mm256_and_si256(moved, _mm256_set1_epi8(0x30)));
  }
  if constexpr (kCodes == Codes::kE2M1) {
    const __m128i values = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(values), low);
  }
  return low;
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
