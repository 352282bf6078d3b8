// Integer weights x 16-bit integer activations with AVX-512 VNNI, few tokens.
//
// Per unit u of inputs (16 to 128) and output n the products of the integers are summed exactly in
// s32; then, in this order and in f32, all kernels of this family on every instruction set do
//
//   y = fma(f32(sum of (code - zero) * q), scale_w * scale_x, y)
//   y = fma(offset, scale_x * (sum of q), y)                        weights with an offset
//
// so their results are equal bit by bit, whatever the number of tokens.
//
// Here x is two s8 digits, q = 256 h + l, and codes go from memory to vpdpbusd.
#include "kernels/matmul/avx512_inline.h"

namespace nibble::kernels {
namespace {

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

// Halves [kFirst, kEnd) of a block, each into its own sums (which may be the same).
template <Codes kCodes, int kTokens, int kFirst, int kEnd>
NIBBLE_INLINE void dot_block(Sums (&first)[kTokens], Sums (&second)[kTokens],
                             const std::byte* block, const std::byte* x, int64_t token_bytes) {
  NIBBLE_UNROLL
  for (int j = 0; j < 4; ++j) {
    NIBBLE_UNROLL
    for (int half = kFirst; half < kEnd; ++half) {
      const __m512i code0 = load_codes<kCodes>(block, half, j);
      const __m512i code1 = load_codes<kCodes>(block + 64, half, j);
      NIBBLE_UNROLL
      for (int t = 0; t < kTokens; ++t) {
        dot4(half == 0 ? first[t] : second[t], code0, code1,
             x + t * token_bytes + 16 * half + 4 * j);
      }
    }
  }
}

// y of 16 rows += what the sums of one unit stand for.
NIBBLE_INLINE __m512 add_rows(const Layout& l, const Numbers& w, __m512i high, __m512i low,
                              const TokenBlock& x, int64_t at, __m512 y) {
  __m512i sum = _mm512_add_epi32(_mm512_slli_epi32(high, 8), low);
  if (l.zero_bytes != 0) {
    sum = _mm512_sub_epi32(sum, _mm512_mullo_epi32(w.zero, _mm512_set1_epi32(x.sum[at])));
  } else {
    sum = _mm512_sub_epi32(sum, _mm512_set1_epi32(l.zero_const * x.sum[at]));
  }
  const __m512 scale = _mm512_mul_ps(w.scale, _mm512_set1_ps(x.scale[at]));
  y = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, y);
  if (l.has_offset) y = _mm512_fmadd_ps(w.offset, _mm512_set1_ps(x.scaled_sum[at]), y);
  return y;
}
template <int kTokens>
NIBBLE_INLINE void add_unit(const Layout& l, const Header<const std::byte>& header,
                            const Sums (&sums)[kTokens], const TokenBlock& x, int64_t unit,
                            __m512 (&y0)[kTokens], __m512 (&y1)[kTokens]) {
  const Numbers w0 = load_numbers(l, header, 0);
  const Numbers w1 = load_numbers(l, header, 16);
  NIBBLE_UNROLL
  for (int t = 0; t < kTokens; ++t) {
    const int64_t at = unit * kTokens + t;
    y0[t] = add_rows(l, w0, sums[t].high0, sums[t].low0, x, at, y0[t]);
    y1[t] = add_rows(l, w1, sums[t].high1, sums[t].low1, x, at, y1[t]);
  }
}

// A header whose scales serve 16 inputs each, and its block.
template <Codes kCodes, int kTokens>
NIBBLE_INLINE void multiply_halves(const Layout& l, const std::byte* at, const std::byte* super,
                                   const TokenBlock& x, const std::byte* digits,
                                   int64_t token_bytes, int64_t unit, __m512 (&y0)[kTokens],
                                   __m512 (&y1)[kTokens]) {
  Sums sums[kTokens];
  NIBBLE_UNROLL
  for (int t = 0; t < kTokens; ++t) sums[t] = no_sums();
  const std::byte* block = at + l.header_bytes;
  dot_block<kCodes, kTokens, 0, 1>(sums, sums, block, digits, token_bytes);
  add_unit<kTokens>(l, header_parts(l, at, super, 0), sums, x, unit, y0, y1);
  NIBBLE_UNROLL
  for (int t = 0; t < kTokens; ++t) sums[t] = no_sums();
  dot_block<kCodes, kTokens, 1, 2>(sums, sums, block, digits, token_bytes);
  add_unit<kTokens>(l, header_parts(l, at, super, 1), sums, x, unit + 1, y0, y1);
}

template <Codes kCodes, int kTokens>
NIBBLE_INLINE void multiply_tile(const KernelArgs& args, const std::byte* tile, const TokenBlock& x,
                                 __m512 (&y0)[kTokens], __m512 (&y1)[kTokens]) {
  constexpr int64_t kBlockBytes = kCodes == Codes::kN2   ? 256
                                  : kCodes == Codes::kN6 ? 768
                                  : kCodes == Codes::kN8 ? 1024
                                                         : 512;
  const Layout& l = *args.layout;
  const int64_t token_bytes = args.x->token_bytes;
  const int64_t group_blocks = l.group / kBlockK;
  const int64_t unit_blocks = l.unit / kBlockK;
  const std::byte* at = tile;
  const std::byte* super = tile;
  const std::byte* digits = x.data;
  int64_t unit = 0;
  int64_t left = l.k_pad / kBlockK;
  int64_t until_super = 0;
  while (left > 0) {
    if (until_super-- == 0) {
      super = at;
      at += l.super_bytes;
      until_super = l.super_groups - 1;
    }
    int64_t blocks = group_blocks < left ? group_blocks : left;
    left -= blocks;
    if (l.unit == 16) {
      prefetch_codes(at, kBlockBytes, args.ahead);
      multiply_halves<kCodes, kTokens>(l, at, super, x, digits, token_bytes, unit, y0, y1);
      at += l.header_bytes + l.block_bytes;
      digits += 64;
      unit += 2;
      continue;
    }
    const Header<const std::byte> header = header_parts(l, at, super, 0);
    at += l.header_bytes;
    while (blocks > 0) {
      // One token alone would wait for its sums: it has two of each.
      Sums a[kTokens];
      Sums b[kTokens];
      NIBBLE_UNROLL
      for (int t = 0; t < kTokens; ++t) a[t] = b[t] = no_sums();
      const int64_t end = blocks > unit_blocks ? blocks - unit_blocks : 0;
      for (; blocks > end; --blocks) {
        prefetch_codes(at, kBlockBytes, args.ahead);
        dot_block<kCodes, kTokens, 0, 2>(a, kTokens > 1 ? a : b, at, digits, token_bytes);
        at += l.block_bytes;
        digits += 64;
      }
      if constexpr (kTokens == 1) add_sums(a[0], b[0]);
      add_unit<kTokens>(l, header, a, x, unit++, y0, y1);
    }
  }
}

template <Codes kCodes, int kTokens>
void multiply(const KernelArgs& args, int64_t m) {
  const Layout& l = *args.layout;
  const TokenBlock x = token_block(*args.x, m);
  for (int64_t tile = args.tile_begin; tile < args.tile_end; ++tile) {
    __m512 y0[kTokens];
    __m512 y1[kTokens];
    NIBBLE_UNROLL
    for (int t = 0; t < kTokens; ++t) y0[t] = y1[t] = _mm512_setzero_ps();
    multiply_tile<kCodes, kTokens>(args, args.weight->bytes.data() + tile * l.tile_bytes, x, y0,
                                   y1);
    const int64_t rows = l.n - tile * kTileRows;
    NIBBLE_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      float* y = args.y + (m + t) * args.ldy + tile * kTileRows;
      _mm512_mask_storeu_ps(y, rows_mask(rows), y0[t]);
      _mm512_mask_storeu_ps(y + 16, rows_mask(rows - 16), y1[t]);
    }
  }
}

