// Integer weights x 16-bit integer activations with AVX2, many tokens: a panel of (code - zero) in
// s16 is unpacked into the L2 cache and all tokens are multiplied with it by vpmaddwd. The sums and
// their order are those of avx512_matvec.cc.
#include "kernels/matmul/avx2_inline.h"

namespace nibble::kernels {
namespace {

// A tile, unpacked over at most kPanelK inputs. `codes` has two halves of 16 rows each:
// (pairs of inputs, 16 rows, 2) s16, the pairs in the order of Form::kS16Panel.
constexpr int64_t kPanelK = 1024;
struct alignas(64) Panel {
  int16_t codes[2][kPanelK / 2][16][2];
  float scale[kPanelK / 16][32];  // per unit of 16 or more inputs
  float offset[kPanelK / 16][32];
};
constexpr int64_t kPanels = 3;  // tiles that share a token block while it is in the L1 cache
static_assert(kPanels * sizeof(Panel) + 6 * 32 * 4 <= kPanelBytes);

// 8 zeros, each twice in s16.
NIBBLE_INLINE __m256i zero_pairs(__m256i zero) {
  return _mm256_or_si256(_mm256_slli_epi32(zero, 16),
                         _mm256_and_si256(zero, _mm256_set1_epi32(0xffff)));
}

NIBBLE_INLINE void put(int16_t* to, __m256i codes, __m256i zero) {
  _mm256_store_si256(reinterpret_cast<__m256i*>(to), _mm256_sub_epi16(codes, zero));
}
// 8 rows of a block; `to` is their place in the panel: a line of four inputs is two of pairs.
template <Codes kCodes>
NIBBLE_INLINE void unpack_block(const std::byte* block, __m256i zero_first, __m256i zero_second,
                                int16_t* to) {
  const __m256i byte = _mm256_set1_epi16(255);
  NIBBLE_UNROLL
  for (int j = 0; j < 4; ++j) {
    NIBBLE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const __m256i zero = half == 0 ? zero_first : zero_second;
      const __m256i codes = load_codes<kCodes>(block, half, j);
      int16_t* at = to + (4 * half + j) * 64;
      put(at, _mm256_and_si256(codes, byte), zero);
      put(at + 32, _mm256_srli_epi16(codes, 8), zero);
    }
  }
}

// Inputs [k, k + count) of a tile; both are multiples of 32, and k of the unit.
template <Codes kCodes>
void unpack(const Layout& l, const std::byte* tile, int64_t k, int64_t count, Panel& panel) {
  for (int64_t at = 0; at < count; at += kBlockK) {
    const int64_t g = (k + at) / l.group;
    const auto group = group_in(l, tile, g);
    const std::byte* block = group.blocks + (k + at - g * l.group) / kBlockK * l.block_bytes;
    const auto first = header_parts(l, group.header, group.super, 0);
    const auto second = header_parts(l, group.header, group.super, l.sets - 1);
    for (int64_t row = 0; row < kTileRows; row += 8) {
      unpack_block<kCodes>(block + row * 4, zero_pairs(zeros_of(l, first, row)),
                           zero_pairs(zeros_of(l, second, row)),
                           panel.codes[row / 16][at / 2][row % 16]);
    }
    if (at % l.unit != 0) continue;
    for (int64_t set = 0; set < l.sets; ++set) {
      const auto& w = set == 0 ? first : second;
      const int64_t unit = at / l.unit + set;
      for (int64_t row = 0; row < kTileRows; row += 8) {
        _mm256_store_ps(panel.scale[unit] + row, scales_of(l, w, row));
        if (l.has_offset) _mm256_store_ps(panel.offset[unit] + row, offsets_of(l, w, row));
      }
    }
  }
}

// sum += pairs of w times pairs of x. As intrinsics g++ 12 gives old and new sums different
// registers and spills: here all 16 are used.
NIBBLE_INLINE void madd(__m256i& sum, __m256i w, __m256i x) {
  __m256i product;
  asm("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+x"(sum), "=&x"(product) : "x"(w), "x"(x));
}

// One token and 16 rows of the weight: y += sum * scale + offset * sum of x.
struct UnitScales {
  __m256 scale0, scale1;
  const float* offset;
};
template <bool kOffset>
NIBBLE_INLINE void add_unit(const UnitScales& w, __m256i sum0, __m256i sum1, float scale_x,
                            float scaled_sum, float* y) {
  const __m256 s = _mm256_set1_ps(scale_x);
  __m256 y0 =
      _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum0), _mm256_mul_ps(w.scale0, s), _mm256_load_ps(y));
  __m256 y1 =
      _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum1), _mm256_mul_ps(w.scale1, s), _mm256_load_ps(y + 8));
  if constexpr (kOffset) {
    const __m256 sum_x = _mm256_set1_ps(scaled_sum);
    y0 = _mm256_fmadd_ps(_mm256_load_ps(w.offset), sum_x, y0);
    y1 = _mm256_fmadd_ps(_mm256_load_ps(w.offset + 8), sum_x, y1);
  }
  _mm256_store_ps(y, y0);
  _mm256_store_ps(y + 8, y1);
}

