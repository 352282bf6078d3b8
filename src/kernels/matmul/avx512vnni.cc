// Integer weights x 16-bit integer activations with AVX-512 VNNI.
//
// Per unit u of inputs (16 to 128) and output n the products of the integers are summed exactly in
// s32; then, in this order and in f32, all kernels of this family on every instruction set do
//
//   y = fma(f32(sum of (code - zero) * q), scale_w * scale_x, y)
//   y = fma(offset, scale_x * (sum of q), y)                        weights with an offset
//
// so their results are equal bit by bit, whatever the number of tokens.
//
// Few tokens: x as two s8 digits, q = 256 h + l. Codes go from memory to vpdpbusd; nothing else is
// read. Many tokens: a panel of (code - zero) in s16 is unpacked into the L2 cache, all tokens are
// multiplied with it by vpdpwssd.
#include <immintrin.h>

#include "kernels/matmul/kernel.h"
#include "kernels/matmul/unroll.h"

namespace nibble::kernels {
namespace {

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

// ---- few tokens -------------------------------------------------------------------------------

// Sums of 32 rows x one token: two registers of 16 rows for each digit.
struct Sums {
  __m512i high0, high1, low0, low1;
};
NIBBLE_INLINE Sums no_sums() {
  const __m512i zero = _mm512_setzero_si512();
  return {zero, zero, zero, zero};
}
NIBBLE_INLINE void add_sums(Sums& a, const Sums& b) {
  a.high0 = _mm512_add_epi32(a.high0, b.high0);
  a.high1 = _mm512_add_epi32(a.high1, b.high1);
  a.low0 = _mm512_add_epi32(a.low0, b.low0);
  a.low1 = _mm512_add_epi32(a.low1, b.low1);
}
// Four inputs: codes u8 of 32 rows, digits at `x`.
NIBBLE_INLINE void dot4(Sums& s, __m512i code0, __m512i code1, const std::byte* x) {
  const __m512i high = broadcast(x);
  const __m512i low = broadcast(x + 32);
  s.high0 = _mm512_dpbusd_epi32(s.high0, code0, high);
  s.high1 = _mm512_dpbusd_epi32(s.high1, code1, high);
  s.low0 = _mm512_dpbusd_epi32(s.low0, code0, low);
  s.low1 = _mm512_dpbusd_epi32(s.low1, code1, low);
}

// A block of 32 inputs is added in two independent chains: for n4 the first and second half of it
// (which the nibbles keep apart), for n8 in turns.
template <int kTokens>
NIBBLE_INLINE void dot_block_n4(Sums (&a)[kTokens], Sums (&b)[kTokens], const std::byte* codes,
                                const std::byte* x, int64_t token_bytes) {
  const __m512i nibble = _mm512_set1_epi8(15);
  NIBBLE_UNROLL
  for (int j = 0; j < 4; ++j) {
    const __m512i both0 = load(codes + j * 128);
    const __m512i both1 = load(codes + j * 128 + 64);
    const __m512i first0 = _mm512_and_si512(both0, nibble);
    const __m512i first1 = _mm512_and_si512(both1, nibble);
    const __m512i second0 = _mm512_and_si512(_mm512_srli_epi16(both0, 4), nibble);
    const __m512i second1 = _mm512_and_si512(_mm512_srli_epi16(both1, 4), nibble);
    NIBBLE_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      dot4(a[t], first0, first1, x + t * token_bytes + 4 * j);
      dot4(b[t], second0, second1, x + t * token_bytes + 4 * j + 16);
    }
  }
}
template <int kTokens>
NIBBLE_INLINE void dot_block_n8(Sums (&a)[kTokens], Sums (&b)[kTokens], const std::byte* codes,
                                const std::byte* x, int64_t token_bytes) {
  NIBBLE_UNROLL
  for (int j = 0; j < 8; ++j) {
    const __m512i code0 = load(codes + j * 128);
    const __m512i code1 = load(codes + j * 128 + 64);
    NIBBLE_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      dot4(j % 2 == 0 ? a[t] : b[t], code0, code1, x + t * token_bytes + 4 * j);
    }
  }
}
// A unit of 16 is half a block: its codes are the low or the high nibbles, or half of the lines.
template <Packing kPacking, int kTokens>
NIBBLE_INLINE void dot_half(Sums (&a)[kTokens], int half, const std::byte* codes,
                            const std::byte* x, int64_t token_bytes) {
  const __m512i nibble = _mm512_set1_epi8(15);
  NIBBLE_UNROLL
  for (int j = 0; j < 4; ++j) {
    const std::byte* line = codes + (kPacking == Packing::kN4 ? j : j + 4 * half) * 128;
    __m512i code0 = load(line);
    __m512i code1 = load(line + 64);
    if constexpr (kPacking == Packing::kN4) {
      code0 = _mm512_and_si512(_mm512_srli_epi16(code0, 4 * half), nibble);
      code1 = _mm512_and_si512(_mm512_srli_epi16(code1, 4 * half), nibble);
    }
    NIBBLE_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      dot4(a[t], code0, code1, x + t * token_bytes + 16 * half + 4 * j);
    }
  }
}

