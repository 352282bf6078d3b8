// 8-bit floats x f32 activations with AVX-512, few tokens: codes go from memory through f16 to the
// fused multiply-adds; scales are applied to the sums of a group.
//
// The even and odd bytes of a line become 16-bit lanes: row 0's inputs 0 and 2, row 1's, ... As f32
// they meet x in pairs (0, 2) or (1, 3), the order of Form::kEvenOdd, and a row's sum stands in two
// neighbouring lanes.
#include "kernels/matmul/avx512_float8.h"
#include "kernels/matmul/avx512_inline.h"

namespace nibble::kernels {
namespace {

using tensor::Element;

NIBBLE_INLINE __m512 pair_of(const float* x) {
  double both;
  __builtin_memcpy(&both, x, 8);
  return _mm512_castpd_ps(_mm512_set1_pd(both));
}
NIBBLE_INLINE __m512 first_rows(__m512i halves) {
  return _mm512_cvtph_ps(_mm512_castsi512_si256(halves));
}
NIBBLE_INLINE __m512 last_rows(__m512i halves) {
  return _mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1));
}

// The sums of 32 rows in pairs of lanes, 8 rows a register -> 16 rows a register.
NIBBLE_INLINE __m512 join(__m512 a, __m512 b) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  return _mm512_add_ps(_mm512_permutex2var_ps(a, even, b), _mm512_permutex2var_ps(a, odd, b));
}

// Sums of 32 rows x one token.
struct Sums {
  __m512 a, b, c, d;
};
NIBBLE_INLINE Sums no_sums() {
  const __m512 zero = _mm512_setzero_ps();
  return {zero, zero, zero, zero};
}

// Lines [first, end) of a block, four inputs each.
template <Float8 kFloat, int kTokens>
NIBBLE_INLINE void dot_lines(Sums (&sums)[kTokens], const std::byte* block, int first, int end,
                             const float* x, int64_t ldx) {
  for (int i = first; i < end; ++i) {
    const __m512i line0 = load(block + i * 128);
    const __m512i line1 = load(block + i * 128 + 64);
    const __m512i even0 = even_halves<kFloat>(line0);
    const __m512i even1 = even_halves<kFloat>(line1);
    const __m512i odd0 = odd_halves<kFloat>(line0);
    const __m512i odd1 = odd_halves<kFloat>(line1);
    NIBBLE_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      const __m512 even = pair_of(x + t * ldx + 4 * i);
      const __m512 odd = pair_of(x + t * ldx + 4 * i + 2);
      Sums& s = sums[t];
      s.a = _mm512_fmadd_ps(first_rows(even0), even, s.a);
      s.b = _mm512_fmadd_ps(last_rows(even0), even, s.b);
      s.c = _mm512_fmadd_ps(first_rows(even1), even, s.c);
      s.d = _mm512_fmadd_ps(last_rows(even1), even, s.d);
      s.a = _mm512_fmadd_ps(first_rows(odd0), odd, s.a);
      s.b = _mm512_fmadd_ps(last_rows(odd0), odd, s.b);
      s.c = _mm512_fmadd_ps(first_rows(odd1), odd, s.c);
      s.d = _mm512_fmadd_ps(last_rows(odd1), odd, s.d);
    }
  }
}

// y (kTokens, 32) += the sums of one group.
template <Float8 kFloat, int kTokens>
NIBBLE_INLINE void add_group(const Layout& l, const Header<const std::byte>& header,
                             const Sums (&sums)[kTokens], float (*y)[kTileRows]) {
  const __m512 fix = _mm512_set1_ps(kFix<kFloat>);
  const __m512 scale0 = _mm512_mul_ps(load_numbers(l, header, 0).scale, fix);
  const __m512 scale1 = _mm512_mul_ps(load_numbers(l, header, 16).scale, fix);
  NIBBLE_UNROLL
  for (int t = 0; t < kTokens; ++t) {
    const __m512 sum0 = join(sums[t].a, sums[t].b);
    const __m512 sum1 = join(sums[t].c, sums[t].d);
    _mm512_store_ps(y[t], _mm512_fmadd_ps(sum0, scale0, _mm512_load_ps(y[t])));
    _mm512_store_ps(y[t] + 16, _mm512_fmadd_ps(sum1, scale1, _mm512_load_ps(y[t] + 16)));
  }
}

// Lines [first, end) of each of `blocks` blocks; x are the inputs of the first block.
template <Float8 kFloat, int kTokens>
NIBBLE_INLINE void multiply_group(const KernelArgs& args, const Header<const std::byte>& header,
                                  const std::byte* block, int64_t blocks, int first, int end,
                                  const float* x, float (*y)[kTileRows]) {
  Sums sums[kTokens];
  NIBBLE_UNROLL
  for (int t = 0; t < kTokens; ++t) sums[t] = no_sums();
  for (; blocks > 0; --blocks, block += 1024, x += kBlockK) {
    prefetch_codes(block, 1024, args.ahead);
    dot_lines<kFloat, kTokens>(sums, block, first, end, x, args.x->k_pad);
  }
  add_group<kFloat, kTokens>(*args.layout, header, sums, y);
}

template <Float8 kFloat, int kTokens>
void multiply(const KernelArgs& args, int64_t m) {
  const Layout& l = *args.layout;
  const auto* x = reinterpret_cast<const float*>(token_block(*args.x, m).data);
  for (int64_t tile = args.tile_begin; tile < args.tile_end; ++tile) {
    alignas(64) float y[kTokens][kTileRows] = {};
    const std::byte* bytes = args.weight->bytes.data() + tile * l.tile_bytes;
    for (int64_t g = 0; g < l.groups; ++g) {
      const auto group = group_in(l, bytes, g);
      const auto first = header_parts(l, group.header, group.super, 0);
      const int64_t left = l.k_pad - g * l.group;
      const int64_t blocks = (left < l.group ? left : l.group) / kBlockK;
      const float* xg = x + g * l.group;
      if (l.sets == 1) {
        multiply_group<kFloat, kTokens>(args, first, group.blocks, blocks, 0, 8, xg, y);
      } else {
        const auto second = header_parts(l, group.header, group.super, 1);
        multiply_group<kFloat, kTokens>(args, first, group.blocks, 1, 0, 4, xg, y);
        multiply_group<kFloat, kTokens>(args, second, group.blocks, 1, 4, 8, xg, y);
      }
    }
    store_y(y[0], kTokens, l.n - tile * kTileRows, args.y + m * args.ldy + tile * kTileRows,
            args.ldy);
  }
}

template <Float8 kFloat>
void few_tokens(const KernelArgs& args) {
  for (int64_t m = args.m_begin; m < args.m_end; m += args.x->rows) {
    switch (token_block(*args.x, m).rows) {
      case 1:
        multiply<kFloat, 1>(args, m);
        break;
      case 2:
        multiply<kFloat, 2>(args, m);
        break;
      default:
        multiply<kFloat, 3>(args, m);
    }
  }
}

}  // namespace

void matvec_f32_f8g_avx512(const KernelArgs& args) noexcept {
  switch (args.weight->problem.weight.element) {
    case Element::kE4M3:
      return few_tokens<Float8::kE4M3>(args);
    case Element::kE4M3FNUZ:
      return few_tokens<Float8::kE4M3FNUZ>(args);
    default:
      return few_tokens<Float8::kE5M2>(args);
  }
}

}  // namespace nibble::kernels
