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

// Codes as floats, less `zero` for int8; the scale is multiplied into the queries and the
// probabilities.
template <KvType kType>
NIBBLE_INLINE F load_kv(const std::byte* p, int64_t i, F zero_point) {
  if constexpr (kType == KvType::kF32) {
    return load(reinterpret_cast<const float*>(p) + i);
  } else if constexpr (kType == KvType::kF16) {
    return load_f16(reinterpret_cast<const uint16_t*>(p) + i);
  } else if constexpr (kType == KvType::kBf16) {
    return load_bf16(reinterpret_cast<const uint16_t*>(p) + i);
  } else if constexpr (kType == KvType::kE4M3) {
    return load_e4m3(reinterpret_cast<const uint8_t*>(p) + i);
  } else if constexpr (kType == KvType::kE5M2) {
    return load_e5m2(reinterpret_cast<const uint8_t*>(p) + i);
  } else {
    return sub(load_s8(reinterpret_cast<const uint8_t*>(p) + i), zero_point);
  }
}

constexpr bool is_8_bit(KvType type) {
  return type == KvType::kE4M3 || type == KvType::kE5M2 || type == KvType::kS8;
}
template <KvType kType>
constexpr int64_t kSize = kType == KvType::kF32 ? 4
                          : is_8_bit(kType)     ? 1
                                                : 2;
// What load_kv's numbers are to be multiplied by.
template <KvType kType>
constexpr float kFactor = kType == KvType::kE4M3 ? 256.0f : 1.0f;