template <Codes kCodes>
NIBBLE_INLINE void few_tokens(const KernelArgs& args) {
  for (int64_t m = args.m_begin; m < args.m_end; m += args.x->rows) {
    switch (token_block(*args.x, m).rows) {
      case 1:
        multiply<kCodes, 1>(args, m);
        break;
      case 2:
        multiply<kCodes, 2>(args, m);
        break;
      case 3:
        multiply<kCodes, 3>(args, m);
        break;
      default:
        multiply<kCodes, 4>(args, m);
    }
  }
}

}  // namespace

void matvec_s8x2_u2g_avx512vnni(const KernelArgs& args) noexcept { few_tokens<Codes::kN2>(args); }
void matvec_s8x2_u4g_avx512vnni(const KernelArgs& args) noexcept { few_tokens<Codes::kN4>(args); }
void matvec_s8x2_u6g_avx512vnni(const KernelArgs& args) noexcept { few_tokens<Codes::kN6>(args); }
void matvec_s8x2_u8g_avx512vnni(const KernelArgs& args) noexcept { few_tokens<Codes::kN8>(args); }
void matvec_s8x2_e2m1g_avx512vnni(const KernelArgs& args) noexcept {
  few_tokens<Codes::kE2M1>(args);
}

}  // namespace nibble::kernels
