#include "quant/block_sizes.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string_view>

#include "quant/scheme.h"
#include "quant/stored.h"

namespace nibble::quant {
namespace {

using tensor::Shape;

bool is_per_block(const Shape& weight, const Shape& scale) {
  if (weight.size() != 2 || scale.size() != 2) return false;
  const bool per_output = scale[0] == weight[0] && scale[1] == 1;
  return !per_output && (scale[0] != 1 || scale[1] != 1);
}

}  // namespace

void BlockSize::see(int64_t size, int64_t scales) {
  const int64_t least = scales < 1 || scales > size ? 0 : ceil_div(size, scales);
  if (least == 0 || ceil_div(size, least) != scales) {
    least_ = 1, most_ = 0;
    return;
  }
  least_ = std::max(least_, least);
  if (scales == 1) return;
  most_ = std::min(most_, ceil_div(size, scales - 1) - 1);
  divisor_ = std::gcd(divisor_, size);
}

std::optional<int64_t> BlockSize::find() const {
  if (empty()) return std::nullopt;
  if (whole()) return least_;
  int64_t found = 0;
  for (int64_t size = 1; size > 0 && size <= most_; size *= 2) {
    if (size < least_) continue;
    if (found != 0) return std::nullopt;
    found = size;
  }
  if (found != 0) return found;
  return divisor_ % least_ == 0 ? std::optional(least_) : std::nullopt;
}

std::string BlockSize::range() const {
  if (least_ == most_) return fmt::format("{}", least_);
  return whole() ? fmt::format("{} or more", least_) : fmt::format("{} to {}", least_, most_);
}

void BlockSizes::see(const Shape& weight, const Shape& scale) {
  n.see(weight[0], scale[0]);
  k.see(weight[1], scale[1]);
}

std::optional<std::pair<int64_t, int64_t>> BlockSizes::find() const {
  const std::optional<int64_t> along_n = n.find(), along_k = k.find();
  if (!along_n || !along_k) return std::nullopt;
  if (n.whole() && *along_k >= *along_n) return std::pair(*along_k, *along_k);
  if (k.whole() && *along_n >= *along_k) return std::pair(*along_n, *along_n);
  return std::pair(*along_n, *along_k);
}

BlockSizes block_sizes_of(const TensorLookup& tensors) {
  BlockSizes out;
  for (const tensor::TensorInfo& weight : tensors.all) {
    constexpr std::string_view kSuffix = ".weight";
    if (!std::string_view(weight.name).ends_with(kSuffix)) continue;
    if (weight.shape.size() != 2 || tensor::is_plain_float(weight.dtype)) continue;
    const std::string module = weight.name.substr(0, weight.name.size() - kSuffix.size());
    const tensor::TensorInfo* scale = find_tensor(tensors, module, "weight_scale_inv");
    if (scale == nullptr) scale = find_tensor(tensors, module, "weight_scale");
    if (scale != nullptr && is_per_block(weight.shape, scale->shape)) {
      out.see(weight.shape, scale->shape);
    }
  }
  return out;
}

}  // namespace nibble::quant
