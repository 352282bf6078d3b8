// Integer weights x 16-bit integer activations with AVX2, few tokens: codes go from memory to the
// multiply-adds. The sums and their order are those of avx512_matvec.cc.
//
// Codes of up to 4 bits: x as two s8 digits, q = 256 h + l. vpmaddubsw of a code (at most 15) and a
// digit, 8 of them in s16: |2 * 15 * 128 * 8| = 30720 does not overflow, so the widening vpmaddwd
// is done once a block. Wider codes: x as pairs of s16; even and odd bytes of a lane are widened.
#include "kernels/matmul/avx2_inline.h"

namespace nibble::kernels {
namespace {

// Sums of 16 rows x one token.
struct Sums {
  __m256i a, b;
};

// Halves [kFirst, kEnd) of a block of 16 rows. `x` are the digits of the block's first token.
template <Codes kCodes, int kTokens, int kFirst, int kEnd>
NIBBLE_INLINE void dot_digits(Sums (&sums)[kTokens], const std::byte* block, const std::byte* x,
                              int64_t token_bytes) {
  Sums high[kTokens];
  Sums low[kTokens];
  NIBBLE_UNROLL
  for (int j = 0; j < 4; ++j) {
    NIBBLE_UNROLL
    for (int half = kFirst; half < kEnd; ++half) {
      const __m256i a = load_codes<kCodes>(block, half, j);
      const __m256i b = load_codes<kCodes>(block + 32, half, j);
      NIBBLE_UNROLL
      for (int t = 0; t < kTokens; ++t) {
        const std::byte* at = x + t * token_bytes + 16 * half + 4 * j;
        const __m256i h = broadcast(at);
        const __m256i l = broadcast(at + 32);
        if (j == 0 && half == kFirst) {
          high[t] = {_mm256_maddubs_epi16(a, h), _mm256_maddubs_epi16(b, h)};
          low[t] = {_mm256_maddubs_epi16(a, l), _mm256_maddubs_epi16(b, l)};
        } else {
          high[t].a = _mm256_add_epi16(high[t].a, _mm256_maddubs_epi16(a, h));
          high[t].b = _mm256_add_epi16(high[t].b, _mm256_maddubs_epi16(b, h));
          low[t].a = _mm256_add_epi16(low[t].a, _mm256_maddubs_epi16(a, l));
          low[t].b = _mm256_add_epi16(low[t].b, _mm256_maddubs_epi16(b, l));
        }
      }
    }
  }
  const __m256i by_256 = _mm256_set1_epi16(256);
  const __m256i by_1 = _mm256_set1_epi16(1);
  NIBBLE_UNROLL
  for (int t = 0; t < kTokens; ++t) {
    const __m256i a =
        _mm256_add_epi32(_mm256_madd_epi16(high[t].a, by_256), _mm256_madd_epi16(low[t].a, by_1));
    const __m256i b =
        _mm256_add_epi32(_mm256_madd_epi16(high[t].b, by_256), _mm256_madd_epi16(low[t].b, by_1));
    sums[t] = {_mm256_add_epi32(sums[t].a, a), _mm256_add_epi32(sums[t].b, b)};
  }
}

// The same with pairs, those of all tokens side by side.
template <Codes kCodes, int kTokens, int kFirst, int kEnd>
NIBBLE_INLINE void dot_pairs(Sums (&sums)[kTokens], const std::byte* block, const std::byte* x) {
  const __m256i byte = _mm256_set1_epi16(255);
  NIBBLE_UNROLL
  for (int half = kFirst; half < kEnd; ++half) {
    NIBBLE_UNROLL
    for (int j = 0; j < 4; ++j) {
      const __m256i a = load_codes<kCodes>(block, half, j);
      const __m256i b = load_codes<kCodes>(block + 32, half, j);
      const __m256i even_a = _mm256_and_si256(a, byte);
      const __m256i even_b = _mm256_and_si256(b, byte);
      const __m256i odd_a = _mm256_srli_epi16(a, 8);
      const __m256i odd_b = _mm256_srli_epi16(b, 8);
      const std::byte* pairs = x + (4 * half + j) * 8 * kTokens;
      NIBBLE_UNROLL
      for (int t = 0; t < kTokens; ++t) {
        const __m256i even = broadcast(pairs + 4 * t);
        const __m256i odd = broadcast(pairs + 4 * (kTokens + t));
        sums[t].a = _mm256_add_epi32(sums[t].a, _mm256_madd_epi16(even_a, even));
        sums[t].b = _mm256_add_epi32(sums[t].b, _mm256_madd_epi16(even_b, even));
        sums[t].a = _mm256_add_epi32(sums[t].a, _mm256_madd_epi16(odd_a, odd));
        sums[t].b = _mm256_add_epi32(sums[t].b, _mm256_madd_epi16(odd_b, odd));
      }
    }
  }
}

// y of 8 rows += what their sums of one unit stand for.
NIBBLE_INLINE void add_rows(const Layout& l, const Header<const std::byte>& w, int row, __m256i sum,
                            const TokenBlock& x, int64_t at, float* y) {
  if (l.zero_bytes == 0) {
    sum = _mm256_sub_epi32(sum, _mm256_set1_epi32(l.zero_const * x.sum[at]));
  } else {
    sum = _mm256_sub_epi32(sum,
                           _mm256_mullo_epi32(zeros_of(l, w, row), _mm256_set1_epi32(x.sum[at])));
  }
  const __m256 scale = _mm256_mul_ps(scales_of(l, w, row), _mm256_set1_ps(x.scale[at]));
  __m256 v = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), scale, _mm256_load_ps(y + row));
  if (l.has_offset) {
    v = _mm256_fmadd_ps(offsets_of(l, w, row), _mm256_set1_ps(x.scaled_sum[at]), v);
  }
  _mm256_store_ps(y + row, v);
}

