// nibble::weights: one module's weight as the engine uses it.
#include <fmt/format.h>

#include "api/inspect.h"
#include "load/fill.h"
#include "load/gguf_names.h"
#include "nibble/nibble.h"

namespace nibble {

using checkpoint::Checkpoint;

Result<Matrix> weights(const std::string& path, const std::string& module, const Options& options) {
  NIBBLE_ASSIGN(api::ParsedOptions parsed, api::parse_options(options, false));
  NIBBLE_ASSIGN(Checkpoint checkpoint, Checkpoint::open(path, {.mmap = options.mmap}));
  NIBBLE_ASSIGN(load::LoadPlan plan, load::make_plan(checkpoint, parsed.plan));
  const std::string wanted = checkpoint.gguf() != nullptr ? load::gguf_module_name(module) : module;
  for (const load::PlannedModule& planned : plan.modules) {
    if (planned.declared.module != wanted) continue;
    NIBBLE_ASSIGN(tensor::QuantizedWeight weight, load::canonical_weight(checkpoint, planned));
    Matrix out;
    out.rows = weight.n;
    out.columns = weight.k;
    out.values.resize(static_cast<size_t>(weight.n * weight.k));
    for (int64_t n = 0; n < weight.n; ++n) {
      tensor::dequantize_row(weight, n, out.values.data() + n * weight.k);
    }
    return out;
  }
  for (const auto& [failed, why] : plan.failed) {
    if (failed == wanted)
      return fail(ErrorCode::kCorrupt, fmt::format("layer {}: {}", failed, why));
  }
  std::string known;
  for (const load::PlannedModule& planned : plan.modules) {
    if (known.size() > 200) {
      known += " ...";
      break;
    }
    known += (known.empty() ? "" : ", ") + planned.declared.module;
  }
  return fail(ErrorCode::kNotFound,
              fmt::format("{}: there is no module \"{}\" with a weight; there are {}", path, module,
                          known));
}

}  // namespace nibble
