// Keys and values of one layer, as attention reads them.
//
// Memory comes in pages of kPageTokens tokens, taken as the sequence grows. A page holds, for each
// KV head in turn, the keys and then the values:
//
//   keys    blocks of 16 tokens, transposed:   [token / 16][dim][token % 16]
//           so that a register of 16 scores grows by q[dim] * 16 keys, without sums across lanes
//   values  rows:                              [token][dim], padded with zeros to 16 dims
//   scales  of keys, then of values:           [token] f32, if each token has its own
//
// On a card keys are rows, [token][dim], as values are; the sizes are the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "device/memory.h"
#include "device/stream.h"
#include "kernels/ops.h"
#include "nibble/result.h"

namespace nibble::kernels {

enum class KvType : uint8_t { kF32, kBf16, kF16, kE4M3, kE5M2, kS8 };
const char* name(KvType type);  // the word of --kv-cache-dtype: "f16"
int64_t element_bytes(KvType type);
inline bool is_quantized(KvType type) { return type >= KvType::kE4M3; }

// How the keys and values of an 8-bit cache are held: stored = round(x / scale + zero). One number
// for all heads, or one for each; an empty list of scales is a scale of 1, of zeros a zero of 0.
struct KvScales {
  std::vector<float> k, v;
  std::vector<float> k_zero, v_zero;  // whole numbers, for int8 alone
};

struct KvShape {
  int64_t heads = 0;
  int64_t key_dim = 0;    // of a head
  int64_t value_dim = 0;  // of a head
  KvType type = KvType::kF16;
  // 8-bit types: a scale for each token and head, computed from its largest number when it is
  // stored.
  bool token_scales = false;
};

class KvCache {
 public:
  static constexpr int64_t kPageTokens = 256;
  static constexpr int64_t kBlockTokens = 16;

  // Takes no memory yet. `scales` are for an 8-bit type without token_scales.
  static Result<KvCache> create(const KvShape& shape, KvScales scales = {});

  // What `tokens` tokens take, in bytes; for `fit`.
  static int64_t bytes_for(const KvShape& shape, int64_t tokens);

  // Makes room for `tokens` tokens in all, where the stream's kernels run. The error is the lack of
  // memory.
  Result<void> reserve(device::Stream& stream, int64_t tokens);

  // Adds m tokens: k is (m, heads, key_dim), v is (m, heads, value_dim), with the strides of a
  // token in elements. Values beyond the type's range become inf (f16: above 65504), which shows
  // in the logits; the 8-bit types saturate, and cannot hold nan and inf: see has_not_finite.
  // Precondition: reserve(size() + m). On a CPU: a card's kernels append in attend().
  void append(device::Stream& stream, const Ops& ops, const float* k, int64_t ldk, const float* v,
              int64_t ldv, int64_t m);

  // Forgets the tokens from `tokens` on; keeps the memory. Precondition: tokens <= size().
  void truncate(int64_t tokens);

  // A card's kernels have appended, or will have: so many tokens there are.
  void set_size(int64_t tokens);

  // Gives back pages that hold nothing but tokens before `token`: a sliding window has passed
  // them. Attention must not look there again.
  void drop_before(int64_t token);

  const KvShape& shape() const { return shape_; }
  int64_t size() const { return size_; }  // tokens, dropped ones included
  int64_t bytes() const;                  // memory held
  // An 8-bit cache was given a number that is not finite. Attention over it gives nan, as it would
  // over floats.
  bool has_not_finite() const { return first_not_finite_ < size_; }

  // One head's key or value of a token as float32, for the reference and for tests; of a cache in
  // the host's memory.
  void key(int64_t head, int64_t token, float* out) const;
  void value(int64_t head, int64_t token, float* out) const;

  // For the kernels: pages, and where a head's part lies within each.
  const std::byte* const* pages() const { return page_data_.data(); }
  // Tokens that fit into the pages there are.
  int64_t room() const { return static_cast<int64_t>(page_data_.size()) * kPageTokens; }
  int64_t key_offset(int64_t head) const { return head * head_bytes_; }
  int64_t value_offset(int64_t head) const { return head * head_bytes_ + key_bytes_; }
  // Of the keys' scales; the values' follow kPageTokens floats later. -1 without token_scales.
  int64_t scale_offset(int64_t head) const {
    return shape_.token_scales ? (head + 1) * head_bytes_ - scale_bytes_ : -1;
  }
  float key_scale(int64_t head) const { return of_head(scales_.k, head, 1); }
  float value_scale(int64_t head) const { return of_head(scales_.v, head, 1); }
  float key_zero(int64_t head) const { return of_head(scales_.k_zero, head, 0); }
  float value_zero(int64_t head) const { return of_head(scales_.v_zero, head, 0); }

 private:
  static float of_head(const std::vector<float>& list, int64_t head, float none) {
    return list.empty() ? none : list[list.size() == 1 ? 0 : static_cast<size_t>(head)];
  }
  Result<void> place(device::Stream& stream);
  // False if a number was not finite and could not be stored so.
  bool store_token(const Ops& ops, int64_t token, const float* k, const float* v);
  friend struct CudaKv cuda_kv(const KvCache& cache);

  KvShape shape_;
  KvScales scales_;
  int64_t size_ = 0;
  int64_t first_not_finite_ = INT64_MAX;  // a token
  int64_t element_bytes_ = 0;
  int64_t key_bytes_ = 0;    // of one head in a page
  int64_t scale_bytes_ = 0;  // of one head in a page: of its tokens' scales
  int64_t head_bytes_ = 0;   // all of one head in a page
  std::vector<std::shared_ptr<device::Memory>> buffers_;  // of each page; neighbours may share one
  std::vector<std::byte*> page_data_;
  // On a card. There the first token that is not finite is known; what truncate() says of it is
  // told before the next token.
  device::Memory placed_pages_;
  device::Memory placed_scales_;  // (4, heads), see CudaKv
  device::Memory placed_first_bad_;
  int64_t cut_at_ = INT64_MAX;
};

constexpr int64_t kMostCudaDim = 1024;  // of a key or value, on a card
struct CudaKv;                          // kernels/cuda/abi.h
// A cache in a card's memory, as its kernels want it.
CudaKv cuda_kv(const KvCache& cache);

// Value rows are padded to this many elements.
inline int64_t padded_dim(int64_t dim) { return (dim + 15) / 16 * 16; }

}  // namespace nibble::kernels
