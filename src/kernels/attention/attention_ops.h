// What attention asks of one ISA. Private to attention/, ops.cc and the cache.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nibble::kernels {

enum class KvType : uint8_t;

// How one head's numbers are held: see KvScales.
struct KvCode {
  KvType type;
  float scale = 1;
  float zero = 0;
};

// Rows of queries against a range of keys of one KV head. Row r is query token r / group, head
// r % group of those that share the KV head, at position first_position + r / group.
struct AttentionRange {
  const float* q = nullptr;  // first row; a token's rows are contiguous
  int64_t ldq = 0;           // from token to token, in elements
  int64_t group = 1;
  int64_t rows = 0;
  int64_t first_position = 0;
  float scale = 1;
  float soft_cap = 0;  // 0: none
  int64_t window = 0;  // 0: none

  KvType type;
  const std::byte* const* pages = nullptr;
  int64_t key_offset = 0;
  int64_t value_offset = 0;
  int64_t key_dim = 0;
  int64_t value_dim = 0;  // padded
  int64_t key_begin = 0;  // tokens; a multiple of 64
  int64_t key_end = 0;
  // 8-bit types.
  float key_scale = 1, key_zero = 0;
  float value_scale = 1, value_zero = 0;
  int64_t scale_offset = -1;  // of the tokens' own scales, or -1

  float* scratch = nullptr;  // attention_scratch() floats
  // Out, for the softmax over this range alone: with s the scores of a row,
  //   max = max s    sum = sum e^(s - max)    acc = sum e^(s - max) v
  // A row without a key in the range gets max = -inf, sum = 0, acc = 0.
  float* acc = nullptr;  // (rows, value_dim)
  float* max = nullptr;  // (rows)
  float* sum = nullptr;  // (rows)
};

constexpr int64_t kKeyTile = 64;  // tokens; divides a page

constexpr int64_t kMostParts = 64;  // ranges of a row

// A count of floats, rounded up so that what follows is aligned to 64 bytes.
inline int64_t aligned_floats(int64_t n) { return (n + 15) / 16 * 16; }

// Floats of scratch for a range.
inline int64_t attention_scratch(int64_t rows, int64_t key_dim, int64_t value_dim) {
  return aligned_floats(kKeyTile * (key_dim + value_dim) + rows * (kKeyTile + key_dim + 1));
}

// One row's results over several ranges, to be joined.
struct AttentionParts {
  int64_t count = 1;           // at most kMostParts
  const float* acc = nullptr;  // of the first range
  const float* max = nullptr;
  const float* sum = nullptr;
  int64_t acc_stride = 0;  // from range to range
  int64_t row_stride = 0;  // the same for max and sum
  int64_t value_dim = 0;   // not padded
  bool has_sink = false;
  float sink = 0;  // a score that has no value: it only takes its share of the sum
};

struct AttentionOps {
  void (*range)(const AttentionRange& args) noexcept;
  void (*join)(const AttentionParts& parts, float* out) noexcept;
  // One head's key to every 16th element of `out`; one head's value, padded, to `out`.
  void (*store_key)(const KvCode& how, const float* k, int64_t n, std::byte* out) noexcept;
  void (*store_value)(const KvCode& how, const float* v, int64_t n, std::byte* out) noexcept;
};
extern const AttentionOps kAttentionReference;
extern const AttentionOps kAttentionAvx2;
extern const AttentionOps kAttentionAvx512;

}  // namespace nibble::kernels
