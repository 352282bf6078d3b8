// 8-bit floats x f32 activations with AVX-512, few tokens: codes go from memory through f16 to the
// fused multiply-adds; scales are applied to the sums of a group.
//
// The even and odd bytes of a line become 16-bit lanes: row 0's inputs 0 and 2, row 1's, ... As f32
// they meet x in pairs (0, 2) or (1, 3), the order of Form::kEvenOdd, and a row's sum stands in two
// neighbouring lanes.
#include "kernels/matmul/avx512_float8.h"
#include "kernels/matmul/avx512_inline.h"
#include "kernels/matmul/matvec_f8.h"

namespace nibble::kernels {
namespace {

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

struct Avx512 {
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
  NIBBLE_INLINE void store_y(const float* dense, int64_t tokens, int64_t rows, float* y,
                             int64_t ldy) {
    kernels::store_y(dense, tokens, rows, y, ldy);
  }
};

}  // namespace

void matvec_f32_f8g_avx512(const KernelArgs& args) noexcept { matvec_f8<Avx512>(args); }

}  // namespace nibble::kernels
