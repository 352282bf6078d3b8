#include "quant/act_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace nibble::quant {
namespace {

// (N, groups) -> (N, K): the value of each input's group, in sorted order.
void spread(std::span<const int32_t> g_idx, int64_t groups, const tensor::QuantizedWeight& weight,
            std::vector<float>& values) {
  if (values.empty()) return;
  std::vector<float> wide;
  wide.reserve(static_cast<size_t>(weight.n * weight.k));
  for (int64_t n = 0; n < weight.n; ++n) {
    for (int32_t k : weight.order) {
      wide.push_back(values[static_cast<size_t>(n * groups + g_idx[static_cast<size_t>(k)])]);
    }
  }
  values = std::move(wide);
}

}  // namespace

Result<void> sort_by_group(std::span<const int32_t> g_idx, int64_t groups, bool slice,
                           tensor::QuantizedWeight& weight) {
  std::vector<int64_t> count(static_cast<size_t>(groups));
  for (size_t k = 0; k < g_idx.size(); ++k) {
    if (g_idx[k] < 0 || g_idx[k] >= groups) {
      return fail(ErrorCode::kCorrupt,
                  fmt::format("g_idx: input {} is in group {}, but there are groups 0 to {}", k,
                              g_idx[k], groups - 1));
    }
    ++count[static_cast<size_t>(g_idx[k])];
  }
  weight.order.resize(g_idx.size());
  std::iota(weight.order.begin(), weight.order.end(), 0);
  std::stable_sort(weight.order.begin(), weight.order.end(), [g_idx](int32_t a, int32_t b) {
    return g_idx[static_cast<size_t>(a)] < g_idx[static_cast<size_t>(b)];
  });
  if (slice) {
    spread(g_idx, groups, weight, weight.scale);
    spread(g_idx, groups, weight, weight.zero);
    weight.format.group_k = 1;
    return {};
  }
  const int64_t group = weight.format.group_k;
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t expected = std::min(group, weight.k - g * group);
    if (count[static_cast<size_t>(g)] == expected) continue;
    return fail(ErrorCode::kCorrupt, fmt::format("g_idx: group {} has {} inputs, expected {}", g,
                                                 count[static_cast<size_t>(g)], expected));
  }
  return {};
}

Result<void> check_group_order(std::span<const int32_t> g_idx, int64_t group, bool slice) {
  if (group == 0) return {};
  const int64_t first = slice && !g_idx.empty() ? g_idx[0] : 0;
  for (size_t k = 0; k < g_idx.size(); ++k) {
    const int64_t expected = first + static_cast<int64_t>(k) / group;
    if (g_idx[k] == expected) continue;
    return fail(ErrorCode::kCorrupt,
                fmt::format("g_idx: input {} is in group {}, but without act-order that is {}", k,
                            g_idx[k], expected));
  }
  return {};
}

}  // namespace nibble::quant
