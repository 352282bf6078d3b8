// Integer weights x 16-bit integer activations with AVX2, few tokens: codes go from memory to the
// multiply-adds. The sums and their order are those of avx512_matvec.cc.
//
// n4: x as two s8 digits, q = 256 h + l. vpmaddubsw of a code (at most 15) and a digit, 8 of them
// in s16: |2 * 15 * 128 * 8| = 30720 does not overflow, so the widening vpmaddwd is done once a
// block. n8: x as pairs of s16; even and odd bytes of a lane are widened by a mask and a shift.
#include "kernels/matmul/avx2_inline.h"

namespace nibble::kernels {
namespace {

// Sums of 16 rows x one token.
struct Sums {
  __m256i a, b;
};

// One unit of 16 rows of n4. `x` are the digits of the unit's first token.
template <int kTokens>
NIBBLE_INLINE void dot_unit_n4(Sums (&sums)[kTokens], const std::byte* codes, int64_t blocks,
                               const std::byte* x, int64_t token_bytes) {
  const __m256i nibble = _mm256_set1_epi8(15);
  for (; blocks > 0; --blocks, codes += 512, x += 64) {
    Sums high[kTokens];
    Sums low[kTokens];
    NIBBLE_UNROLL
    for (int j = 0; j < 4; ++j) {
      const __m256i both_a = load(codes + j * 128);
      const __m256i both_b = load(codes + j * 128 + 32);
      NIBBLE_UNROLL
      for (int half = 0; half < 2; ++half) {
        const __m256i a =
            _mm256_and_si256(half == 0 ? both_a : _mm256_srli_epi16(both_a, 4), nibble);
        const __m256i b =
            _mm256_and_si256(half == 0 ? both_b : _mm256_srli_epi16(both_b, 4), nibble);
        NIBBLE_UNROLL
        for (int t = 0; t < kTokens; ++t) {
          const std::byte* at = x + t * token_bytes + 16 * half + 4 * j;
          const __m256i h = broadcast(at);
          const __m256i l = broadcast(at + 32);
          if (j == 0 && half == 0) {
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
}

// A unit of 16 inputs: the low or the high nibbles of a block.
template <int kTokens>
NIBBLE_INLINE void dot_half_n4(Sums (&sums)[kTokens], int half, const std::byte* codes,
                               const std::byte* x, int64_t token_bytes) {
  const __m256i nibble = _mm256_set1_epi8(15);
  const __m256i by_256 = _mm256_set1_epi16(256);
  const __m256i by_1 = _mm256_set1_epi16(1);
  NIBBLE_UNROLL
  for (int j = 0; j < 4; ++j) {
    const __m256i a = _mm256_and_si256(_mm256_srli_epi16(load(codes + j * 128), 4 * half), nibble);
    const __m256i b =
        _mm256_and_si256(_mm256_srli_epi16(load(codes + j * 128 + 32), 4 * half), nibble);
    NIBBLE_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      const std::byte* at = x + t * token_bytes + 16 * half + 4 * j;
      const __m256i h = broadcast(at);
      const __m256i l = broadcast(at + 32);
      const auto add = [&](__m256i sum, __m256i codes8) {
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(codes8, h), by_256));
        return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(codes8, l), by_1));
      };
      sums[t] = {add(sums[t].a, a), add(sums[t].b, b)};
    }
  }
}

// Lines of four inputs of 16 rows of n8. `x` are pairs, those of all tokens side by side.
template <int kTokens>
NIBBLE_INLINE void dot_lines_n8(Sums (&sums)[kTokens], const std::byte* codes, int64_t lines,
                                const std::byte* x) {
  const __m256i byte = _mm256_set1_epi16(255);
  for (; lines > 0; --lines, codes += 128, x += 8 * kTokens) {
    const __m256i a = load(codes);
    const __m256i b = load(codes + 32);
    const __m256i even_a = _mm256_and_si256(a, byte);
    const __m256i even_b = _mm256_and_si256(b, byte);
    const __m256i odd_a = _mm256_srli_epi16(a, 8);
    const __m256i odd_b = _mm256_srli_epi16(b, 8);
    NIBBLE_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      const __m256i even = broadcast(x + 4 * t);
      const __m256i odd = broadcast(x + 4 * (kTokens + t));
      sums[t].a = _mm256_add_epi32(sums[t].a, _mm256_madd_epi16(even_a, even));
      sums[t].b = _mm256_add_epi32(sums[t].b, _mm256_madd_epi16(even_b, even));
      sums[t].a = _mm256_add_epi32(sums[t].a, _mm256_madd_epi16(odd_a, odd));
      sums[t].b = _mm256_add_epi32(sums[t].b, _mm256_madd_epi16(odd_b, odd));
    }
  }
}

// y of 8 rows += what their sums of one unit stand for.
NIBBLE_INLINE void add_unit(const Layout& l, const HeaderParts& w, int row, __m256i sum,
                            const TokenBlock& x, int64_t at, float* y) {
  if (l.zero_bytes == 0) {
    sum = _mm256_sub_epi32(sum, _mm256_set1_epi32(l.zero_const * x.sum[at]));
  } else {
    const __m256i zero = load_zeros(l.zero_bytes, w.zero + row * l.zero_bytes);
    sum = _mm256_sub_epi32(sum, _mm256_mullo_epi32(zero, _mm256_set1_epi32(x.sum[at])));
  }
  const __m256 scale = _mm256_mul_ps(load_scales(l.scale_store, w.scale + row * l.scale_bytes),
                                     _mm256_set1_ps(x.scale[at]));
  __m256 v = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), scale, _mm256_load_ps(y + row));
  if (l.has_offset) {
    const __m256 offset = load_scales(l.scale_store, w.offset + row * l.scale_bytes);
    v = _mm256_fmadd_ps(offset, _mm256_set1_ps(x.scaled_sum[at]), v);
  }
  _mm256_store_ps(y + row, v);
}

