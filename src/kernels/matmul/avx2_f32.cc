// Any weight x f32 activations with AVX2: a panel of w in f32, bit by bit what unpack_row gives, is
// unpacked into a cache and all tokens are multiplied with it by fused multiply-adds.
#include "kernels/matmul/avx2_float8.h"
#include "kernels/matmul/avx2_inline.h"

namespace nibble::kernels {
namespace {

using tensor::Element;

// A tile, unpacked over at most kPanelK inputs: two halves of 16 rows.
constexpr int64_t kPanelK = 512;
struct alignas(64) Panel {
  float w[2][kPanelK][16];
};
constexpr int64_t kPanels = 2;  // tiles that share a token block while it is in the L1 cache
// Few tokens: the panel shall stay in the L1 cache.
constexpr int64_t kShortK = 128;
constexpr int64_t kFewTokens = 28;
static_assert(kPanels * sizeof(Panel) + kFewTokens * 32 * 4 <= kPanelBytes);

// How codes become numbers.
enum class Number {
  kInteger2,
  kInteger4,
  kInteger6,
  kInteger8,
  kTable4,
  kE4M3,
  kE4M3FNUZ,
  kE5M2,
  kBF16,
  kF16,
  kF32
};

// What 8 rows of a group do to their codes.
struct Numbers {
  __m256 scale;
  __m256 offset;
  __m256i zero;
};
NIBBLE_INLINE Numbers load_numbers(const Layout& l, const Header<const std::byte>& h, int64_t row) {
  return {scales_of(l, h, row), l.has_offset ? offsets_of(l, h, row) : _mm256_setzero_ps(),
          zeros_of(l, h, row)};
}

// (code - zero) * scale + offset, every step rounded as dequantize_row rounds it.
template <bool kOffset>
NIBBLE_INLINE void put(const Numbers& w, __m256 value, float* to) {
  value = _mm256_mul_ps(value, w.scale);
  if constexpr (kOffset) value = _mm256_add_ps(value, w.offset);
  _mm256_store_ps(to, value);
}

// The table's entry for the low 4 bits of each lane.
NIBBLE_INLINE __m256 look_up(__m256i code, __m256 low, __m256 high) {
  const __m256 upper = _mm256_castsi256_ps(_mm256_slli_epi32(code, 28));  // bit 3 as the sign
  return _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, code), _mm256_permutevar8x32_ps(high, code),
                          upper);
}

// The low or high 16 bits of each lane, f16 -> f32.
NIBBLE_INLINE __m256 high_half(__m256i v) {
  const __m256i packed = _mm256_packus_epi32(_mm256_srli_epi32(v, 16), _mm256_setzero_si256());
  return _mm256_cvtph_ps(_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0xd8)));
}
NIBBLE_INLINE __m256 low_half(__m256i v) { return high_half(_mm256_slli_epi32(v, 16)); }

