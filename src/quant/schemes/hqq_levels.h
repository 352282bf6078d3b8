// The scales and zero points of an HQQ layer, under the names that its versions gave them.
//
//   <module>.[meta.]scale  (R, 1) or (1, C)   f16 | bf16 | f32
//   <module>.[meta.]zero   likewise; no integers
//
// Before hqq 0.2 both could be 8-bit codes themselves, and zero points usually were. They are
// computed in the type of their own scale, as the tool does:
//
//   <module>.[meta.]zero_q           u8, as many as zero
//   <module>.[meta.]meta_zero.scale  () for all; (1, C'): code i has the scale i % C'; (R', 1): the
//   <module>.[meta.]meta_zero.zero   scale i / (count / R')
//   <module>.meta.zero_scale         zero and scale, or zero_q and scale_q, in one tensor (2, ...)
//
//   zero[i] = round(round(zero_q[i] - meta_zero.zero) * meta_zero.scale)
#pragma once

#include <string>
#include <vector>

#include "nibble/result.h"
#include "quant/method.h"

namespace nibble::quant::hqq {

struct Level {
  Slot slot = Slot::kScale, scale_slot = Slot::kScale2, zero_slot = Slot::kTable;
  std::string name, meta;   // "meta.zero_q", "meta.meta_zero"
  int part = 0, parts = 1;  // of the tensor `name`: zero_scale has two
  const tensor::TensorInfo* info = nullptr;

  bool coded() const { return info->dtype == tensor::DType::kU8; }
};

// What a layer has of scales, or of zero points; `info` is null when there are none.
Level find_level(const LinearLayer& layer, const TensorLookup& tensors, bool scales);

// Declares the tensors of a level whose numbers have the shape `groups`.
void add_level(const LinearLayer& layer, const TensorLookup& tensors, const Level& level,
               const tensor::Shape& groups, ShardAxis along_n, ShardAxis along_k,
               std::vector<WeightSpec>& specs);

// The numbers of a level, one for each group.
Result<std::vector<float>> read_level(const RawWeights& raw, const Level& level, int64_t groups);

}  // namespace nibble::quant::hqq
