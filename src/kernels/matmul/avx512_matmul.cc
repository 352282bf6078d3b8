// Integer weights x 16-bit integer activations for many tokens, with AVX-512 VNNI: a panel of
// (code - zero) in s16 is unpacked into the L2 cache and all tokens are multiplied with it by
// vpdpwssd. The sums and their order are those of avx512_matvec.cc.
#include "kernels/matmul/avx512_inline.h"

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
static_assert(kPanels * sizeof(Panel) + 14 * 32 * 4 <= kPanelBytes);

// 16 zeros, each twice in s16.
NIBBLE_INLINE __m512i zero_pairs(__m512i zero) {
  return _mm512_or_si512(_mm512_slli_epi32(zero, 16),
                         _mm512_and_si512(zero, _mm512_set1_epi32(0xffff)));
}

// 16 rows of a block; `to` is their place in the panel: a line of four inputs is two of pairs.
template <Codes kCodes>
NIBBLE_INLINE void unpack_block(const std::byte* block, __m512i zero_first, __m512i zero_second,
                                int16_t* to) {
  const __m512i byte = _mm512_set1_epi16(255);
  NIBBLE_UNROLL
  for (int j = 0; j < 4; ++j) {
    NIBBLE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const __m512i zero = half == 0 ? zero_first : zero_second;
      const __m512i codes = load_codes<kCodes>(block, half, j);
      int16_t* at = to + (4 * half + j) * 64;
      _mm512_store_si512(at, _mm512_sub_epi16(_mm512_and_si512(codes, byte), zero));
      _mm512_store_si512(at + 32, _mm512_sub_epi16(_mm512_srli_epi16(codes, 8), zero));
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
    for (int row = 0; row < kTileRows; row += 16) {
      const Numbers first = load_numbers(l, header_parts(l, group.header, group.super, 0), row);
      const Numbers second =
          load_numbers(l, header_parts(l, group.header, group.super, l.sets - 1), row);
      unpack_block<kCodes>(block + row * 4, zero_pairs(first.zero), zero_pairs(second.zero),
                           &panel.codes[row / 16][at / 2][0][0]);
      if (at % l.unit != 0) continue;
      const int64_t unit = at / l.unit;
      _mm512_store_ps(panel.scale[unit] + row, first.scale);
      _mm512_store_ps(panel.offset[unit] + row, first.offset);
      if (l.sets == 1) continue;
      _mm512_store_ps(panel.scale[unit + 1] + row, second.scale);
      _mm512_store_ps(panel.offset[unit + 1] + row, second.offset);
    }
  }
}

// sum += pairs of w times pairs of x. As the intrinsic, sum = f(sum, w, x), g++ 12 gives the result
// another register than the operand and copies or spills one of the two, 28 times a step.
NIBBLE_INLINE void dpwssd(__m512i& sum, __m512i w, __m512i x) {
  asm("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(x));
}

// One token and 32 rows of the weight: y += sum * scale + offset * sum of x.
struct UnitScales {
  __m512 scale0, scale1, offset0, offset1;
};
template <bool kOffset>
NIBBLE_INLINE void add_unit(const UnitScales& w, __m512i sum0, __m512i sum1, float scale_x,
                            float scaled_sum, float* y) {
  const __m512 s = _mm512_set1_ps(scale_x);
  __m512 y0 =
      _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum0), _mm512_mul_ps(w.scale0, s), _mm512_load_ps(y));
  __m512 y1 =
      _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum1), _mm512_mul_ps(w.scale1, s), _mm512_load_ps(y + 16));
  if constexpr (kOffset) {
    const __m512 sum_x = _mm512_set1_ps(scaled_sum);
    y0 = _mm512_fmadd_ps(w.offset0, sum_x, y0);
    y1 = _mm512_fmadd_ps(w.offset1, sum_x, y1);
  }
  _mm512_store_ps(y, y0);
  _mm512_store_ps(y + 16, y1);
}