// 8 rows of a block. `to` is their place in the panel: (32 inputs, 16 rows).
template <Number kNumber, bool kOffset>
NIBBLE_INLINE void unpack_block(const float* table, const std::byte* block, const Numbers& first,
                                const Numbers& second, [[maybe_unused]] float* to) {
  if constexpr (kNumber <= Number::kInteger8) {
    constexpr Codes kCodes = kNumber == Number::kInteger2   ? Codes::kN2
                             : kNumber == Number::kInteger4 ? Codes::kN4
                             : kNumber == Number::kInteger6 ? Codes::kN6
                                                            : Codes::kN8;
    const __m256i byte = _mm256_set1_epi32(255);
    NIBBLE_UNROLL
    for (int i = 0; i < 8; ++i) {
      const Numbers& w = i < 4 ? first : second;
      const __m256i codes = load_codes<kCodes>(block, i / 4, i % 4);
      NIBBLE_UNROLL
      for (int b = 0; b < 4; ++b) {
        const __m256i code = _mm256_and_si256(_mm256_srli_epi32(codes, 8 * b), byte);
        put<kOffset>(w, _mm256_cvtepi32_ps(_mm256_sub_epi32(code, w.zero)), to + i * 64 + b * 16);
      }
    }
  } else if constexpr (kNumber == Number::kTable4) {
    const __m256 low = _mm256_load_ps(table);
    const __m256 high = _mm256_load_ps(table + 8);
    NIBBLE_UNROLL
    for (int i = 0; i < 32; ++i) {
      const __m256i code =
          _mm256_srli_epi32(load(block + i % 16 / 4 * 128), i % 4 * 8 + (i < 16 ? 0 : 4));
      put<false>(i < 16 ? first : second, look_up(code, low, high), to + i * 16);
    }
  } else if constexpr (kNumber == Number::kBF16) {
    NIBBLE_UNROLL
    for (int i = 0; i < 16; ++i) {
      const __m256i line = load(block + i * 128);
      const __m256i odd = _mm256_and_si256(line, _mm256_set1_epi32(-0x10000));
      _mm256_store_ps(to + i * 32, _mm256_castsi256_ps(_mm256_slli_epi32(line, 16)));
      _mm256_store_ps(to + i * 32 + 16, _mm256_castsi256_ps(odd));
    }
  } else if constexpr (kNumber == Number::kF16) {
    NIBBLE_UNROLL
    for (int i = 0; i < 16; ++i) {
      const __m256i line = load(block + i * 128);
      _mm256_store_ps(to + i * 32, low_half(line));
      _mm256_store_ps(to + i * 32 + 16, high_half(line));
    }
  } else if constexpr (kNumber == Number::kF32) {
    NIBBLE_UNROLL
    for (int i = 0; i < 32; ++i) {
      _mm256_store_ps(to + i * 16, _mm256_castsi256_ps(load(block + i * 128)));
    }
  } else {  // 8-bit floats
    constexpr Float8 kFloat = kNumber == Number::kE4M3       ? Float8::kE4M3
                              : kNumber == Number::kE4M3FNUZ ? Float8::kE4M3FNUZ
                                                             : Float8::kE5M2;
    const __m256 fix = _mm256_set1_ps(kFix<kFloat>);
    NIBBLE_UNROLL
    for (int j = 0; j < 8; ++j) {
      const Numbers& w = j < 4 ? first : second;
      const __m256i line = load(block + j * 128);
      const __m256i even = even_halves<kFloat>(line);
      const __m256i odd = odd_halves<kFloat>(line);
      float* at = to + j * 64;
      put<false>(w, _mm256_mul_ps(low_half(even), fix), at);
      put<false>(w, _mm256_mul_ps(low_half(odd), fix), at + 16);
      put<false>(w, _mm256_mul_ps(high_half(even), fix), at + 32);
      put<false>(w, _mm256_mul_ps(high_half(odd), fix), at + 48);
    }
  }
}

// Inputs [k, k + count) of a tile, multiples of 32.
template <Number kNumber, bool kOffset>
void unpack(const Layout& l, const std::byte* tile, int64_t k, int64_t count, int64_t ahead,
            Panel& panel) {
  for (int64_t at = 0; at < count; at += kBlockK) {
    const int64_t g = (k + at) / l.group;
    const auto group = group_in(l, tile, g);
    const std::byte* block = group.blocks + (k + at - g * l.group) / kBlockK * l.block_bytes;
    prefetch_codes(block, l.block_bytes, ahead);
    for (int64_t row = 0; row < kTileRows; row += 8) {
      Numbers first = {};
      Numbers second = {};
      if constexpr (kNumber < Number::kBF16) {
        first = load_numbers(l, header_parts(l, group.header, group.super, 0), row);
        second = load_numbers(l, header_parts(l, group.header, group.super, l.sets - 1), row);
      }
      unpack_block<kNumber, kOffset>(l.values, block + row * 4, first, second,
                                     panel.w[row / 16][at] + row % 16);
    }
  }
}

