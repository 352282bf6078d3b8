// nibble::verify: reads every byte.
#include "api/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <unordered_set>

#include "api/inspect.h"
#include "kernels/rope/rope.h"
#include "load/fill.h"
#include "load/gguf_names.h"

namespace nibble {
namespace {

using checkpoint::Checkpoint;
using tensor::DType;
using tensor::TensorInfo;

// Which bits of an element all being set makes it no finite number; 0 for types without such.
uint64_t special_bits(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return 0x7ff0000000000000u;
    case DType::kF32:
      return 0x7f800000u;
    case DType::kBF16:
      return 0x7f80u;
    case DType::kF16:
      return 0x7c00u;
    case DType::kE8M0:
      return 0xffu;
    default:
      return 0;
  }
}

// The first element of a tensor of plain floats or e8m0 that is no finite number, or -1. Reads all
// bytes of every other tensor too.
int64_t first_not_finite(const tensor::TensorView& view) {
  const uint64_t special = special_bits(view.dtype);
  if (special == 0) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i + 8 <= view.bytes; i += 8) {
      uint64_t word;
      std::memcpy(&word, view.data + i, 8);
      sum += word;
    }
    volatile uint64_t kept = sum;  // else the loop would be left out
    (void)kept;
    return -1;
  }
  const auto size = static_cast<uint64_t>(tensor::info(view.dtype).block_bytes);
  for (uint64_t i = 0; i + size <= view.bytes; i += size) {
    uint64_t bits = 0;
    std::memcpy(&bits, view.data + i, size);
    if ((bits & special) == special) return static_cast<int64_t>(i / size);
  }
  return -1;
}

// What verify knows so far.
class Verifier {
 public:
  Verifier(Checkpoint& checkpoint, const load::LoadPlan& plan, const Progress& progress)
      : checkpoint_(checkpoint), plan_(plan), progress_(progress) {}

  Result<VerifyReport> run(const std::string& path) {
    for (const std::string& problem : plan_.problems) report_.findings.push_back({path, problem});
    append(checkpoint_.notes());
    append(checkpoint_.warnings());
    append(plan_.warnings);
    for (const TensorInfo& info : checkpoint_.tensors()) total_ += info.bytes;
    total_ += api::checksum_bytes(checkpoint_);
    report_.tensors = static_cast<int64_t>(checkpoint_.tensors().size());
    api::verify_documents(checkpoint_, plan_, report_);
    for (const load::PlannedModule& module : plan_.modules) {
      read_module(module);
      NIBBLE_TRY(tell(module.declared.module));
    }
    read_rope_factors();
    read_cache_scales();
    NIBBLE_TRY(read_rest());
    NIBBLE_TRY(api::verify_checksums(checkpoint_, report_, [this](uint64_t bytes) {
      report_.bytes += bytes;
      return !progress_ || progress_("checksums", report_.bytes, total_);
    }));
    return std::move(report_);
  }

 private:
  void append(const std::vector<std::string>& notes) {
    report_.notes.insert(report_.notes.end(), notes.begin(), notes.end());
  }

  Result<void> tell(std::string_view what) {
    if (!progress_ || progress_(what, report_.bytes, total_)) return {};
    return fail(ErrorCode::kCancelled, "verifying was cancelled");
  }

  void find(std::string where, std::string what) {
    report_.findings.push_back({std::move(where), std::move(what)});
  }

  // Reads a tensor. Floats that are no numbers are a finding, in a tensor that is not used a note.
  void read(const TensorInfo& info, bool used, bool codes = false) {
    if (!read_.insert(&info).second) return;
    report_.bytes += info.bytes;
    if (codes) return;
    auto view = checkpoint_.view(info);
    if (!view) return find(checkpoint_.describe(info), view.error().message);
    const int64_t at = first_not_finite(*view);
    if (at < 0) return;
    std::string what = fmt::format("element {} of {} is not a finite number", at,
                                   tensor::element_count(info.shape).value_or(0));
    if (used) return find(checkpoint_.describe(info), std::move(what));
    report_.notes.push_back(
        fmt::format("{}: {}; the tensor is not used", checkpoint_.describe(info), what));
  }

  void read_module(const load::PlannedModule& module) {
    const size_t before = report_.findings.size();
    const bool quantized = !tensor::is_unscaled_float(module.method->weight_format().element);
    for (const load::PlannedTensor& t : module.tensors) {
      // Codes are looked at below, dequantized; some are stored as if they were floats.
      read(*t.info, t.spec.slot != quant::Slot::kUnused,
           quantized && t.spec.slot == quant::Slot::kWeight);
    }
    if (report_.findings.size() == before) {
      auto weight = load::canonical_weight(checkpoint_, module);
      if (!weight) {
        std::string what = weight.error().message;
        const std::string name = fmt::format("layer {}: ", module.declared.module);
        if (what.starts_with(name)) what.erase(0, name.size());  // the place says it
        find(module.declared.module, std::move(what));
      } else if (!tensor::is_unscaled_float(weight->format.element)) {
        check_values(module.declared.module, *weight);
        if (checkpoint_.gguf() == nullptr) check_scales(module.declared.module, *weight);
      }
    }
    load::drop(checkpoint_, module);
  }

