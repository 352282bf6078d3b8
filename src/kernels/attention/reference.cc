// The definition of right: attention.h's formula in double, one query and head at a time.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/number.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/attention_ops.h"

namespace nibble::kernels {
namespace {

// As the tools of the formats do it: divide, add the zero point, round to even, saturate.
uint8_t narrow(const KvCode& how, float v) {
  if (how.type == KvType::kE4M3) return base::e4m3_from_f32(v / how.scale);
  if (how.type == KvType::kE5M2) {
    return base::e5m2_from_f32(std::clamp(v / how.scale, -57344.0f, 57344.0f));
  }
  const float rounded = std::nearbyint(v / how.scale + how.zero);
  return static_cast<uint8_t>(static_cast<int8_t>(std::clamp(rounded, -128.0f, 127.0f)));
}

void write_element(const KvCode& how, float v, std::byte* to) noexcept {
  if (how.type == KvType::kF32) {
    std::memcpy(to, &v, 4);
  } else if (is_quantized(how.type)) {
    *to = static_cast<std::byte>(narrow(how, v));
  } else {
    const uint16_t code = how.type == KvType::kF16 ? base::f16_from_f32(v) : base::bf16_from_f32(v);
    std::memcpy(to, &code, 2);
  }
}

int64_t size_of(KvType type) { return type == KvType::kF32 ? 4 : is_quantized(type) ? 1 : 2; }

void store_key(const KvCode& how, const float* k, int64_t n, std::byte* out) noexcept {
  for (int64_t i = 0; i < n; ++i) {
    write_element(how, k[i], out + i * KvCache::kBlockTokens * size_of(how.type));
  }
}

void store_value(const KvCode& how, const float* v, int64_t n, std::byte* out) noexcept {
  for (int64_t i = 0; i < padded_dim(n); ++i) {
    write_element(how, i < n ? v[i] : 0.0f, out + i * size_of(how.type));
  }
}

// One query's one head. `scores` and `row` are scratch.
void one_query(const AttentionConfig& config, const KvCache& cache, int64_t head, const float* q,
               int64_t position, std::vector<double>& scores, std::vector<float>& row, float* out) {
  const KvShape& shape = cache.shape();
  const int64_t kv_head = head / (config.heads / shape.heads);
  const int64_t first = config.window > 0 ? std::max<int64_t>(0, position - config.window + 1) : 0;
  scores.assign(static_cast<size_t>(position + 1 - first), 0.0);
  for (int64_t t = first; t <= position; ++t) {
    cache.key(kv_head, t, row.data());
    double s = 0;
    for (int64_t d = 0; d < shape.key_dim; ++d) {
      s += static_cast<double>(q[d]) * row[static_cast<size_t>(d)];
    }
    s *= config.scale;
    if (config.soft_cap > 0) s = config.soft_cap * std::tanh(s / config.soft_cap);
    scores[static_cast<size_t>(t - first)] = s;
  }
  double top = *std::max_element(scores.begin(), scores.end());
  if (config.sinks != nullptr) top = std::max<double>(top, config.sinks[head]);
  double total = config.sinks != nullptr ? std::exp(config.sinks[head] - top) : 0.0;
  for (double& s : scores) total += s = std::exp(s - top);
  std::vector<double> sum(static_cast<size_t>(shape.value_dim), 0.0);
  for (int64_t t = first; t <= position; ++t) {
    cache.value(kv_head, t, row.data());
    for (size_t d = 0; d < sum.size(); ++d)
      sum[d] += scores[static_cast<size_t>(t - first)] * row[d];
  }
  for (size_t d = 0; d < sum.size(); ++d) out[d] = static_cast<float>(sum[d] / total);
}

}  // namespace

void attention_reference(const AttentionConfig& config, const KvCache& cache, const float* q,
                         int64_t ldq, int64_t position, int64_t m, float* out, int64_t ldo) {
  const KvShape& shape = cache.shape();
  std::vector<double> scores;
  std::vector<float> row(static_cast<size_t>(std::max(shape.key_dim, shape.value_dim)));
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t h = 0; h < config.heads; ++h) {
      one_query(config, cache, h, q + i * ldq + h * shape.key_dim, position + i, scores, row,
                out + i * ldo + h * shape.value_dim);
    }
  }
}

// Whole ranges are never asked of it: attention() calls attention_reference.
const AttentionOps kAttentionReference = {nullptr, nullptr, store_key, store_value};

}  // namespace nibble::kernels