// The scales, zeros and offsets of 32 rows for one unit, and what they make of its sums.
struct Numbers {
  __m512 scale0, scale1, offset0, offset1;
  __m512i zero0, zero1;
};
NIBBLE_INLINE Numbers load_numbers(const Layout& l, const std::byte* header, int64_t set) {
  const std::byte* scale = header + set * kTileRows * l.scale_bytes;
  const std::byte* zeros = header + l.sets * kTileRows * l.scale_bytes;
  const std::byte* zero = zeros + set * kTileRows * l.zero_bytes;
  const std::byte* offset =
      zeros + l.sets * kTileRows * l.zero_bytes + set * kTileRows * l.scale_bytes;
  Numbers out;
  out.scale0 = load_scales(l.scale_store, scale);
  out.scale1 = load_scales(l.scale_store, scale + 16 * l.scale_bytes);
  out.zero0 = out.zero1 = _mm512_set1_epi32(l.zero_const);
  if (l.zero_bytes != 0) {
    out.zero0 = load_zeros(l.zero_bytes, zero);
    out.zero1 = load_zeros(l.zero_bytes, zero + 16 * l.zero_bytes);
  }
  out.offset0 = out.offset1 = _mm512_setzero_ps();
  if (l.has_offset) {
    out.offset0 = load_scales(l.scale_store, offset);
    out.offset1 = load_scales(l.scale_store, offset + 16 * l.scale_bytes);
  }
  return out;
}

template <int kTokens>
NIBBLE_INLINE void add_unit(const Layout& l, const Numbers& w, const Sums (&sums)[kTokens],
                            const TokenBlock& x, int64_t unit, __m512 (&y0)[kTokens],
                            __m512 (&y1)[kTokens]) {
  NIBBLE_UNROLL
  for (int t = 0; t < kTokens; ++t) {
    const int64_t at = unit * kTokens + t;
    const __m512i sum_x = _mm512_set1_epi32(x.sum[at]);
    __m512i sum0 = _mm512_add_epi32(_mm512_slli_epi32(sums[t].high0, 8), sums[t].low0);
    __m512i sum1 = _mm512_add_epi32(_mm512_slli_epi32(sums[t].high1, 8), sums[t].low1);
    if (l.zero_bytes != 0) {
      sum0 = _mm512_sub_epi32(sum0, _mm512_mullo_epi32(w.zero0, sum_x));
      sum1 = _mm512_sub_epi32(sum1, _mm512_mullo_epi32(w.zero1, sum_x));
    } else {
      const __m512i zero_sum = _mm512_set1_epi32(l.zero_const * x.sum[at]);
      sum0 = _mm512_sub_epi32(sum0, zero_sum);
      sum1 = _mm512_sub_epi32(sum1, zero_sum);
    }
    const __m512 scale_x = _mm512_set1_ps(x.scale[at]);
    y0[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum0), _mm512_mul_ps(w.scale0, scale_x), y0[t]);
    y1[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum1), _mm512_mul_ps(w.scale1, scale_x), y1[t]);
    if (l.has_offset) {
      const __m512 scaled = _mm512_set1_ps(x.scaled_sum[at]);
      y0[t] = _mm512_fmadd_ps(w.offset0, scaled, y0[t]);
      y1[t] = _mm512_fmadd_ps(w.offset1, scaled, y1[t]);
    }
  }
}

