// nibble::inspect: a LoadPlan as the public Plan.
#include "api/inspect.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <new>

#include "generate/sequence.h"
#include "kernels/cuda/plan.h"
#include "load/split.h"

namespace nibble::api {
namespace {

// "q4_1 in 210 modules, f32 in 61 tensors": what the stored tensors prove, whatever is claimed.
std::string describe_tensors(const load::LoadPlan& plan) {
  std::map<std::string, int> counts;
  for (const load::PlannedModule& module : plan.modules) {
    ++counts[tensor::to_string(module.problem.weight)];
  }
  std::vector<std::pair<std::string, int>> sorted(counts.begin(), counts.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  std::vector<std::string> parts;
  for (const auto& [format, count] : sorted) {
    parts.push_back(fmt::format("{} in {} {}", format, count, count == 1 ? "module" : "modules"));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string describe_hardware(const device::Hardware& h, const kernels::MatmulPolicy& policy) {
  if (h.gpu) {
    return fmt::format("{}, compute capability {}.{}, {} MiB{}", h.gpu->name, h.gpu->major,
                       h.gpu->minor, h.gpu->memory_bytes >> 20,
                       h.gpu->present ? "" : " (asked about; it is not in this machine)");
  }
  return fmt::format("{}, {} core{}, isa {}{}", h.cpu_model, h.cores, h.cores == 1 ? "" : "s",
                     device::name(policy.isa),
                     policy.isa == device::Isa::kAvx512 && h.avx512_bf16 ? " with bf16" : "");
}

LayerPlan layer_plan(const load::PlannedModule& module) {
  LayerPlan out;
  out.name = module.declared.module;
  out.scheme = module.method->scheme();
  out.format = tensor::to_string(module.problem.weight);
  out.activation = tensor::to_string(module.choice.activation);
  out.packing = module.choice.packing;
  for (const kernels::ChoiceRange& range : module.choice.ranges) {
    out.kernels.push_back({range.m_min, range.m_max == INT64_MAX ? 0 : range.m_max,
                           kernels::kernel_name(*range.kernel)});
  }
  for (const kernels::Refusal& refusal : module.choice.refusals) {
    out.refused.push_back({refusal.kernel, refusal.why});
  }
  out.n = module.declared.n;
  out.k = module.declared.k;
  out.bytes_disk = module.bytes_disk;
  out.bytes_memory = module.bytes_memory;
  return out;
}

MemoryPlan memory_plan(const load::LoadPlan& plan, const ParsedOptions& options, int64_t ctx) {
  const layers::DecoderSpec& spec = plan.spec;
  MemoryPlan out;
  uint64_t largest_module = 0;
  for (const load::PlannedModule& module : plan.modules) {
    out.weights += module.bytes_memory;
    // While a module is packed, its codes lie unpacked beside it: one byte a weight.
    largest_module = std::max(largest_module, static_cast<uint64_t>(module.declared.n) *
                                                  static_cast<uint64_t>(module.declared.k));
  }
  for (const load::PlannedVector& v : plan.vectors) {
    out.other += v.info->bytes;
  }
  // One prompt batch of activations: the widest rows of the decoder, float32.
  const device::Hardware& hardware = options.plan.hardware;
  const auto batch = static_cast<uint64_t>(hardware.gpu ? generate::Sequence::kCardBatch
                                                        : generate::Sequence::kBatch);
  const uint64_t row =
      static_cast<uint64_t>(4 * spec.hidden + 2 * spec.ffn + 3 * spec.heads * spec.head_dim +
                            4 * spec.kv_heads * spec.head_dim);
  out.other += batch * row * sizeof(float) + static_cast<uint64_t>(spec.vocab) * sizeof(float);
  constexpr int64_t kMany = 4096;  // pages are whole at this length
  out.kv_per_token = static_cast<uint64_t>(
      layers::DecoderCache::bytes_for(spec, plan.cache.format, kMany) / kMany);
  out.available = static_cast<uint64_t>(hardware.memory_bytes);
  if (hardware.gpu) {
    out.available = static_cast<uint64_t>(hardware.gpu->memory_bytes);
    out.other += static_cast<uint64_t>(kernels::cuda_workspace_bytes());
  }
  out.model_ctx = spec.context;
  const uint64_t fixed = out.weights + out.other;
  const uint64_t room = out.available > fixed ? out.available - fixed : 0;
  out.longest_ctx = static_cast<int64_t>(std::min(static_cast<uint64_t>(spec.context),
                                                  room / std::max<uint64_t>(1, out.kv_per_token)));
  out.ctx = ctx > 0 ? ctx : out.longest_ctx;
  out.kv_at_ctx = out.kv_per_token * static_cast<uint64_t>(out.ctx);
  // Of a card, the unpacked codes are in the host's memory.
  out.peak_load = out.weights + out.other + (hardware.gpu ? 0 : largest_module);
  return out;
}

}  // namespace

Plan to_plan(const std::string& path, checkpoint::Checkpoint& checkpoint,
             const load::LoadPlan& plan, const ParsedOptions& options, int64_t ctx) {
  Plan out;
  out.path = path;
  out.architecture = plan.spec.architecture;
  out.scheme = plan.scheme;
  out.claims = plan.claims;
  out.proves = describe_tensors(plan);
  out.hardware = describe_hardware(options.plan.hardware, options.plan.policy);
  for (const load::PlannedModule& module : plan.modules) {
    out.layers.push_back(layer_plan(module));
    out.parameters += module.declared.n * module.declared.k;
  }
  for (const tensor::TensorInfo& info : checkpoint.tensors()) out.file_bytes += info.bytes;
  for (const load::PlannedCache& cache : plan.cache.layers) {
    out.kv.push_back({cache.attention, kernels::name(plan.cache.format.type), cache.k, cache.v,
                      cache.k_source, cache.v_source});
  }
  out.tensors_total = plan.tensors_total;
  out.tensors_used = plan.tensors_used;
  for (const load::UnusedTensor& t : plan.unused) out.unused.push_back({t.name, t.reason});
  out.memory = memory_plan(plan, options, ctx);
  out.legal_tp = load::legal_splits(plan);
  out.notes = plan.notes;
  for (const std::string& note : checkpoint.notes()) out.notes.push_back(note);
  out.warnings = plan.warnings;
  for (const std::string& warning : checkpoint.warnings()) out.warnings.push_back(warning);
  if (ctx > out.memory.model_ctx) {
    out.warnings.push_back(
        fmt::format("--ctx {}: the model was trained for {} tokens", ctx, out.memory.model_ctx));
  }
  out.problems = plan.problems;
  if (out.memory.weights + out.memory.other > out.memory.available && out.memory.available > 0) {
    out.problems.push_back(
        fmt::format("the weights need {} MiB of memory and {} has {} MiB",
                    (out.memory.weights + out.memory.other) >> 20,
                    options.plan.hardware.gpu ? options.plan.hardware.gpu->name : "this machine",
                    out.memory.available >> 20));
  }
  return out;
}

Result<Plan> inspect(const std::string& path, const Options& options) {
  NIBBLE_ASSIGN(ParsedOptions parsed, parse_options(options, false));
  NIBBLE_ASSIGN(checkpoint::Checkpoint checkpoint,
                checkpoint::Checkpoint::open(path, {.mmap = options.mmap}));
  NIBBLE_ASSIGN(load::LoadPlan plan, load::make_plan(checkpoint, parsed.plan));
  Plan out = to_plan(path, checkpoint, plan, parsed, options.ctx);
  if (options.tp != 1) {
    if (auto ok = load::check_split(plan, options.tp); !ok) {
      out.problems.push_back(fmt::format("--tp {}: {}", options.tp, ok.error().message));
    }
  }
  if (options.strict) {
    for (const std::string& warning : out.warnings) out.problems.push_back("--strict: " + warning);
  }
  return out;
}

}  // namespace nibble::api
