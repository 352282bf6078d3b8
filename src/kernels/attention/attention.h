// Causal attention of query tokens over the KV cache of their layer.
//
//   s[t] = scale q . k[t]                        then cap tanh(s / cap) if there is a soft cap
//   p[t] = e^s[t] / (sum over t' of e^s[t'] + e^sink)        (the sink only if the model has one)
//   out  = sum over t of p[t] v[t]
//
// for t from max(0, position - window + 1) to position. Queries are grouped: query head h reads KV
// head h / (heads / kv_heads).
#pragma once

#include <cstdint>

#include "device/stream.h"
#include "kernels/attention/kv_cache.h"
#include "kernels/ops.h"
#include "kernels/rope/rope.h"
#include "kernels/rows.h"

namespace nibble::kernels {

struct AttentionConfig {
  int64_t heads = 0;             // of queries; a multiple of the cache's
  float scale = 1;               // mostly 1 / sqrt(key_dim)
  float soft_cap = 0;            // 0: none (Gemma 2: 50)
  int64_t window = 0;            // 0: none; else how many tokens a query sees, itself included
  const float* sinks = nullptr;  // (heads) or null
  bool exact = false;            // a card multiplies in float32, too; a CPU always does
};

// A layer's step over m tokens at `position`, which the cache ends with.
struct AttentionStep {
  const RopeRows* rope = nullptr;  // null: nothing is turned
  float* q = nullptr;              // (m, heads, key_dim); it and k may be changed
  int64_t ldq = 0;                 // strides of a token, in elements
  float* k = nullptr;              // (m, KV heads, key_dim)
  int64_t ldk = 0;
  const float* v = nullptr;  // (m, KV heads, value_dim)
  int64_t ldv = 0;
  int64_t position = 0;
  // On a card, where the position is read instead, so that a step that was recorded can be run
  // again further on. Null: nowhere.
  const int32_t* placed_position = nullptr;
  int64_t m = 0;
  Rows out = nullptr;  // (m, heads, value_dim)
  int64_t ldo = 0;
};

// Turns q and k, appends k and v to the cache, and lets q attend. Afterwards the cache holds
// position + m tokens. Precondition: cache.size() is `position`, or on a card also that sum, and
// there is room. A card's kernel may read what the cache held before its predecessors have ended:
// between two steps stands a copy, or another wait for all.
void attend(device::Stream& stream, const Ops& ops, const AttentionConfig& config, KvCache& cache,
            const AttentionStep& step);

// q is (m, heads, key_dim) with the stride of a token in elements; its token i stands at
// `position` + i. out is (m, heads, value_dim). Preconditions: the cache holds position + m tokens
// (the queries' own among them), none of those in the window dropped.
//
// On a CPU; cards have only attend(). Scores, sums and the softmax are float32. How the work is cut
// depends on shapes only, so the result does not depend on the number of threads. Beyond the
// rounding of the stored keys and values the error of an output is below
//   (key_dim / 2 + 8) 2^-24 max|s| + (tokens / 16 + 16) 2^-24, relative to max|v|.
void attention(device::Stream& stream, const Ops& ops, const AttentionConfig& config,
               const KvCache& cache, const float* q, int64_t ldq, int64_t position, int64_t m,
               float* out, int64_t ldo);

// The definition of right: the formula above in double, one query and head at a time.
void attention_reference(const AttentionConfig& config, const KvCache& cache, const float* q,
                         int64_t ldq, int64_t position, int64_t m, float* out, int64_t ldo);

}  // namespace nibble::kernels