template <Packing kPacking, int kTokens>
NIBBLE_INLINE void gemv_tile(const KernelArgs& args, const std::byte* tile, const TokenBlock& x,
                             __m512 (&y0)[kTokens], __m512 (&y1)[kTokens]) {
  const Layout& l = *args.layout;
  const int64_t token_bytes = args.x->token_bytes;
  const std::byte* at = tile;
  const std::byte* digits = x.data;
  int64_t unit = 0;
  int64_t left = l.k_pad / kBlockK;
  const int64_t group_blocks = l.group / kBlockK;
  const int64_t unit_blocks = l.unit / kBlockK;
  while (left > 0) {
    const std::byte* header = at;
    at += l.header_bytes;
    int64_t blocks = group_blocks < left ? group_blocks : left;
    left -= blocks;
    if (l.unit == 16) {
      NIBBLE_UNROLL
      for (int half = 0; half < 2; ++half) {
        Sums sums[kTokens];
        NIBBLE_UNROLL
        for (int t = 0; t < kTokens; ++t) sums[t] = no_sums();
        dot_half<kPacking, kTokens>(sums, half, at, digits, token_bytes);
        add_unit<kTokens>(l, load_numbers(l, header, half), sums, x, unit++, y0, y1);
      }
      at += l.block_bytes;
      digits += 64;
      continue;
    }
    const Numbers numbers = load_numbers(l, header, 0);
    while (blocks > 0) {
      Sums a[kTokens];
      Sums b[kTokens];
      NIBBLE_UNROLL
      for (int t = 0; t < kTokens; ++t) a[t] = b[t] = no_sums();
      const int64_t end = blocks > unit_blocks ? blocks - unit_blocks : 0;
      for (; blocks > end; --blocks) {
        if constexpr (kPacking == Packing::kN4) {
          dot_block_n4<kTokens>(a, kTokens > 1 ? a : b, at, digits, token_bytes);
        } else {
          dot_block_n8<kTokens>(a, kTokens > 1 ? a : b, at, digits, token_bytes);
        }
        at += l.block_bytes;
        digits += 64;
      }
      if constexpr (kTokens == 1) add_sums(a[0], b[0]);
      add_unit<kTokens>(l, numbers, a, x, unit++, y0, y1);
    }
  }
}

// The lanes of the first and second half of a tile that are rows of the weight.
NIBBLE_INLINE __mmask16 rows_mask(int64_t rows) {
  return rows >= 16 ? 0xffff : rows <= 0 ? 0 : static_cast<__mmask16>((1u << rows) - 1);
}

template <Packing kPacking, int kTokens>
void gemv(const KernelArgs& args, int64_t m) {
  const Layout& l = *args.layout;
  const TokenBlock x = token_block(*args.x, m);
  for (int64_t tile = args.tile_begin; tile < args.tile_end; ++tile) {
    __m512 y0[kTokens];
    __m512 y1[kTokens];
    NIBBLE_UNROLL
    for (int t = 0; t < kTokens; ++t) y0[t] = y1[t] = _mm512_setzero_ps();
    gemv_tile<kPacking, kTokens>(args, args.weight->bytes.data() + tile * l.tile_bytes, x, y0, y1);
    const int64_t rows = l.n - tile * kTileRows;
    NIBBLE_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      float* y = args.y + (m + t) * args.ldy + tile * kTileRows;
      _mm512_mask_storeu_ps(y, rows_mask(rows), y0[t]);
      _mm512_mask_storeu_ps(y + 16, rows_mask(rows - 16), y1[t]);
    }
  }
}

template <Packing kPacking>
NIBBLE_INLINE void few_tokens(const KernelArgs& args) {
  for (int64_t m = args.m_begin; m < args.m_end; m += args.x->rows) {
    switch (token_block(*args.x, m).rows) {
      case 1:
        gemv<kPacking, 1>(args, m);
        break;
      case 2:
        gemv<kPacking, 2>(args, m);
        break;
      case 3:
        gemv<kPacking, 3>(args, m);
        break;
      default:
        gemv<kPacking, 4>(args, m);
    }
  }
}

}  // namespace

void matmul_s8x2_u4g_avx512vnni(const KernelArgs& args) noexcept { few_tokens<Packing::kN4>(args); }
void matmul_s8x2_u8g_avx512vnni(const KernelArgs& args) noexcept { few_tokens<Packing::kN8>(args); }

}  // namespace nibble::kernels
