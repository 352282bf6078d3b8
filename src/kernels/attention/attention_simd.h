// attention_ops.h written against kernels/simd/; avx2.cc and avx512.cc name the vocabulary and
// include this.
//
// A range is walked in tiles of kKeyTile keys with the online softmax (Milakov and Gimelshein,
// arXiv 1805.02867): for each tile scores, their exponentials against the largest so far, and the
// values' sum, scaled down where a larger score came.
#pragma once

#include "kernels/attention/attention_ops.h"
#include "kernels/attention/kv_cache.h"
#include NIBBLE_SIMD_HEADER

// Small loops over registers must be unrolled for their arrays to become registers.
#if defined(__clang__)
#define NIBBLE_UNROLL _Pragma("unroll")
#else
#define NIBBLE_UNROLL _Pragma("GCC unroll 16")
#endif

namespace nibble::kernels::NIBBLE_SIMD {
namespace {

constexpr int64_t kBlock = KvCache::kBlockTokens;
constexpr int kMostRows = kLanes == 16 ? 8 : 6;  // rows of the register tiles, two registers each

template <KvType kType>
NIBBLE_INLINE F load_kv(const std::byte* p, int64_t i) {
  if constexpr (kType == KvType::kF32) {
    return load(reinterpret_cast<const float*>(p) + i);
  } else if constexpr (kType == KvType::kF16) {
    return load_f16(reinterpret_cast<const uint16_t*>(p) + i);
  } else {
    return load_bf16(reinterpret_cast<const uint16_t*>(p) + i);
  }
}

template <KvType kType>
constexpr int64_t kSize = kType == KvType::kF32 ? 4 : 2;

// scores[r][0 .. kVecs * kLanes) = q[r] . keys, for blocks of keys that begin at `keys`.
template <int kRows, int kVecs, KvType kType>
NIBBLE_INLINE void score_tile(const float* q, int64_t dim, const std::byte* keys, float* scores) {
  F s[kRows][kVecs];
  NIBBLE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    NIBBLE_UNROLL
    for (int v = 0; v < kVecs; ++v) s[r][v] = zero();
  }
  for (int64_t d = 0; d < dim; ++d) {
    F k[kVecs];
    NIBBLE_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      const int64_t token = v * kLanes;  // within the tile: block token / 16, lane token % 16
      k[v] = load_kv<kType>(keys, (token / kBlock * dim + d) * kBlock + token % kBlock);
    }
    NIBBLE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const F b = all(q[r * dim + d]);
      NIBBLE_UNROLL
      for (int v = 0; v < kVecs; ++v) s[r][v] = fma(b, k[v], s[r][v]);
    }
  }
  NIBBLE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    NIBBLE_UNROLL
    for (int v = 0; v < kVecs; ++v) store(scores + r * kKeyTile + v * kLanes, s[r][v]);
  }
}

template <int kRows, KvType kType>
void score_rows(const float* q, int64_t dim, const std::byte* keys, int64_t blocks, float* scores) {
  constexpr int64_t kStep = 2 * kLanes / kBlock;  // blocks in two registers: 1 or 2
  int64_t b = 0;
  for (; b + kStep <= blocks; b += kStep) {
    score_tile<kRows, 2, kType>(q, dim, keys + b * dim * kBlock * kSize<kType>,
                                scores + b * kBlock);
  }
  if constexpr (kStep == 2) {
    if (b < blocks) {
      score_tile<kRows, 1, kType>(q, dim, keys + b * dim * kBlock * kSize<kType>,
                                  scores + b * kBlock);
    }
  }
}

