// 8-bit floats x f32 activations with AVX2, few tokens: codes go from memory through f16 to the
// fused multiply-adds; scales are applied to the sums of a group.
//
// The even and odd bytes of a line become 16-bit lanes: row 0's inputs 0 and 2, row 1's, ... As f32
// they meet x in pairs (0, 2) or (1, 3), the order of Form::kEvenOdd, and a row's sum stands in two
// neighbouring lanes.
#include "kernels/matmul/avx2_float8.h"
#include "kernels/matmul/avx2_inline.h"
#include "kernels/matmul/matvec_f8.h"

namespace nibble::kernels {
namespace {

NIBBLE_INLINE __m256 pair_of(const float* x) {
  double both;
  __builtin_memcpy(&both, x, 8);
  return _mm256_castpd_ps(_mm256_set1_pd(both));
}
NIBBLE_INLINE __m256 first_rows(__m256i halves) {
  return _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
}
NIBBLE_INLINE __m256 last_rows(__m256i halves) {
  return _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
}

// The sums of 8 rows in pairs of lanes, 4 rows a register -> 8 rows a register.
NIBBLE_INLINE __m256 join(__m256 a, __m256 b) {
  const __m256d mixed = _mm256_castps_pd(_mm256_hadd_ps(a, b));
  return _mm256_castpd_ps(_mm256_permute4x64_pd(mixed, 0xd8));
}

// Sums of 16 rows x one token.
struct Sums {
  __m256 a, b, c, d;
};
NIBBLE_INLINE Sums no_sums() {
  const __m256 zero = _mm256_setzero_ps();
  return {zero, zero, zero, zero};
}

// Lines [first, end) of 16 rows of a block, four inputs each.
template <Float8 kFloat, int kTokens>
NIBBLE_INLINE void dot_lines(Sums (&sums)[kTokens], const std::byte* block, int first, int end,
                             const float* x, int64_t ldx) {
  for (int i = first; i < end; ++i) {
    const __m256i line0 = load(block + i * 128);
    const __m256i line1 = load(block + i * 128 + 32);
    const __m256i even0 = even_halves<kFloat>(line0);
    const __m256i even1 = even_halves<kFloat>(line1);
    const __m256i odd0 = odd_halves<kFloat>(line0);
    const __m256i odd1 = odd_halves<kFloat>(line1);
    NIBBLE_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      const __m256 even = pair_of(x + t * ldx + 4 * i);
      const __m256 odd = pair_of(x + t * ldx + 4 * i + 2);
      Sums& s = sums[t];
      s.a = _mm256_fmadd_ps(first_rows(even0), even, s.a);
      s.b = _mm256_fmadd_ps(last_rows(even0), even, s.b);
      s.c = _mm256_fmadd_ps(first_rows(even1), even, s.c);
      s.d = _mm256_fmadd_ps(last_rows(even1), even, s.d);
      s.a = _mm256_fmadd_ps(first_rows(odd0), odd, s.a);
      s.b = _mm256_fmadd_ps(last_rows(odd0), odd, s.b);
      s.c = _mm256_fmadd_ps(first_rows(odd1), odd, s.c);
      s.d = _mm256_fmadd_ps(last_rows(odd1), odd, s.d);
    }
  }
}

// y (kTokens, 32), 16 rows from `row` on, += the sums of one group.
template <Float8 kFloat, int kTokens>
NIBBLE_INLINE void add_group(const Layout& l, const Header<const std::byte>& header, int row,
                             const Sums (&sums)[kTokens], float (*y)[kTileRows]) {
  const __m256 fix = _mm256_set1_ps(kFix<kFloat>);
  const __m256 scale0 = _mm256_mul_ps(scales_of(l, header, row), fix);
  const __m256 scale1 = _mm256_mul_ps(scales_of(l, header, row + 8), fix);
  NIBBLE_UNROLL
  for (int t = 0; t < kTokens; ++t) {
    float* to = y[t] + row;
    const __m256 sum0 = join(sums[t].a, sums[t].b);
    const __m256 sum1 = join(sums[t].c, sums[t].d);
    _mm256_store_ps(to, _mm256_fmadd_ps(sum0, scale0, _mm256_load_ps(to)));
    _mm256_store_ps(to + 8, _mm256_fmadd_ps(sum1, scale1, _mm256_load_ps(to + 8)));
  }
}

struct Avx2 {
  // Lines [first, end) of each of `blocks` blocks; x are the inputs of the first block.
  template <Float8 kFloat, int kTokens>
  NIBBLE_INLINE void multiply_group(const KernelArgs& args, const Header<const std::byte>& header,
                                    const std::byte* block, int64_t blocks, int first, int end,
                                    const float* x, float (*y)[kTileRows]) {
    // Both halves of the rows for a few blocks, so that memory is read from front to back.
    constexpr int64_t kTogether = 4;
    for (; blocks > 0; blocks -= kTogether, block += kTogether * 1024, x += kTogether * kBlockK) {
      const int64_t count = blocks < kTogether ? blocks : kTogether;
      prefetch_codes(block, count * 1024, args.ahead);
      for (int row = 0; row < kTileRows; row += 16) {
        Sums sums[kTokens];
        NIBBLE_UNROLL
        for (int t = 0; t < kTokens; ++t) sums[t] = no_sums();
        for (int64_t i = 0; i < count; ++i) {
          dot_lines<kFloat, kTokens>(sums, block + i * 1024 + row * 4, first, end, x + i * kBlockK,
                                     args.x->k_pad);
        }
        add_group<kFloat, kTokens>(*args.layout, header, row, sums, y);
      }
    }
  }
  NIBBLE_INLINE void store_y(const float* dense, int64_t tokens, int64_t rows, float* y,
                             int64_t ldy) {
    kernels::store_y(dense, tokens, rows, y, ldy);
  }
};

}  // namespace

void matvec_f32_f8g_avx2(const KernelArgs& args) noexcept { matvec_f8<Avx2>(args); }

}  // namespace nibble::kernels
