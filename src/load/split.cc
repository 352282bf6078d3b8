#include "load/split.h"

#include <fmt/format.h>

#include "quant/slice.h"

namespace nibble::load {
namespace {

using layers::Part;

quant::Axis axis_of(Part part) {
  return part == Part::kO || part == Part::kDown ? quant::Axis::kK : quant::Axis::kN;
}

Result<void> check_module(const PlannedModule& module, int ranks) {
  const quant::Axis axis = axis_of(module.part);
  const int64_t size = axis == quant::Axis::kN ? module.declared.n : module.declared.k;
  for (int rank = 0; rank < ranks; ++rank) {
    NIBBLE_ASSIGN(const quant::AxisRange range, quant::rank_range(axis, size, rank, ranks));
    for (const PlannedTensor& t : module.tensors) {
      if (t.spec.slot == quant::Slot::kUnused) continue;
      NIBBLE_ASSIGN(const quant::StoredSlice slice,
                    quant::slice_of(t.spec, t.info->dtype, t.info->shape, axis, size, range));
      (void)slice;
    }
  }
  return {};
}

}  // namespace

Result<void> check_split(const LoadPlan& plan, int ranks) {
  const layers::DecoderSpec& spec = plan.spec;
  for (const auto& [what, heads] :
       {std::pair{"query heads", spec.heads}, std::pair{"key-value heads", spec.kv_heads}}) {
    if (heads % ranks != 0) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("{} {} do not divide among {} ranks", heads, what, ranks));
    }
  }
  for (const PlannedModule& module : plan.modules) {
    if (auto ok = check_module(module, ranks); !ok) {
      return fail(ok.error().code,
                  fmt::format("layer {}: {}", module.declared.module, ok.error().message));
    }
  }
  return {};
}

std::vector<int> legal_splits(const LoadPlan& plan) {
  std::vector<int> out;
  // Key-value heads are not repeated, so no rank can be without one.
  for (int ranks = 1; ranks <= plan.spec.kv_heads; ++ranks) {
    if (plan.spec.kv_heads % ranks == 0 && check_split(plan, ranks)) out.push_back(ranks);
  }
  return out;
}

}  // namespace nibble::load