// y (kRows, 16 of 32) += inputs [0, count) of half a panel times kRows tokens.
template <int kRows, bool kOffset>
void multiply_half(const Layout& l, const Panel& panel, int half, int64_t count,
                   const TokenBlock& x, const int32_t* pairs, int64_t first_unit, float* y) {
  const auto* w = reinterpret_cast<const __m256i*>(panel.codes[half]);
  for (int64_t done = 0, unit = 0; done < count; done += l.unit, ++unit) {
#define NIBBLE_DECLARE(r) [[maybe_unused]] __m256i a##r = _mm256_setzero_si256(), b##r = a##r;
    NIBBLE_ROWS_6(NIBBLE_DECLARE)
#undef NIBBLE_DECLARE
    int64_t left = (l.unit < count - done ? l.unit : count - done) / 2;
    do {  // at least once: a loop that may be skipped costs g++ 12 a second set of registers
      const __m256i w0 = _mm256_load_si256(w);
      const __m256i w1 = _mm256_load_si256(w + 1);
#define NIBBLE_DOT(r)                              \
  if constexpr (kRows > r) {                       \
    const __m256i v = _mm256_set1_epi32(pairs[r]); \
    madd(a##r, w0, v);                             \
    madd(b##r, w1, v);                             \
  }
      NIBBLE_ROWS_6(NIBBLE_DOT)
#undef NIBBLE_DOT
      w += 2;
      pairs += kRows;
    } while (--left > 0);
    asm volatile("" ::: "memory");  // else y is kept in what would be registers, and spilled
    const float* scale_x = x.scale + (first_unit + unit) * kRows;
    const float* scaled_sum = x.scaled_sum + (first_unit + unit) * kRows;
    const UnitScales scales = {_mm256_load_ps(panel.scale[unit] + half * 16),
                               _mm256_load_ps(panel.scale[unit] + half * 16 + 8),
                               panel.offset[unit] + half * 16};
#define NIBBLE_ADD(r)      \
  if constexpr (kRows > r) \
    add_unit<kOffset>(scales, a##r, b##r, scale_x[r], scaled_sum[r], y + r * 32);
    NIBBLE_ROWS_6(NIBBLE_ADD)
#undef NIBBLE_ADD
  }
}

using Multiply = void (*)(const Layout&, const Panel&, int, int64_t, const TokenBlock&,
                          const int32_t*, int64_t, float*);
#define NIBBLE_MULTIPLY(r) {multiply_half<r + 1, false>, multiply_half<r + 1, true>},
constexpr Multiply kMultiply[6][2] = {NIBBLE_ROWS_6(NIBBLE_MULTIPLY)};
#undef NIBBLE_MULTIPLY

// `tiles` tiles from `tile` on, all tokens, inputs [k, k + count).
template <Codes kCodes>
void multiply_panels(const KernelArgs& args, int64_t tile, int64_t tiles, int64_t k,
                     int64_t count) {
  const Layout& l = *args.layout;
  auto* panels = reinterpret_cast<Panel*>(args.scratch);
  auto* dense = reinterpret_cast<float*>(args.scratch + kPanels * sizeof(Panel));
  for (int64_t t = 0; t < tiles; ++t) {
    unpack<kCodes>(l, args.weight->bytes.data() + (tile + t) * l.tile_bytes, k, count, panels[t]);
  }
  for (int64_t m = args.m_begin; m < args.m_end; m += args.x->rows) {
    const TokenBlock x = token_block(*args.x, m);
    const auto* pairs = reinterpret_cast<const int32_t*>(x.data) + k / 2 * x.rows;
    const Multiply multiply = kMultiply[x.rows - 1][l.has_offset ? 1 : 0];
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t n = (tile + t) * kTileRows;
      float* y = args.y + m * args.ldy + n;
      if (k == 0) {
        __builtin_memset(dense, 0, static_cast<size_t>(x.rows * kTileRows) * 4);
      } else {
        load_y(y, args.ldy, x.rows, l.n - n, dense);
      }
      multiply(l, panels[t], 0, count, x, pairs, k / l.unit, dense);
      multiply(l, panels[t], 1, count, x, pairs, k / l.unit, dense + 16);
      store_y(dense, x.rows, l.n - n, y, args.ldy);
    }
  }
}

template <Codes kCodes>
NIBBLE_INLINE void many_tokens(const KernelArgs& args) {
  for (int64_t tile = args.tile_begin; tile < args.tile_end; tile += kPanels) {
    const int64_t left = args.tile_end - tile;
    const int64_t tiles = left < kPanels ? left : kPanels;
    for (int64_t k = 0; k < args.layout->k_pad; k += kPanelK) {
      const int64_t rest = args.layout->k_pad - k;
      multiply_panels<kCodes>(args, tile, tiles, k, rest < kPanelK ? rest : kPanelK);
    }
  }
}

}  // namespace

void matmul_s16_u2g_avx2(const KernelArgs& args) noexcept { many_tokens<Codes::kN2>(args); }
void matmul_s16_u4g_avx2(const KernelArgs& args) noexcept { many_tokens<Codes::kN4>(args); }
void matmul_s16_u6g_avx2(const KernelArgs& args) noexcept { many_tokens<Codes::kN6>(args); }
void matmul_s16_u8g_avx2(const KernelArgs& args) noexcept { many_tokens<Codes::kN8>(args); }
void matmul_s16_e2m1g_avx2(const KernelArgs& args) noexcept { many_tokens<Codes::kE2M1>(args); }

}  // namespace nibble::kernels
