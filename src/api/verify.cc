// nibble::verify and nibble::weights: the commands that read every byte, or those of one module.
#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "api/inspect.h"
#include "base/number.h"
#include "load/fill.h"
#include "load/gguf_config.h"
#include "nibble/nibble.h"

namespace nibble {
namespace {

using checkpoint::Checkpoint;

// The first element of a plain float tensor that is no number, or -1.
int64_t first_not_finite(const tensor::TensorView& view) {
  const int64_t count = tensor::element_count(view.shape).value_or(0);
  const auto exponent_full = [&](int64_t i) {
    if (view.dtype == tensor::DType::kF32) {
      uint32_t bits;
      std::memcpy(&bits, view.data + i * 4, 4);
      return (bits & 0x7f800000u) == 0x7f800000u;
    }
    uint16_t bits;
    std::memcpy(&bits, view.data + i * 2, 2);
    const uint16_t mask = view.dtype == tensor::DType::kF16 ? 0x7c00 : 0x7f80;
    return (bits & mask) == mask;
  };
  for (int64_t i = 0; i < count; ++i) {
    if (exponent_full(i)) return i;
  }
  return -1;
}

void scan_floats(const Checkpoint& checkpoint, const tensor::TensorInfo& info,
                 std::vector<Finding>& findings) {
  if (info.dtype != tensor::DType::kF32 && info.dtype != tensor::DType::kF16 &&
      info.dtype != tensor::DType::kBF16) {
    return;
  }
  auto view = checkpoint.view(info);
  if (!view) {
    findings.push_back({checkpoint.describe(info), view.error().message});
    return;
  }
  if (const int64_t at = first_not_finite(*view); at >= 0) {
    findings.push_back(
        {checkpoint.describe(info), fmt::format("element {} of {} is not a finite number", at,
                                                tensor::element_count(info.shape).value_or(0))});
  }
}

// What the codes themselves show: values that decode to nothing.
void scan_weight(const std::string& where, const tensor::QuantizedWeight& w,
                 std::vector<Finding>& findings) {
  std::vector<float> row(static_cast<size_t>(w.k));
  for (int64_t n = 0; n < w.n; ++n) {
    tensor::dequantize_row(w, n, row.data());
    for (int64_t k = 0; k < w.k; ++k) {
      if (std::isfinite(row[static_cast<size_t>(k)])) continue;
      findings.push_back({where, fmt::format("the weight at ({}, {}) is not a finite number once "
                                             "dequantized",
                                             n, k)});
      return;
    }
  }
}

}  // namespace

Result<VerifyReport> verify(const std::string& path, const Options& options,
                            const Progress& progress) {
  NIBBLE_ASSIGN(api::ParsedOptions parsed, api::parse_options(options, false));
  NIBBLE_ASSIGN(Checkpoint checkpoint, Checkpoint::open(path, {.mmap = options.mmap}));
  NIBBLE_ASSIGN(load::LoadPlan plan, load::make_plan(checkpoint, parsed.plan));
  VerifyReport report;
  for (const std::string& problem : plan.problems) report.findings.push_back({path, problem});
  for (const std::string& warning : checkpoint.warnings()) report.notes.push_back(warning);
  for (const std::string& warning : plan.warnings) report.notes.push_back(warning);
  uint64_t total = 0;
  for (const tensor::TensorInfo& info : checkpoint.tensors()) total += info.bytes;
  report.tensors = static_cast<int64_t>(checkpoint.tensors().size());

  for (const load::PlannedModule& module : plan.modules) {
    const size_t before = report.findings.size();
    const bool codes = !tensor::is_unscaled_float(module.method->weight_format().element);
    for (const load::PlannedTensor& t : module.tensors) {
      // Codes are looked at below, dequantized; some are stored as if they were floats.
      if (codes && t.spec.slot == quant::Slot::kWeight) continue;
      scan_floats(checkpoint, *t.info, report.findings);
    }
    if (report.findings.size() == before) {
      auto weight = load::canonical_weight(checkpoint, module);
      if (!weight) {
        report.findings.push_back({module.declared.module, weight.error().message});
      } else if (!tensor::is_unscaled_float(weight->format.element)) {
        scan_weight(module.declared.module, *weight, report.findings);
      }
    }
    load::drop(checkpoint, module);
    report.bytes += module.bytes_disk;
    if (progress && !progress(module.declared.module, report.bytes, total)) {
      return fail(ErrorCode::kCancelled, "verifying was cancelled");
    }
  }
  for (const load::PlannedVector& v : plan.vectors) {
    scan_floats(checkpoint, *v.info, report.findings);
    report.bytes += v.info->bytes;
  }
  report.bytes = total;
  return report;
}

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
  for (const std::string& problem : plan.problems) {
    if (problem.find(wanted) != problem.npos) return fail(ErrorCode::kCorrupt, problem);
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