// scores[r][0 .. kVecs * kLanes) = q[r] . keys, for blocks of keys that begin at `keys`.
template <int kRows, int kVecs, KvType kType>
NIBBLE_INLINE void score_tile(const float* q, int64_t dim, const std::byte* keys, float zero_point,
                              float* scores) {
  const F zp = all(zero_point);
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
      k[v] = load_kv<kType>(keys, (token / kBlock * dim + d) * kBlock + token % kBlock, zp);
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
void score_rows(const float* q, int64_t dim, const std::byte* keys, float zero_point,
                int64_t blocks, float* scores) {
  constexpr int64_t kStep = 2 * kLanes / kBlock;  // blocks in two registers: 1 or 2
  int64_t b = 0;
  for (; b + kStep <= blocks; b += kStep) {
    score_tile<kRows, 2, kType>(q, dim, keys + b * dim * kBlock * kSize<kType>, zero_point,
                                scores + b * kBlock);
  }
  if constexpr (kStep == 2) {
    if (b < blocks) {
      score_tile<kRows, 1, kType>(q, dim, keys + b * dim * kBlock * kSize<kType>, zero_point,
                                  scores + b * kBlock);
    }
  }
}

// acc[r][0 .. kVecs * kLanes) = acc * keep[r] + sum over t of p[r][t] v[t].
template <int kRows, int kVecs, KvType kType>
NIBBLE_INLINE void value_tile(const float* p, const float* keep, int64_t tokens,
                              const std::byte* values, float zero_point, int64_t dim, float* acc) {
  const F zp = all(zero_point);
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
    for (int v = 0; v < kVecs; ++v) x[v] = load_kv<kType>(values, t * dim + v * kLanes, zp);
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
                float zero_point, int64_t dim, float* acc) {
  int64_t d = 0;
  for (; d + 2 * kLanes <= dim; d += 2 * kLanes) {
    value_tile<kRows, 2, kType>(p, keep, tokens, values + d * kSize<kType>, zero_point, dim,
                                acc + d);
  }
  for (; d < dim; d += kLanes) {
    value_tile<kRows, 1, kType>(p, keep, tokens, values + d * kSize<kType>, zero_point, dim,
                                acc + d);
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
void score_all(const float* q, int64_t rows, int64_t dim, const std::byte* keys, float zero_point,
               int64_t blocks, float* scores) {
  for (int64_t r = 0; r < rows; r += kMostRows) {
    NIBBLE_FOR_ROWS(at_most(rows - r, kMostRows), score_rows, q + r * dim, dim, keys, zero_point,
                    blocks, scores + r * kKeyTile)
  }
}

template <KvType kType>
void value_all(const float* p, const float* keep, int64_t rows, int64_t tokens,
               const std::byte* values, float zero_point, int64_t dim, float* acc) {
  for (int64_t r = 0; r < rows; r += kMostRows) {
    NIBBLE_FOR_ROWS(at_most(rows - r, kMostRows), value_rows, p + r * kKeyTile, keep + r, tokens,
                    values, zero_point, dim, acc + r * dim)
  }
}
#undef NIBBLE_FOR_ROWS

template <KvType kType>
void widen(const std::byte* from, int64_t n, float zero_point, float* to) {  // n: a multiple of 16
  const F zp = all(zero_point);
  for (int64_t i = 0; i < n; i += kLanes) store(to + i, load_kv<kType>(from, i, zp));
}

// row[i] *= scale[i] over whole blocks, and the same with one scale for all.
void scale_tokens(float* row, const float* scale, float factor, int64_t width) {
  const F f = all(factor);
  for (int64_t i = 0; i < width; i += kLanes) {
    const F one = scale == nullptr ? f : mul(f, load(scale + i));
    store(row + i, mul(one, load(row + i)));
  }
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
    widen<kType>(keys, blocks * kBlock * a.key_dim, a.key_zero, s.keys);
    widen<kType>(values, tokens * a.value_dim, a.value_zero, s.values);
    score_all<KvType::kF32>(q, count, a.key_dim, reinterpret_cast<const std::byte*>(s.keys), 0,
                            blocks, scores);
  } else {
    score_all<kType>(q, count, a.key_dim, keys, a.key_zero, blocks, scores);
  }
  const float* key_scales = nullptr;  // each token's own
  const float* value_scales = nullptr;
  if (is_8_bit(kType) && a.scale_offset >= 0) {
    key_scales = reinterpret_cast<const float*>(page + a.scale_offset) + at;
    value_scales = key_scales + KvCache::kPageTokens;
  }
  for (int64_t r = rows.first; r < rows.end; ++r) {
    const int64_t position = a.first_position + r / a.group;
    const int64_t lo = a.window > 0 ? at_least(0, position - a.window + 1 - begin) : 0;
    const int64_t hi = at_most(tokens, position + 1 - begin);
    float* row = s.scores + r * kKeyTile;
    if (key_scales != nullptr) scale_tokens(row, key_scales, 1, blocks * kBlock);
    s.keep[r] = soften_row(row, lo, hi, blocks * kBlock, a.soft_cap, a.max + r, a.sum + r);
    if constexpr (is_8_bit(kType)) {
      scale_tokens(row, value_scales, a.value_scale * kFactor<kType>, blocks * kBlock);
    }
  }
  float* acc = a.acc + rows.first * a.value_dim;
  if (wide) {
    value_all<KvType::kF32>(scores, s.keep + rows.first, count, tokens,
                            reinterpret_cast<const std::byte*>(s.values), 0, a.value_dim, acc);
  } else {
    value_all<kType>(scores, s.keep + rows.first, count, tokens, values, a.value_zero, a.value_dim,
                     acc);
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
  const float q_scale =
      a.scale * a.key_scale * (a.type == KvType::kE4M3 ? kFactor<KvType::kE4M3> : 1);
  for (int64_t r = 0; r < a.rows; ++r) {
    const float* from = a.q + r / a.group * a.ldq + r % a.group * a.key_dim;
    scale_row(from, a.key_dim, q_scale, s.q + r * a.key_dim);
    a.max[r] = -__builtin_inff();
    a.sum[r] = 0;
    for (int64_t d = 0; d < a.value_dim; d += kLanes) store(a.acc + r * a.value_dim + d, zero());
  }
  switch (a.type) {
    case KvType::kF32:
      return run_range<KvType::kF32>(a, s);
    case KvType::kBf16:
      return run_range<KvType::kBf16>(a, s);
    case KvType::kF16:
      return run_range<KvType::kF16>(a, s);
    case KvType::kE4M3:
      return run_range<KvType::kE4M3>(a, s);
    case KvType::kE5M2:
      return run_range<KvType::kE5M2>(a, s);
    case KvType::kS8:
      return run_range<KvType::kS8>(a, s);
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

// One float to a byte, without branches, so that the compiler makes loops of it into vectors. The
// same codes as base::e4m3_from_f32 and e5m2_from_f32 give for finite numbers within the range.
template <int kMantissa, int kBias>
NIBBLE_INLINE uint32_t fp8_code(float v, float most) {
  uint32_t bits;
  __builtin_memcpy(&bits, &v, 4);
  const uint32_t sign = bits >> 24 & 0x80;
  const float a = __builtin_fabsf(v) < most ? __builtin_fabsf(v) : most;
  __builtin_memcpy(&bits, &a, 4);
  constexpr int kShift = 23 - kMantissa;
  const uint32_t normal = ((bits + (1u << (kShift - 1)) - 1 + (bits >> kShift & 1)) >> kShift) -
                          (static_cast<uint32_t>(127 - kBias) << kMantissa);
  // Below the smallest normal number: added to a number whose last bit has that weight, it is
  // rounded by the addition itself.
  constexpr uint32_t kMagicBits = static_cast<uint32_t>(127 + 23 + 1 - kBias - kMantissa) << 23;
  float magic;
  __builtin_memcpy(&magic, &kMagicBits, 4);
  const float sum_ = a + magic;
  uint32_t small;
  __builtin_memcpy(&small, &sum_, 4);
  small -= kMagicBits;
  constexpr uint32_t kSmallest = static_cast<uint32_t>(127 + 1 - kBias) << 23;
  return sign | (bits < kSmallest ? small : normal);
}

NIBBLE_INLINE uint32_t s8_code(float v, float zero_point) {
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number, to even
  float x = v + zero_point;
  x = x < -128.0f ? -128.0f : x > 127.0f ? 127.0f : x;
  x += kMagic;
  uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  return bits & 0xff;
}

// code_of(v[i]) for all i; a loop of known length becomes vectors.
template <class CodeOf>
NIBBLE_INLINE void each_code(const float* v, int64_t n, uint8_t* out, CodeOf code_of) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (int64_t j = 0; j < 16; ++j) out[i + j] = static_cast<uint8_t>(code_of(v[i + j]));
  }
  for (; i < n; ++i) out[i] = static_cast<uint8_t>(code_of(v[i]));
}

// n floats as bytes.
void narrow8(const KvCode& how, const float* v, int64_t n, uint8_t* out) {
  const float scale = how.scale;
  const float zero_point = how.zero;
  switch (how.type) {
    case KvType::kE4M3:
      return each_code(v, n, out, [=](float x) { return fp8_code<3, 7>(x / scale, 448.0f); });
    case KvType::kE5M2:
      return each_code(v, n, out, [=](float x) { return fp8_code<2, 15>(x / scale, 57344.0f); });
    default:
      return each_code(v, n, out, [=](float x) { return s8_code(x / scale, zero_point); });
  }
}

// Codes of one head's key, to every 16th place.
template <class Code, class Narrow>
NIBBLE_INLINE void spread(const float* k, int64_t n, std::byte* out, Narrow narrow_some) {
  Code* to = reinterpret_cast<Code*>(out);
  alignas(64) Code codes[64];
  for (int64_t i = 0; i < n; i += 64) {
    const int64_t some = at_most(64, n - i);
    narrow_some(k + i, some, codes);
    for (int64_t j = 0; j < some; ++j) to[(i + j) * kBlock] = codes[j];
  }
}

void store_key(const KvCode& how, const float* k, int64_t n, std::byte* out) noexcept {
  if (how.type == KvType::kF32) {
    float* to = reinterpret_cast<float*>(out);
    for (int64_t i = 0; i < n; ++i) to[i * kBlock] = k[i];
  } else if (is_8_bit(how.type)) {
    spread<uint8_t>(k, n, out, [&how](const float* from, int64_t some, uint8_t* to) {
      narrow8(how, from, some, to);
    });
  } else {
    spread<uint16_t>(k, n, out, [&how](const float* from, int64_t some, uint16_t* to) {
      narrow(how.type, from, some, to);
    });
  }
}

void store_value(const KvCode& how, const float* v, int64_t n, std::byte* out) noexcept {
  const int64_t padded = (n + 15) / 16 * 16;
  if (how.type == KvType::kF32) {
    float* to = reinterpret_cast<float*>(out);
    for (int64_t i = 0; i < padded; ++i) to[i] = i < n ? v[i] : 0.0f;
    return;
  }
  if (is_8_bit(how.type)) {
    uint8_t* to = reinterpret_cast<uint8_t*>(out);
    narrow8(how, v, n, to);
    for (int64_t i = n; i < padded; ++i) to[i] = 0;
    return;
  }
  uint16_t* to = reinterpret_cast<uint16_t*>(out);
  narrow(how.type, v, n, to);
  // With registers of 8 the last of them may end 8 short of the padding.
  for (int64_t i = (n + kLanes - 1) / kLanes * kLanes; i < padded; ++i) to[i] = 0;
}

}  // namespace
}  // namespace nibble::kernels::NIBBLE_SIMD
