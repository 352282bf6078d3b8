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

// 16 numbers of a header: scales or offsets, and each row's number of the super header.
NIBBLE_INLINE __m512 load_f16(const std::byte* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
NIBBLE_INLINE __m512 load_scales(ScaleStore store, const std::byte* p, const std::byte* super) {
  if (store == ScaleStore::kF32) return _mm512_loadu_ps(p);
  if (store == ScaleStore::kF16) return load_f16(p);
  if (store == ScaleStore::kSuper) {
    const __m128i times = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(times)), load_f16(super));
  }
  if (store >= ScaleStore::kE4M3) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m512 number = _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 7));
    const __m512 second = _mm512_loadu_ps(super);
    return store == ScaleStore::kE4M3 ? _mm512_mul_ps(number, second)
                                      : _mm512_div_ps(number, second);
  }
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

// 16 zeros.
NIBBLE_INLINE __m512i load_zeros(int64_t bytes, const std::byte* p) {
  if (bytes == 1) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  return _mm512_cvtepi16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

// What the 16 rows from `row` on of a group do to their codes.
struct Numbers {
  __m512 scale;
  __m512 offset;
  __m512i zero;
};
NIBBLE_INLINE Numbers load_numbers(const Layout& l, const Header<const std::byte>& h, int64_t row) {
  Numbers out;
  out.scale = load_scales(l.scale_store, h.scale + row * l.scale_bytes,
                          h.super_scale + row * l.super_scale_bytes);
  out.offset = _mm512_setzero_ps();
  if (l.has_offset) {
    out.offset =
        load_scales(l.scale_store, h.offset + row * l.scale_bytes, h.super_offset + row * 2);
  }
  out.zero = l.zero_bytes == 0 ? _mm512_set1_epi32(l.zero_const)
                               : load_zeros(l.zero_bytes, h.zero + row * l.zero_bytes);
  return out;
}

// How integer codes are stored: as the packing of that name, and e2m1 in n4, whose doubled values
// 0 1 2 3 4 6 8 12 and their negatives are looked up, plus 12 to be unsigned.
enum class Codes { kN2, kN4, kN6, kN8, kE2M1 };

NIBBLE_INLINE __m512i nibbles(const std::byte* line, int half) {
  return _mm512_and_si512(_mm512_srli_epi16(load(line), 4 * half), _mm512_set1_epi8(15));
}

// Unsigned codes of 16 rows, inputs 16 * half + 4 * j .. + 3 of a block. `block` is the block moved
// to the rows. The arguments are constants where this is used.
template <Codes kCodes>
NIBBLE_INLINE __m512i load_codes(const std::byte* block, int half, int j) {
  if constexpr (kCodes == Codes::kN8) return load(block + (4 * half + j) * 128);
  if constexpr (kCodes == Codes::kN2) {
    return _mm512_and_si512(_mm512_srli_epi16(load(block + half * 128), 2 * j),
                            _mm512_set1_epi8(3));
  }
  const __m512i low = nibbles(block + j * 128, half);
  if constexpr (kCodes == Codes::kN6) {
    const __m512i pairs = load(block + 512 + half * 128);
    const __m512i moved =
        j < 2 ? _mm512_slli_epi16(pairs, 4 - 2 * j) : _mm512_srli_epi16(pairs, 2 * j - 4);
    return _mm512_or_si512(low, _mm512_and_si512(moved, _mm512_set1_epi8(0x30)));
  }
  if constexpr (kCodes == Codes::kE2M1) {
    const __m128i values = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(values), low);
  }
  return low;
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
