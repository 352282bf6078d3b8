#include "load/plan_module.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "load/plan.h"

namespace nibble::load {
namespace {

using tensor::TensorInfo;

// Dimensions of 1 may be missing or extra in a file: (N), (N, 1) and (1, N) hold the same vector.
tensor::Shape without_ones(const tensor::Shape& shape) {
  tensor::Shape out;
  for (int64_t dim : shape) {
    if (dim != 1) out.push_back(dim);
  }
  return out;
}

std::string dtype_names(const std::vector<tensor::DType>& dtypes) {
  std::vector<std::string_view> names;
  for (tensor::DType d : dtypes) names.push_back(tensor::name(d));
  return fmt::format("{}", fmt::join(names, " or "));
}

}  // namespace

Result<void> check_tensor(const quant::WeightSpec& spec, const TensorInfo& info) {
  if (!spec.dtypes.empty() &&
      std::find(spec.dtypes.begin(), spec.dtypes.end(), info.dtype) == spec.dtypes.end()) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}: expected dtype {}, found {}", info.name, dtype_names(spec.dtypes),
                            tensor::name(info.dtype)));
  }
  const bool fits = spec.flattened
                        ? tensor::element_count(spec.shape) == tensor::element_count(info.shape)
                        : without_ones(spec.shape) == without_ones(info.shape);
  if (!fits) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}: expected shape {} from config.json, found {}", info.name,
                            tensor::to_string(spec.shape), tensor::to_string(info.shape)));
  }
  return {};
}

Result<PlannedModule> plan_module(const quant::LinearLayer& layer,
                                  const quant::QuantizationConfig& config,
                                  const quant::TensorLookup& tensors, const PlanOptions& options) {
  PlannedModule out;
  out.declared = layer;
  NIBBLE_ASSIGN(out.method, config.linear_method(layer, tensors));
  for (quant::WeightSpec& spec : out.method->create_weights()) {
    const std::string name = layer.module + "." + spec.suffix;
    const TensorInfo* info = tensors.find(name);
    const bool empty = info != nullptr && quant::holds_nothing(*info);
    if (info == nullptr || empty) {
      if (!spec.required) continue;
      return fail(ErrorCode::kCorrupt,
                  fmt::format("{}, without which {} weights cannot be read",
                              empty ? fmt::format("{} {} holds nothing", name,
                                                  tensor::to_string(info->shape))
                                    : fmt::format("the checkpoint has no tensor {}", name),
                              out.method->scheme()));
    }
    if (spec.slot != quant::Slot::kUnused) {
      NIBBLE_TRY(check_tensor(spec, *info));
      out.bytes_disk += info->bytes;
    }
    out.tensors.push_back({std::move(spec), info});
  }
  out.problem = {layer.n, layer.k, out.method->weight_format(), out.method->activation_format()};
  out.choice = kernels::judge(out.problem, options.hardware, options.policy);
  if (out.choice.ranges.empty()) return out;
  out.bytes_memory = static_cast<uint64_t>(kernels::packed_bytes(out.problem, out.choice)) +
                     (layer.bias ? static_cast<uint64_t>(layer.n) * sizeof(float) : 0);
  return out;
}

}  // namespace nibble::load
