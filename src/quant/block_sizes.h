// The size of blocks that no key gives, from how many scales are stored for weights of which sizes.
//
// As many scales leave a range of sizes open: 3 for 300 outputs make blocks of 100 to 149. Of these
// the one power of two is meant, or else the one size of which no block is short. All layers of a
// checkpoint have blocks of one size, so that each of them narrows the range.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "quant/method.h"

namespace nibble::quant {

// Along one axis.
class BlockSize {
 public:
  // `size` outputs or inputs have `scales`. No blocks make as many: the range is empty from now on.
  void see(int64_t size, int64_t scales);

  // Nothing: the range is empty, or what is meant is open.
  std::optional<int64_t> find() const;

  bool empty() const { return least_ > most_; }
  // One block holds all that was seen.
  bool whole() const { return most_ == kNoLimit; }
  int64_t least() const { return least_; }
  std::string range() const;  // "100 to 149"

 private:
  static constexpr int64_t kNoLimit = INT64_MAX;
  int64_t least_ = 1, most_ = kNoLimit;
  int64_t divisor_ = 0;  // of all sizes that are cut; 0: none is
};

struct BlockSizes {
  BlockSize n, k;

  bool empty() const { return n.empty() || k.empty(); }

  // A weight (n, k) and its scale, of two dimensions.
  void see(const tensor::Shape& weight, const tensor::Shape& scale);
  // Both sides. One that is whole in all layers is as long as the other, where that is enough.
  std::optional<std::pair<int64_t, int64_t>> find() const;
};

// Of the weights of a byte that have a scale (weight_scale_inv or weight_scale) of two dimensions
// beside them, neither one for all nor one per output.
BlockSizes block_sizes_of(const TensorLookup& tensors);

}  // namespace nibble::quant
