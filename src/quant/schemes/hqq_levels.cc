#include "quant/schemes/hqq_levels.h"

#include <fmt/format.h>

#include "base/number.h"
#include "quant/scheme.h"
#include "quant/stored.h"

namespace nibble::quant::hqq {
namespace {

using tensor::DType;
using tensor::TensorInfo;
using tensor::TensorView;

float rounded(float v, DType dtype) {
  if (dtype == DType::kF16) return base::f32_from_f16(base::f16_from_f32(v));
  if (dtype == DType::kBF16) return base::f32_from_bf16(base::bf16_from_f32(v));
  return v;
}

}  // namespace

Level find_level(const LinearLayer& layer, const TensorLookup& tensors, bool scales) {
  Level out;
  if (!scales) {
    out.slot = Slot::kZero, out.scale_slot = Slot::kExtra, out.zero_slot = Slot::kTable2;
  }
  const std::string plain = scales ? "scale" : "zero";
  for (const std::string prefix : {"", "meta."}) {
    out.meta = prefix + "meta_" + plain;
    for (const std::string& name : {plain, plain + "_q"}) {
      out.name = prefix + name;
      out.info = find_tensor(tensors, layer.module, out.name);
      if (out.info != nullptr) return out;
    }
  }
  out.name = "meta.zero_scale";
  out.info = find_tensor(tensors, layer.module, out.name);
  out.slot = Slot::kScale;
  out.part = scales ? 1 : 0;
  out.parts = 2;
  return out;
}

void add_level(const LinearLayer& layer, const TensorLookup& tensors, const Level& level,
               const tensor::Shape& groups, ShardAxis along_n, ShardAxis along_k,
               std::vector<WeightSpec>& specs) {
  if (level.part == 0) {  // the second part is declared with the first
    tensor::Shape shape = groups;
    if (level.parts > 1) shape.insert(shape.begin(), level.parts);
    const std::vector<DType> types = level.coded() ? std::vector<DType>{DType::kU8} : kFloats;
    specs.push_back(wanted(level.slot, level.name, types, shape, along_n, along_k));
  }
  if (!level.coded()) return;
  for (const auto& [slot, suffix] :
       {std::pair(level.scale_slot, ".scale"), {level.zero_slot, ".zero"}}) {
    const TensorInfo* info = find_tensor(tensors, layer.module, level.meta + suffix);
    const tensor::Shape shape = info == nullptr ? tensor::Shape{} : info->shape;
    specs.push_back(wanted(slot, level.meta + suffix, kFloats, shape, {}, {}));
  }
}

Result<std::vector<float>> read_level(const RawWeights& raw, const Level& level, int64_t groups) {
  NIBBLE_ASSIGN(const TensorView* whole,
                need_count(raw, level.slot, level.name, groups * level.parts));
  TensorView view = *whole;
  view.shape = {groups};
  view.bytes /= static_cast<uint64_t>(level.parts);
  view.data += static_cast<uint64_t>(level.part) * view.bytes;
  if (!level.coded()) return read_floats(view, level.name);
  const std::string suffix = level.meta + ".scale";
  const TensorView* scales = raw.get(level.scale_slot);
  if (scales == nullptr) {
    return fail(ErrorCode::kNotFound, fmt::format("{}: the tensor is missing", suffix));
  }
  const int64_t count = tensor::element_count(scales->shape).value_or(0);
  NIBBLE_ASSIGN(const TensorView* zeros,
                need_count(raw, level.zero_slot, level.meta + ".zero", count));
  NIBBLE_ASSIGN(const std::vector<float> scale, read_floats(*scales, suffix));
  NIBBLE_ASSIGN(const std::vector<float> zero, read_floats(*zeros, level.meta + ".zero"));
  if (count == 0 || groups % count != 0) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{} {}: {} codes do not divide into {} groups", suffix,
                            tensor::to_string(scales->shape), groups, count));
  }
  const bool by_row = scales->shape.size() == 2 && scales->shape[1] == 1 && count > 1;
  std::vector<float> out;
  for (int64_t i = 0; i < groups; ++i) {
    const auto at = static_cast<size_t>(by_row ? i / (groups / count) : i % count);
    const auto code = static_cast<float>(static_cast<uint8_t>(view.data[i]));
    const float above = rounded(code - zero[at], scales->dtype);
    out.push_back(rounded(above * scale[at], scales->dtype));
  }
  return out;
}

}  // namespace nibble::quant::hqq