  // Codes that decode to nothing, products that leave the range of floats.
  void check_values(const std::string& where, const tensor::QuantizedWeight& w) {
    std::vector<float> row(static_cast<size_t>(w.k));
    for (int64_t n = 0; n < w.n; ++n) {
      tensor::dequantize_row(w, n, row.data());
      for (int64_t k = 0; k < w.k; ++k) {
        if (std::isfinite(row[static_cast<size_t>(k)])) continue;
        return find(
            where,
            fmt::format("the weight at ({}, {}) is not a finite number once dequantized", n, k));
      }
    }
  }

  // A scale of zero is no wonder where all weights of its group are zero: tools then write the same
  // code everywhere, not always that of zero. Elsewhere weights are lost. A negative one is odd,
  // but some tools write such. (GGUF's blocks of zeros hold any codes.)
  void check_scales(const std::string& where, const tensor::QuantizedWeight& w) {
    const auto negative =
        std::count_if(w.scale.begin(), w.scale.end(), [](float s) { return s < 0; });
    if (negative > 0) {
      report_.notes.push_back(
          fmt::format("{}: {} of {} scales are negative; they are used as stored", where, negative,
                      w.scale.size()));
    }
    if (w.format.zero == tensor::ZeroKind::kOffset) return;  // there the offset is the weight
    const tensor::WeightFormat& f = w.format;
    const int unit = tensor::code_bytes(f.element);
    const int64_t groups = w.groups();
    const int64_t group_k = f.group_k == 0 ? w.k : f.group_k;
    for (int64_t n = 0; n < w.n; ++n) {
      const float* scale = w.scale.data() + (f.group_n == 0 ? 0 : n / f.group_n) * groups;
      for (int64_t g = 0; g < groups; ++g) {
        if (scale[g] != 0) continue;
        const std::byte* first = w.code.data + (n * w.k + g * group_k) * unit;
        const int64_t bytes = (std::min(w.k, (g + 1) * group_k) - g * group_k) * unit;
        // Each code equal to the one before it.
        if (std::memcmp(first, first + unit, static_cast<size_t>(bytes - unit)) == 0) continue;
        return find(where, fmt::format("the scale of output {}, group {} is 0 although the codes "
                                       "of the group differ: its weights are lost",
                                       n, g));
      }
    }
  }

  void read_cache_scales() {
    for (const load::PlannedCache& layer : plan_.cache.layers) {
      const size_t before = report_.findings.size();
      for (const TensorInfo* info : layer.method.used()) read(*info, true);
      if (report_.findings.size() != before) continue;
      auto scales = layer.method.process_weights_after_loading(
          [this](const TensorInfo& info) { return checkpoint_.view(info); });
      if (!scales) find(checkpoint_.path(), scales.error().message);
    }
  }

  void read_rope_factors() {
    if (plan_.rope_factors == nullptr) return;
    read(*plan_.rope_factors, true);
    auto factors = load::read_floats(checkpoint_, *plan_.rope_factors);
    if (!factors) return;  // read() has said it
    kernels::RopeConfig rope = plan_.spec.rope;
    rope.divisors.assign(factors->begin(), factors->end());
    if (auto made = kernels::Rope::create(rope); !made) {
      find(checkpoint_.describe(*plan_.rope_factors), made.error().message);
    }
  }

  // Norms, and all that no layer uses.
  Result<void> read_rest() {
    std::unordered_set<const TensorInfo*> vectors;
    for (const load::PlannedVector& v : plan_.vectors) vectors.insert(v.info);
    std::unordered_set<std::string_view> unused;
    for (const load::UnusedTensor& t : plan_.unused) unused.insert(t.name);
    for (const TensorInfo& info : checkpoint_.tensors()) {
      if (read_.contains(&info)) continue;
      read(info, vectors.contains(&info) || !unused.contains(info.name));
      checkpoint_.drop(info);
      NIBBLE_TRY(tell(info.name));
    }
    return {};
  }

  Checkpoint& checkpoint_;
  const load::LoadPlan& plan_;
  const Progress& progress_;
  VerifyReport report_;
  uint64_t total_ = 0;
  std::unordered_set<const TensorInfo*> read_;
};

}  // namespace

Result<VerifyReport> verify(const std::string& path, const Options& options,
                            const Progress& progress) {
  NIBBLE_ASSIGN(api::ParsedOptions parsed, api::parse_options(options, false));
  NIBBLE_ASSIGN(Checkpoint checkpoint, Checkpoint::open(path, {.mmap = options.mmap}));
  NIBBLE_ASSIGN(load::LoadPlan plan, load::make_plan(checkpoint, parsed.plan));
  return Verifier(checkpoint, plan, progress).run(path);
}

}  // namespace nibble
