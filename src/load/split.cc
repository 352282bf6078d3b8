#include "load/split.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "quant/slice.h"

namespace nibble::load {
namespace {

using layers::Part;

quant::Axis axis_of(Part part) {
  return part == Part::kO || part == Part::kDown ? quant::Axis::kK : quant::Axis::kN;
}

// Each rank holds its share of every part of a fused layer.
Result<void> check_module(const PlannedModule& module, int ranks) {
  const quant::Axis axis = axis_of(module.part);
  const int64_t size = axis == quant::Axis::kN ? module.declared.n : module.declared.k;
  std::vector<int64_t> parts = module.declared.parts;
  if (parts.empty() || axis == quant::Axis::kK) parts = {size};
  for (int rank = 0; rank < ranks; ++rank) {
    int64_t before = 0;
    for (int64_t part : parts) {
      NIBBLE_ASSIGN(quant::AxisRange range, quant::rank_range(axis, part, rank, ranks));
      range = {range.begin + before, range.end + before};
      before += part;
      for (const PlannedTensor& t : module.tensors) {
        if (t.spec.slot == quant::Slot::kUnused) continue;
        NIBBLE_ASSIGN(const quant::StoredSlice slice,
                      quant::slice_of(t.spec, t.info->dtype, t.info->shape, axis, size, range));
        (void)slice;
      }
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
    if (module.part == Part::kPositions) continue;  // every rank keeps all of it
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