// acc[r][0 .. kVecs * kLanes) = acc * keep[r] + sum over t of p[r][t] v[t].
template <int kRows, int kVecs, KvType kType>
NIBBLE_INLINE void value_tile(const float* p, const float* keep, int64_t tokens,
                              const std::byte* values, int64_t dim, float* acc) {
  F s[kRows][kVecs];
  NIBBLE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const F f = all(keep[r]);
    NIBBLE_UNROLL
    for (int v = 0; v < kVecs; ++v) s[r][v] = mul(f, load(acc + r * dim + v * kLanes));
  }
  for (int64_t t = 0; t < tokens; ++t) {
    F x[kVecs];
    NIBBLE_UNROLL
    for (int v = 0; v < kVecs; ++v) x[v] = load_kv<kType>(values, t * dim + v * kLanes);
    NIBBLE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const F b = all(p[r * kKeyTile + t]);
      NIBBLE_UNROLL
      for (int v = 0; v < kVecs; ++v) s[r][v] = fma(b, x[v], s[r][v]);
    }
  }
  NIBBLE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    NIBBLE_UNROLL
    for (int v = 0; v < kVecs; ++v) store(acc + r * dim + v * kLanes, s[r][v]);
  }
}

template <int kRows, KvType kType>
void value_rows(const float* p, const float* keep, int64_t tokens, const std::byte* values,
                int64_t dim, float* acc) {
  int64_t d = 0;
  for (; d + 2 * kLanes <= dim; d += 2 * kLanes) {
    value_tile<kRows, 2, kType>(p, keep, tokens, values + d * kSize<kType>, dim, acc + d);
  }
  for (; d < dim; d += kLanes) {
    value_tile<kRows, 1, kType>(p, keep, tokens, values + d * kSize<kType>, dim, acc + d);
  }
}

// Calls the function for as many rows as there are, at most kMostRows at a time.
#define NIBBLE_FOR_ROWS(count, function, ...)               \
  switch (count) {                                          \
    case 1:                                                 \
      function<1, kType>(__VA_ARGS__);                      \
      break;                                                \
    case 2:                                                 \
      function<2, kType>(__VA_ARGS__);                      \
      break;                                                \
    case 3:                                                 \
      function<3, kType>(__VA_ARGS__);                      \
      break;                                                \
    case 4:                                                 \
      function<4, kType>(__VA_ARGS__);                      \
      break;                                                \
    case 5:                                                 \
      function<5, kType>(__VA_ARGS__);                      \
      break;                                                \
    case 6:                                                 \
      function<6, kType>(__VA_ARGS__);                      \
      break;                                                \
    case 7:                                                 \
      function<kMostRows == 8 ? 7 : 1, kType>(__VA_ARGS__); \
      break;                                                \
    default:                                                \
      function<kMostRows, kType>(__VA_ARGS__);              \
      break;                                                \
  }

