// nibble::inspect: a LoadPlan as the public Plan.
#include "api/inspect.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <new>

#include "generate/sequence.h"
#include "kernels/attention/kv_cache.h"
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
                       h.gpu->present
                           ? fmt::format(", {} MiB of them free", h.gpu->free_bytes >> 20)
                           : " (asked about; it is not in this machine)");
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

// What a card holds beside weights, keys and values: panels and cuBLASLt's memory, the inputs of
// the products of a prompt batch in their kernels' form (for q, k and v each, and one to work in),
// logits of 32 tokens, and what the driver takes for the code of kernels.
uint64_t card_scratch(const load::LoadPlan& plan, uint64_t batch) {
  constexpr uint64_t kDriver = uint64_t{256} << 20;
  constexpr uint64_t kInputs = 4;
  constexpr uint64_t kLogitRows = 32;
  uint64_t widest = 0;
  for (const load::PlannedModule& module : plan.modules) {
    widest = std::max(widest, static_cast<uint64_t>(module.declared.k));
  }
  return kDriver + static_cast<uint64_t>(kernels::cuda_workspace_bytes()) +
         sizeof(float) *
             (kInputs * batch * widest + kLogitRows * static_cast<uint64_t>(plan.spec.vocab));
}

// Of one token in a cache whose pages are full.
uint64_t kv_per_token(const load::LoadPlan& plan, kernels::KvType type,
                      const device::Hardware& hardware) {
  constexpr int64_t kPage = kernels::KvCache::kPageTokens;
  layers::CacheFormat format = plan.cache.format;
  format.type = type;
  format.token_scales = format.token_scales && kernels::is_quantized(type);
  const int64_t all = layers::DecoderCache::bytes_for(plan.spec, format, kPage);
  if (!hardware.gpu || plan.spec.layers < 1) return static_cast<uint64_t>(all / kPage);
  const int64_t page = device::card_bytes(all / plan.spec.layers);  // each an allocation
  return static_cast<uint64_t>(page * plan.spec.layers / kPage);
}

MemoryPlan memory_plan(const load::LoadPlan& plan, const ParsedOptions& options, int64_t ctx) {
  const layers::DecoderSpec& spec = plan.spec;
  MemoryPlan out;
  uint64_t largest_module = 0;
  const device::Hardware& hardware = options.plan.hardware;
  const auto taken = [&](uint64_t bytes) {
    return hardware.gpu ? static_cast<uint64_t>(device::card_bytes(static_cast<int64_t>(bytes)))
                        : bytes;
  };
  for (const load::PlannedModule& module : plan.modules) {
    out.weights += taken(module.bytes_memory);
    // While a module is packed, its codes lie unpacked beside it: one byte a weight.
    largest_module = std::max(largest_module, static_cast<uint64_t>(module.declared.n) *
                                                  static_cast<uint64_t>(module.declared.k));
  }
  for (const load::PlannedVector& v : plan.vectors) {
    out.other += v.info->bytes;
  }
  // One prompt batch of activations: the widest rows of the decoder, float32.
  const auto batch = static_cast<uint64_t>(hardware.gpu ? generate::Sequence::kCardBatch
                                                        : generate::Sequence::kBatch);
  const uint64_t row =
      static_cast<uint64_t>(4 * spec.hidden + 2 * spec.ffn + 3 * spec.heads * spec.head_dim +
                            4 * spec.kv_heads * spec.head_dim);
  out.other += batch * row * sizeof(float) + static_cast<uint64_t>(spec.vocab) * sizeof(float);
  out.kv_per_token = kv_per_token(plan, plan.cache.format.type, hardware);
  out.available = static_cast<uint64_t>(hardware.memory_bytes);
  if (hardware.gpu) {
    out.available = static_cast<uint64_t>(hardware.gpu->free_bytes);
    out.other += card_scratch(plan, batch);
  }
  out.model_ctx = spec.context;
  const uint64_t fixed = out.weights + out.other;
  const uint64_t room = out.available > fixed ? out.available - fixed : 0;
  out.longest_ctx = static_cast<int64_t>(std::min(static_cast<uint64_t>(spec.context),
                                                  room / std::max<uint64_t>(1, out.kv_per_token)));
  constexpr int64_t kPage = kernels::KvCache::kPageTokens;
  if (hardware.gpu && out.longest_ctx < spec.context) {
    out.longest_ctx = out.longest_ctx / kPage * kPage;
  }
  out.ctx = ctx > 0 ? ctx : out.longest_ctx;
  out.kv_at_ctx = out.kv_per_token * static_cast<uint64_t>(out.ctx);
  // Of a card, the unpacked codes are in the host's memory.
  out.peak_load = out.weights + out.other + (hardware.gpu ? 0 : largest_module);
  return out;
}