// sum += w * x, in the register of the sum: see madd in avx2_matmul.cc.
NIBBLE_INLINE void fma(__m256& sum, __m256 w, __m256 x) {
  asm("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(w), "x"(x));
}

// y (kRows, 16 of 32) += half a panel's inputs [0, count) of kRows tokens. With few rows even and
// odd inputs have their own sums, else the adds would wait for one another.
template <int kRows>
NIBBLE_INLINE void multiply_half(const float* w, int64_t count, const float* x, float* y) {
#define NIBBLE_DECLARE(r) \
  [[maybe_unused]] __m256 a##r = _mm256_setzero_ps(), b##r = a##r, c##r = a##r, d##r = a##r;
  NIBBLE_ROWS_6(NIBBLE_DECLARE)
#undef NIBBLE_DECLARE
  do {
    const __m256 w0 = _mm256_load_ps(w);
    const __m256 w1 = _mm256_load_ps(w + 8);
#define NIBBLE_DOT(r)                      \
  if constexpr (kRows > r) {               \
    const __m256 v = _mm256_set1_ps(x[r]); \
    fma(a##r, w0, v);                      \
    fma(b##r, w1, v);                      \
  }
    NIBBLE_ROWS_6(NIBBLE_DOT)
#undef NIBBLE_DOT
    const __m256 w2 = _mm256_load_ps(w + 16);
    const __m256 w3 = _mm256_load_ps(w + 24);
#define NIBBLE_DOT(r)                              \
  if constexpr (kRows > r) {                       \
    const __m256 v = _mm256_set1_ps(x[kRows + r]); \
    fma(kRows < 4 ? c##r : a##r, w2, v);           \
    fma(kRows < 4 ? d##r : b##r, w3, v);           \
  }
    NIBBLE_ROWS_6(NIBBLE_DOT)
#undef NIBBLE_DOT
    w += 32;
    x += 2 * kRows;
    count -= 2;
  } while (count > 0);
#define NIBBLE_ADD(r)                                                                     \
  if constexpr (kRows > r) {                                                              \
    if constexpr (kRows < 4) a##r = _mm256_add_ps(a##r, c##r);                            \
    if constexpr (kRows < 4) b##r = _mm256_add_ps(b##r, d##r);                            \
    _mm256_store_ps(y + r * 32, _mm256_add_ps(_mm256_load_ps(y + r * 32), a##r));         \
    _mm256_store_ps(y + r * 32 + 8, _mm256_add_ps(_mm256_load_ps(y + r * 32 + 8), b##r)); \
  }
  NIBBLE_ROWS_6(NIBBLE_ADD)
#undef NIBBLE_ADD
}

template <int kRows>
void multiply(const Panel& panel, int64_t count, const float* x, float* y) {
  multiply_half<kRows>(panel.w[0][0], count, x, y);
  multiply_half<kRows>(panel.w[1][0], count, x, y + 16);
}

using Multiply = void (*)(const Panel&, int64_t, const float*, float*);
#define NIBBLE_MULTIPLY(r) multiply<r + 1>,
constexpr Multiply kMultiply[6] = {NIBBLE_ROWS_6(NIBBLE_MULTIPLY)};
#undef NIBBLE_MULTIPLY

using Unpack = void (*)(const Layout&, const std::byte*, int64_t, int64_t, int64_t, Panel&);
template <Number kNumber>
Unpack unpack_of(const Layout& l) {
  return l.has_offset ? unpack<kNumber, true> : unpack<kNumber, false>;
}
Unpack unpack_of(Element element, const Layout& l) {
  switch (element) {
    case Element::kF32:
      return unpack<Number::kF32, false>;
    case Element::kF16:
      return unpack<Number::kF16, false>;
    case Element::kBF16:
      return unpack<Number::kBF16, false>;
    case Element::kE4M3:
      return unpack<Number::kE4M3, false>;
    case Element::kE4M3FNUZ:
      return unpack<Number::kE4M3FNUZ, false>;
    case Element::kE5M2:
      return unpack<Number::kE5M2, false>;
    case Element::kE2M1:
    case Element::kNF4:
    case Element::kFP4:
      return unpack<Number::kTable4, false>;
    default:
      break;
  }
  switch (l.packing) {
    case Packing::kN2:
      return unpack_of<Number::kInteger2>(l);
    case Packing::kN4:
      return unpack_of<Number::kInteger4>(l);
    case Packing::kN6:
      return unpack_of<Number::kInteger6>(l);
    default:
      return unpack_of<Number::kInteger8>(l);
  }
}

// Few tokens: a tile at a time, y in a dense copy until all inputs are done.
void few_tokens(const KernelArgs& args, Unpack unpack) {
  const Layout& l = *args.layout;
  auto* panel = reinterpret_cast<Panel*>(args.scratch);
  auto* dense = reinterpret_cast<float*>(args.scratch + kPanels * sizeof(Panel));
  const int64_t tokens = args.m_end - args.m_begin;
  for (int64_t tile = args.tile_begin; tile < args.tile_end; ++tile) {
    __builtin_memset(dense, 0, static_cast<size_t>(tokens * kTileRows) * 4);
    for (int64_t k = 0; k < l.k_pad; k += kShortK) {
      const int64_t count = l.k_pad - k < kShortK ? l.k_pad - k : kShortK;
      unpack(l, args.weight->bytes.data() + tile * l.tile_bytes, k, count, args.ahead, *panel);
      for (int64_t m = args.m_begin; m < args.m_end; m += args.x->rows) {
        const TokenBlock x = token_block(*args.x, m);
        kMultiply[x.rows - 1](*panel, count, reinterpret_cast<const float*>(x.data) + k * x.rows,
                              dense + (m - args.m_begin) * kTileRows);
      }
    }
    store_y(dense, tokens, l.n - tile * kTileRows,
            args.y + args.m_begin * args.ldy + tile * kTileRows, args.ldy);
  }
}

// `tiles` tiles from `tile` on, all tokens, inputs [k, k + count).
void multiply_panels(const KernelArgs& args, Unpack unpack, int64_t tile, int64_t tiles, int64_t k,
                     int64_t count) {
  const Layout& l = *args.layout;
  auto* panels = reinterpret_cast<Panel*>(args.scratch);
  auto* dense = reinterpret_cast<float*>(args.scratch + kPanels * sizeof(Panel));
  for (int64_t t = 0; t < tiles; ++t) {
    unpack(l, args.weight->bytes.data() + (tile + t) * l.tile_bytes, k, count, args.ahead,
           panels[t]);
  }
  for (int64_t m = args.m_begin; m < args.m_end; m += args.x->rows) {
    const TokenBlock x = token_block(*args.x, m);
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t n = (tile + t) * kTileRows;
      float* y = args.y + m * args.ldy + n;
      if (k == 0) {
        __builtin_memset(dense, 0, static_cast<size_t>(x.rows * kTileRows) * 4);
      } else {
        load_y(y, args.ldy, x.rows, l.n - n, dense);
      }
      kMultiply[x.rows - 1](panels[t], count, reinterpret_cast<const float*>(x.data) + k * x.rows,
                            dense);
      store_y(dense, x.rows, l.n - n, y, args.ldy);
    }
  }
}

void multiply_any(const KernelArgs& args) {
  const Unpack unpack = unpack_of(args.weight->problem.weight.element, *args.layout);
  if (args.m_end - args.m_begin <= kFewTokens) return few_tokens(args, unpack);
  for (int64_t tile = args.tile_begin; tile < args.tile_end; tile += kPanels) {
    const int64_t left = args.tile_end - tile;
    const int64_t tiles = left < kPanels ? left : kPanels;
    for (int64_t k = 0; k < args.layout->k_pad; k += kPanelK) {
      const int64_t rest = args.layout->k_pad - k;
      multiply_panels(args, unpack, tile, tiles, k, rest < kPanelK ? rest : kPanelK);
    }
  }
}

}  // namespace

void matmul_f32_x2g_avx2(const KernelArgs& args) noexcept { multiply_any(args); }
void matmul_f32_x4g_avx2(const KernelArgs& args) noexcept { multiply_any(args); }
void matmul_f32_x6g_avx2(const KernelArgs& args) noexcept { multiply_any(args); }
void matmul_f32_x8g_avx2(const KernelArgs& args) noexcept { multiply_any(args); }
void matmul_f32_x16_avx2(const KernelArgs& args) noexcept { multiply_any(args); }
void matmul_f32_f32_avx2(const KernelArgs& args) noexcept { multiply_any(args); }

}  // namespace nibble::kernels