int64_t at_most(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t at_least(int64_t a, int64_t b) { return a > b ? a : b; }

// A tile of keys against rows [0, rows) of q; keys and values in kType.
template <KvType kType>
void score_all(const float* q, int64_t rows, int64_t dim, const std::byte* keys, int64_t blocks,
               float* scores) {
  for (int64_t r = 0; r < rows; r += kMostRows) {
    NIBBLE_FOR_ROWS(at_most(rows - r, kMostRows), score_rows, q + r * dim, dim, keys, blocks,
                    scores + r * kKeyTile)
  }
}

template <KvType kType>
void value_all(const float* p, const float* keep, int64_t rows, int64_t tokens,
               const std::byte* values, int64_t dim, float* acc) {
  for (int64_t r = 0; r < rows; r += kMostRows) {
    NIBBLE_FOR_ROWS(at_most(rows - r, kMostRows), value_rows, p + r * kKeyTile, keep + r, tokens,
                    values, dim, acc + r * dim)
  }
}
#undef NIBBLE_FOR_ROWS

template <KvType kType>
void widen(const std::byte* from, int64_t n, float* to) {  // n is a multiple of 16
  for (int64_t i = 0; i < n; i += kLanes) store(to + i, load_kv<kType>(from, i));
}

float exp_of(float x) {
  alignas(64) float v[kLanes];
  store(v, exp(all(x)));
  return v[0];
}

// Scores to probabilities against the new maximum, in place. Keys outside [lo, hi) of the tile are
// not this row's. Returns the factor for what was summed before.
float soften_row(float* s, int64_t lo, int64_t hi, int64_t width, float soft_cap, float* row_max,
                 float* row_sum) {
  if (soft_cap > 0) {
    const F cap = all(soft_cap);
    for (int64_t i = 0; i < width; i += kLanes) {
      store(s + i, mul(cap, tanh(div(load(s + i), cap))));
    }
  }
  for (int64_t i = 0; i < lo; ++i) s[i] = -__builtin_inff();
  for (int64_t i = hi; i < width; ++i) s[i] = -__builtin_inff();
  F top = all(*row_max);
  for (int64_t i = 0; i < width; i += kLanes) top = max(load(s + i), top);
  const float new_max = largest(top);
  const F m = all(new_max);
  F total = zero();
  for (int64_t i = 0; i < width; i += kLanes) {
    const F p = exp_falling(sub(load(s + i), m));
    store(s + i, p);
    total = add(total, p);
  }
  const float keep = new_max == *row_max ? 1.0f : exp_of(*row_max - new_max);
  *row_sum = *row_sum * keep + sum(total);
  *row_max = new_max;
  return keep;
}

// Rows of the range that see any key of [begin, end): positions begin .. end + window - 2.
struct Rows {
  int64_t first;
  int64_t end;
};
Rows rows_for(const AttentionRange& a, int64_t begin, int64_t end) {
  Rows rows = {at_least(0, begin - a.first_position) * a.group, a.rows};
  if (a.window > 0) {
    rows.end = at_most(rows.end, at_least(0, end + a.window - 1 - a.first_position) * a.group);
  }
  return rows;
}

struct Scratch {
  float* q;       // (rows, key_dim), scaled
  float* scores;  // (rows, kKeyTile)
  float* keep;    // (rows)
  float* keys;    // a tile in float
  float* values;
};

template <KvType kType>
void run_tile(const AttentionRange& a, const Scratch& s, int64_t begin, int64_t end) {
  const Rows rows = rows_for(a, begin, end);
  if (rows.first >= rows.end) return;
  const int64_t count = rows.end - rows.first;
  const std::byte* page = a.pages[begin / KvCache::kPageTokens];
  const int64_t at = begin % KvCache::kPageTokens;
  const std::byte* keys = page + a.key_offset + at * a.key_dim * kSize<kType>;
  const std::byte* values = page + a.value_offset + at * a.value_dim * kSize<kType>;
  const int64_t tokens = end - begin;
  const int64_t blocks = (tokens + kBlock - 1) / kBlock;
  float* scores = s.scores + rows.first * kKeyTile;
  const float* q = s.q + rows.first * a.key_dim;
  // Where the tile is used more than once it is made float32 first.
  const bool wide = count > kMostRows && kType != KvType::kF32;
  if (wide) {
    widen<kType>(keys, blocks * kBlock * a.key_dim, s.keys);
    widen<kType>(values, tokens * a.value_dim, s.values);
    score_all<KvType::kF32>(q, count, a.key_dim, reinterpret_cast<const std::byte*>(s.keys), blocks,
                            scores);
  } else {
    score_all<kType>(q, count, a.key_dim, keys, blocks, scores);
  }
  for (int64_t r = rows.first; r < rows.end; ++r) {
    const int64_t position = a.first_position + r / a.group;
    const int64_t lo = a.window > 0 ? at_least(0, position - a.window + 1 - begin) : 0;
    const int64_t hi = at_most(tokens, position + 1 - begin);
    s.keep[r] = soften_row(s.scores + r * kKeyTile, lo, hi, blocks * kBlock, a.soft_cap, a.max + r,
                           a.sum + r);
  }
  float* acc = a.acc + rows.first * a.value_dim;
  if (wide) {
    value_all<KvType::kF32>(scores, s.keep + rows.first, count, tokens,
                            reinterpret_cast<const std::byte*>(s.values), a.value_dim, acc);
  } else {
    value_all<kType>(scores, s.keep + rows.first, count, tokens, values, a.value_dim, acc);
  }
}

template <KvType kType>
void run_range(const AttentionRange& a, const Scratch& s) {
  int64_t begin = a.key_begin;
  if (a.window > 0) {
    const int64_t first = at_least(begin, a.first_position - a.window + 1);
    begin += (first - begin) / kKeyTile * kKeyTile;
  }
  for (; begin < a.key_end; begin += kKeyTile) {
    run_tile<kType>(a, s, begin, at_most(begin + kKeyTile, a.key_end));
  }
}

void scale_row(const float* from, int64_t n, float factor, float* to) {
  const F f = all(factor);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(to + i, mul(f, load(from + i)));
  if (i < n) store_n(to + i, n - i, mul(f, load_n(from + i, n - i)));
}

void attention_range(const AttentionRange& a) noexcept {
  Scratch s;
  s.keys = a.scratch;
  s.values = s.keys + kKeyTile * a.key_dim;
  s.scores = s.values + kKeyTile * a.value_dim;
  s.q = s.scores + a.rows * kKeyTile;
  s.keep = s.q + a.rows * a.key_dim;
  for (int64_t r = 0; r < a.rows; ++r) {
    const float* from = a.q + r / a.group * a.ldq + r % a.group * a.key_dim;
    scale_row(from, a.key_dim, a.scale, s.q + r * a.key_dim);
    a.max[r] = -__builtin_inff();
    a.sum[r] = 0;
    for (int64_t d = 0; d < a.value_dim; d += kLanes) store(a.acc + r * a.value_dim + d, zero());
  }
  switch (a.type) {
    case KvType::kF32:
      return run_range<KvType::kF32>(a, s);
    case KvType::kBf16:
      return run_range<KvType::kBf16>(a, s);
    default:  // the cache refuses every other type
      return run_range<KvType::kF16>(a, s);
  }
}

void join_parts(const AttentionParts& parts, float* out) noexcept {
  float top = parts.has_sink ? parts.sink : -__builtin_inff();
  for (int64_t i = 0; i < parts.count; ++i) {
    const float m = parts.max[i * parts.row_stride];
    top = m > top ? m : top;
  }
  float weight[kMostParts];
  float total = parts.has_sink ? exp_of(parts.sink - top) : 0.0f;
  for (int64_t i = 0; i < parts.count; ++i) {
    weight[i] = exp_of(parts.max[i * parts.row_stride] - top);
    total += weight[i] * parts.sum[i * parts.row_stride];
  }
  const F inverse = all(1.0f / total);
  for (int64_t d = 0; d < parts.value_dim; d += kLanes) {
    F s = zero();
    for (int64_t i = 0; i < parts.count; ++i) {
      s = fma(all(weight[i]), load(parts.acc + i * parts.acc_stride + d), s);
    }
    s = mul(s, inverse);
    if (d + kLanes <= parts.value_dim) {
      store(out + d, s);
    } else {
      store_n(out + d, parts.value_dim - d, s);
    }
  }
}

// n floats as 16-bit codes; the last register is filled up with zeros.
void narrow(KvType type, const float* v, int64_t n, uint16_t* out) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const F x = i + kLanes <= n ? load(v + i) : load_n(v + i, n - i);
    if (type == KvType::kF16) {
      store_f16(out + i, x);
    } else {
      store_bf16(out + i, x);
    }
  }
}