// y (kRows, 32) += the panel's inputs [0, count) of kRows tokens.
template <int kRows, bool kOffset>
void multiply(const Layout& l, const Panel& panel, int64_t count, const TokenBlock& x,
              const int32_t* pairs, int64_t first_unit, float* y) {
  const int16_t* w = &panel.codes[0][0][0][0];
  constexpr int64_t kHalf = kPanelK * 16;
  for (int64_t done = 0, unit = 0; done < count; done += l.unit, ++unit) {
#define NIBBLE_DECLARE(r) [[maybe_unused]] __m512i a##r = _mm512_setzero_si512(), b##r = a##r;
    NIBBLE_ROWS_14(NIBBLE_DECLARE)
#undef NIBBLE_DECLARE
    int64_t left = (l.unit < count - done ? l.unit : count - done) / 2;
    do {  // at least once: a loop that may be skipped costs g++ 12 a second set of registers
      const __m512i w0 = _mm512_load_si512(w);
      const __m512i w1 = _mm512_load_si512(w + kHalf);
#define NIBBLE_DOT(r)                              \
  if constexpr (kRows > r) {                       \
    const __m512i v = _mm512_set1_epi32(pairs[r]); \
    dpwssd(a##r, w0, v);                           \
    dpwssd(b##r, w1, v);                           \
  }
      NIBBLE_ROWS_14(NIBBLE_DOT)
#undef NIBBLE_DOT
      w += 32;
      pairs += kRows;
    } while (--left > 0);
    asm volatile("" ::: "memory");  // else y is kept in what would be registers, and spilled
    const float* scale_x = x.scale + (first_unit + unit) * kRows;
    const float* scaled_sum = x.scaled_sum + (first_unit + unit) * kRows;
    const UnitScales scales = {
        _mm512_load_ps(panel.scale[unit]), _mm512_load_ps(panel.scale[unit] + 16),
        _mm512_load_ps(panel.offset[unit]), _mm512_load_ps(panel.offset[unit] + 16)};
#define NIBBLE_ADD(r)      \
  if constexpr (kRows > r) \
    add_unit<kOffset>(scales, a##r, b##r, scale_x[r], scaled_sum[r], y + r * 32);
    NIBBLE_ROWS_14(NIBBLE_ADD)
#undef NIBBLE_ADD
  }
}

using Multiply = void (*)(const Layout&, const Panel&, int64_t, const TokenBlock&, const int32_t*,
                          int64_t, float*);
#define NIBBLE_MULTIPLY(r) {multiply<r + 1, false>, multiply<r + 1, true>},
constexpr Multiply kMultiply[14][2] = {NIBBLE_ROWS_14(NIBBLE_MULTIPLY)};
#undef NIBBLE_MULTIPLY

// kPanels tiles from `tile` on, all tokens, inputs [k, k + count).
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
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t n = (tile + t) * kTileRows;
      float* y = args.y + m * args.ldy + n;
      if (k == 0) {
        for (int64_t i = 0; i < x.rows * 2; ++i) {
          _mm512_store_ps(dense + i * 16, _mm512_setzero_ps());
        }
      } else {
        load_y(y, args.ldy, x.rows, l.n - n, dense);
      }
      kMultiply[x.rows - 1][l.has_offset ? 1 : 0](l, panels[t], count, x, pairs, k / l.unit, dense);
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

void matmul_s16_u2g_avx512vnni(const KernelArgs& args) noexcept { many_tokens<Codes::kN2>(args); }
void matmul_s16_u4g_avx512vnni(const KernelArgs& args) noexcept { many_tokens<Codes::kN4>(args); }
void matmul_s16_u6g_avx512vnni(const KernelArgs& args) noexcept { many_tokens<Codes::kN6>(args); }
void matmul_s16_u8g_avx512vnni(const KernelArgs& args) noexcept { many_tokens<Codes::kN8>(args); }
void matmul_s16_e2m1g_avx512vnni(const KernelArgs& args) noexcept {
  many_tokens<Codes::kE2M1>(args);
}

}  // namespace nibble::kernels