// The longest context with another type of cache, in whole pages.
int64_t longest_ctx(const MemoryPlan& memory, const load::LoadPlan& plan, kernels::KvType type,
                    const device::Hardware& hardware) {
  const uint64_t fixed = memory.weights + memory.other;
  const uint64_t room = memory.available > fixed ? memory.available - fixed : 0;
  const uint64_t each = std::max<uint64_t>(1, kv_per_token(plan, type, hardware));
  const auto tokens = static_cast<int64_t>(std::min<uint64_t>(room / each, uint64_t{1} << 40));
  return tokens / kernels::KvCache::kPageTokens * kernels::KvCache::kPageTokens;
}

// Weights that do not fit; on a card, a context that was asked for and does not fit beside them.
std::vector<std::string> memory_problems(const MemoryPlan& memory, const load::LoadPlan& plan,
                                         const device::Hardware& hardware, int64_t ctx) {
  const uint64_t fixed = memory.weights + memory.other;
  const auto mib = [](uint64_t bytes) { return bytes >> 20; };
  const auto mib_needed = [](uint64_t bytes) { return (bytes + (1 << 20) - 1) >> 20; };
  if (!hardware.gpu) {
    if (fixed <= memory.available) return {};
    return {fmt::format("the weights need {} MiB of memory and this machine has {} MiB",
                        mib_needed(fixed), mib(memory.available))};
  }
  const device::Gpu& gpu = *hardware.gpu;
  const std::string found = fmt::format("{} of the {} MiB of {} are free", mib(memory.available),
                                        gpu.memory_bytes >> 20, gpu.name);
  if (fixed > memory.available) {
    const bool cpu_fits = fixed < static_cast<uint64_t>(hardware.memory_bytes);
    return {fmt::format("the weights and the memory to work in need {} MiB, and {}{}",
                        mib_needed(fixed), found,
                        cpu_fits ? "; they fit into this machine's memory: --device cpu" : "")};
  }
  if (ctx <= 0 || memory.kv_at_ctx <= memory.available - fixed) return {};
  using kernels::KvType;
  const KvType type = plan.cache.format.type;
  std::string fits = fmt::format("{} tokens fit", longest_ctx(memory, plan, type, hardware));
  for (const KvType smaller : {KvType::kF16, KvType::kE4M3}) {
    const bool helps = kernels::element_bytes(smaller) < kernels::element_bytes(type);
    if (!helps) continue;
    fits += fmt::format(", {} with --kv-cache-dtype {}",
                        longest_ctx(memory, plan, smaller, hardware), kernels::name(smaller));
  }
  return {
      fmt::format("--ctx {}: the weights and the memory to work in need {} MiB, the keys and "
                  "values {} MiB, and {}; {}",
                  ctx, mib_needed(fixed), mib_needed(memory.kv_at_ctx), found, fits)};
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
  out.warnings = options.warnings;
  out.warnings.insert(out.warnings.end(), plan.warnings.begin(), plan.warnings.end());
  for (const std::string& warning : checkpoint.warnings()) out.warnings.push_back(warning);
  if (ctx > out.memory.model_ctx) {
    out.warnings.push_back(
        fmt::format("--ctx {}: the model was trained for {} tokens", ctx, out.memory.model_ctx));
  }
  out.problems = plan.problems;
  if (out.memory.available > 0) {
    for (std::string& problem : memory_problems(out.memory, plan, options.plan.hardware, ctx)) {
      out.problems.push_back(std::move(problem));
    }
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