void store_key(KvType type, const float* k, int64_t n, std::byte* out) noexcept {
  if (type == KvType::kF32) {
    float* to = reinterpret_cast<float*>(out);
    for (int64_t i = 0; i < n; ++i) to[i * kBlock] = k[i];
    return;
  }
  uint16_t* to = reinterpret_cast<uint16_t*>(out);
  alignas(64) uint16_t codes[64];
  for (int64_t i = 0; i < n; i += 64) {
    const int64_t some = at_most(64, n - i);
    narrow(type, k + i, some, codes);
    for (int64_t j = 0; j < some; ++j) to[(i + j) * kBlock] = codes[j];
  }
}

void store_value(KvType type, const float* v, int64_t n, std::byte* out) noexcept {
  const int64_t padded = (n + 15) / 16 * 16;
  if (type == KvType::kF32) {
    float* to = reinterpret_cast<float*>(out);
    for (int64_t i = 0; i < padded; ++i) to[i] = i < n ? v[i] : 0.0f;
    return;
  }
  uint16_t* to = reinterpret_cast<uint16_t*>(out);
  narrow(type, v, n, to);
  // With registers of 8 the last of them may end 8 short of the padding.
  for (int64_t i = (n + kLanes - 1) / kLanes * kLanes; i < padded; ++i) to[i] = 0;
}

}  // namespace
}  // namespace nibble::kernels::NIBBLE_SIMD