// One unit: halves [kFirst, kEnd) of `blocks` blocks from input k on.
template <Codes kCodes, int kTokens, int kFirst, int kEnd>
NIBBLE_INLINE void multiply_unit(const KernelArgs& args, const Header<const std::byte>& w,
                                 const std::byte* at, int64_t blocks, int64_t k, int64_t unit,
                                 const TokenBlock& x, float (*y)[kTileRows]) {
  const Layout& l = *args.layout;
  constexpr bool kDigits = kCodes == Codes::kN2 || kCodes == Codes::kN4;
  prefetch_codes(at, blocks * l.block_bytes, args.ahead);
  NIBBLE_UNROLL
  for (int row = 0; row < kTileRows; row += 16) {
    Sums sums[kTokens];
    NIBBLE_UNROLL
    for (int t = 0; t < kTokens; ++t) sums[t] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    for (int64_t i = 0; i < blocks; ++i) {
      const std::byte* block = at + i * l.block_bytes + row * 4;
      const std::byte* data = x.data + (k + i * kBlockK) * 2 * (kDigits ? 1 : kTokens);
      if constexpr (kDigits) {
        dot_digits<kCodes, kTokens, kFirst, kEnd>(sums, block, data, args.x->token_bytes);
      } else {
        dot_pairs<kCodes, kTokens, kFirst, kEnd>(sums, block, data);
      }
    }
    NIBBLE_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      add_rows(l, w, row, sums[t].a, x, unit * kTokens + t, y[t]);
      add_rows(l, w, row + 8, sums[t].b, x, unit * kTokens + t, y[t]);
    }
  }
}

template <Codes kCodes, int kTokens>
void multiply_tile(const KernelArgs& args, const std::byte* tile, const TokenBlock& x,
                   float (*y)[kTileRows]) {
  const Layout& l = *args.layout;
  const int64_t unit_blocks = l.unit / kBlockK;
  int64_t unit = 0;
  for (int64_t g = 0; g < l.groups; ++g) {
    const int64_t k = g * l.group;
    const auto group = group_in(l, tile, g);
    const auto first = header_parts(l, group.header, group.super, 0);
    if (l.unit == 16) {
      const auto second = header_parts(l, group.header, group.super, 1);
      multiply_unit<kCodes, kTokens, 0, 1>(args, first, group.blocks, 1, k, unit, x, y);
      multiply_unit<kCodes, kTokens, 1, 2>(args, second, group.blocks, 1, k, unit + 1, x, y);
      unit += 2;
      continue;
    }
    const int64_t end = (l.k_pad - k < l.group ? l.k_pad - k : l.group) / kBlockK;
    for (int64_t done = 0; done < end; done += unit_blocks) {
      const int64_t blocks = end - done < unit_blocks ? end - done : unit_blocks;
      multiply_unit<kCodes, kTokens, 0, 2>(args, first, group.blocks + done * l.block_bytes, blocks,
                                           k + done * kBlockK, unit++, x, y);
    }
  }
}

template <Codes kCodes, int kTokens>
void multiply(const KernelArgs& args, int64_t m) {
  const Layout& l = *args.layout;
  const TokenBlock x = token_block(*args.x, m);
  for (int64_t tile = args.tile_begin; tile < args.tile_end; ++tile) {
    alignas(32) float y[kTokens][kTileRows] = {};
    multiply_tile<kCodes, kTokens>(args, args.weight->bytes.data() + tile * l.tile_bytes, x, y);
    store_y(y[0], kTokens, l.n - tile * kTileRows, args.y + m * args.ldy + tile * kTileRows,
            args.ldy);
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
      default:
        multiply<kCodes, 3>(args, m);
    }
  }
}

}  // namespace

void matvec_s8x2_u2g_avx2(const KernelArgs& args) noexcept { few_tokens<Codes::kN2>(args); }
void matvec_s8x2_u4g_avx2(const KernelArgs& args) noexcept { few_tokens<Codes::kN4>(args); }
void matvec_s16_u6g_avx2(const KernelArgs& args) noexcept { few_tokens<Codes::kN6>(args); }
void matvec_s16_u8g_avx2(const KernelArgs& args) noexcept { few_tokens<Codes::kN8>(args); }
void matvec_s16_e2m1g_avx2(const KernelArgs& args) noexcept { few_tokens<Codes::kE2M1>(args); }

}  // namespace nibble::kernels