// Blocks [0, blocks) of a group, one unit; `first` input of the unit counts from the start of x.
template <Packing kPacking, int kTokens>
NIBBLE_INLINE void multiply_unit(const KernelArgs& args, const HeaderParts& w,
                                 const std::byte* codes, int64_t blocks, int half, int64_t first,
                                 const TokenBlock& x, float (*y)[kTileRows]) {
  const Layout& l = *args.layout;
  const int64_t unit = first / l.unit;
  NIBBLE_UNROLL
  for (int row = 0; row < kTileRows; row += 16) {
    Sums sums[kTokens];
    NIBBLE_UNROLL
    for (int t = 0; t < kTokens; ++t) sums[t] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    if constexpr (kPacking == Packing::kN8) {
      const std::byte* pairs = x.data + first * 2 * kTokens;
      const int64_t lines = l.unit == 16 ? 4 : blocks * 8;
      dot_lines_n8<kTokens>(sums, codes + half * 512 + row * 4, lines, pairs);
    } else if (l.unit == 16) {
      dot_half_n4<kTokens>(sums, half, codes + row * 4, x.data + (first - 16 * half) * 2,
                           args.x->token_bytes);
    } else {
      dot_unit_n4<kTokens>(sums, codes + row * 4, blocks, x.data + first * 2, args.x->token_bytes);
    }
    NIBBLE_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      add_unit(l, w, row, sums[t].a, x, unit * kTokens + t, y[t]);
      add_unit(l, w, row + 8, sums[t].b, x, unit * kTokens + t, y[t]);
    }
  }
}

template <Packing kPacking, int kTokens>
void multiply_tile(const KernelArgs& args, const std::byte* tile, const TokenBlock& x,
                   float (*y)[kTileRows]) {
  const Layout& l = *args.layout;
  const int64_t unit_blocks = l.unit / kBlockK;
  const std::byte* at = tile;
  for (int64_t k = 0; k < l.k_pad; k += l.group) {
    const std::byte* header = at;
    at += l.header_bytes;
    if (l.unit == 16) {
      multiply_unit<kPacking, kTokens>(args, parts_of(l, header, 0), at, 1, 0, k, x, y);
      multiply_unit<kPacking, kTokens>(args, parts_of(l, header, 1), at, 1, 1, k + 16, x, y);
      at += l.block_bytes;
      continue;
    }
    const HeaderParts w = parts_of(l, header, 0);
    const int64_t end = l.k_pad - k < l.group ? l.k_pad - k : l.group;
    for (int64_t done = 0; done < end; done += l.unit) {
      const int64_t left = (end - done) / kBlockK;
      const int64_t blocks = left < unit_blocks ? left : unit_blocks;
      multiply_unit<kPacking, kTokens>(args, w, at, blocks, 0, k + done, x, y);
      at += blocks * l.block_bytes;
    }
  }
}

template <Packing kPacking, int kTokens>
void multiply(const KernelArgs& args, int64_t m) {
  const Layout& l = *args.layout;
  const TokenBlock x = token_block(*args.x, m);
  for (int64_t tile = args.tile_begin; tile < args.tile_end; ++tile) {
    alignas(32) float y[kTokens][kTileRows] = {};
    multiply_tile<kPacking, kTokens>(args, args.weight->bytes.data() + tile * l.tile_bytes, x, y);
    store_y(y[0], kTokens, l.n - tile * kTileRows, args.y + m * args.ldy + tile * kTileRows,
            args.ldy);
  }
}

template <Packing kPacking>
NIBBLE_INLINE void few_tokens(const KernelArgs& args) {
  for (int64_t m = args.m_begin; m < args.m_end; m += args.x->rows) {
    switch (token_block(*args.x, m).rows) {
      case 1:
        multiply<kPacking, 1>(args, m);
        break;
      case 2:
        multiply<kPacking, 2>(args, m);
        break;
      default:
        multiply<kPacking, 3>(args, m);
    }
  }
}

}  // namespace

void matvec_s8x2_u4g_avx2(const KernelArgs& args) noexcept { few_tokens<Packing::kN4>(args); }
void matvec_s16_u8g_avx2(const KernelArgs& args) noexcept { few_tokens<Packing::kN8>(args); }

}  // namespace nibble::kernels
