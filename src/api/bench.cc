// nibble::bench, bench_kernels and measure_machine: rates beside the limits measured in the same
// call.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <new>
#include <random>

#include "api/model.h"
#include "device/cuda.h"
#include "generate/sequence.h"
#include "kernels/cuda/abi.h"
#include "kernels/probe/probe.h"
#include "load/dummy.h"

namespace nibble {
namespace {

using Clock = std::chrono::steady_clock;
using generate::Sequence;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Rate {
  double mean = 0;
  double stddev = 0;
};

Rate rate_of(const std::vector<double>& values) {
  Rate out;
  for (double v : values) out.mean += v / static_cast<double>(values.size());
  if (values.size() > 1) {
    for (double v : values) out.stddev += (v - out.mean) * (v - out.mean);
    out.stddev = std::sqrt(out.stddev / static_cast<double>(values.size() - 1));
  }
  return out;
}

double best_peak(const MachineReport& machine) {
  double best = 0;
  for (const auto& [unit, gops] : machine.peak_gops) best = std::max(best, gops);
  return best * 1e9;
}

// The kernel that most modules run for M tokens.
std::string main_kernel(const Plan& plan, int64_t m) {
  std::map<std::string, uint64_t> weight;
  for (const LayerPlan& layer : plan.layers) {
    for (const KernelRange& range : layer.kernels) {
      if (m < range.m_min || (range.m_max != 0 && m > range.m_max)) continue;
      weight[range.kernel] += static_cast<uint64_t>(layer.n * layer.k);
    }
  }
  std::string best;
  for (const auto& [kernel, count] : weight) {
    if (best.empty() || count > weight[best]) best = kernel;
  }
  return best;
}

// The shortest time that one pass over M tokens could take: every weight's bytes read once, or all
// products at the fastest unit's rate, whichever is longer. Logits are made for the last token
// only.
double limit_seconds(const Model::Impl& model, const MachineReport& machine, int64_t m) {
  double bytes = 0;
  double products = 0;
  for (const LayerPlan& layer : model.plan.layers) {
    const bool is_head = layer.name == model.decoder.head().name;
    const bool is_table = layer.name == model.decoder.embedding.name && !is_head;
    if (is_table) continue;  // rows are looked up, not multiplied
    bytes += static_cast<double>(layer.bytes_memory);
    products += static_cast<double>(layer.n * layer.k) * static_cast<double>(is_head ? 1 : m);
  }
  const double reading = machine.read_gb_s > 0 ? bytes / (machine.read_gb_s * 1e9) : 0;
  const double computing = best_peak(machine) > 0 ? 2 * products / best_peak(machine) : 0;
  return std::max(reading, computing);
}

// Ids spread over the vocabulary; any will do.
int32_t bench_id(int64_t i, int64_t vocab) { return static_cast<int32_t>((100 + i * 7) % vocab); }

Result<double> prompt_seconds(const Model::Impl& m, int64_t tokens) {
  NIBBLE_ASSIGN(Sequence sequence, Sequence::create(m.decoder, *m.stream, m.ops, tokens));
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < tokens; ++i) ids.push_back(bench_id(i, m.decoder.spec.vocab));
  const auto start = Clock::now();
  NIBBLE_TRY(sequence.append(ids));
  NIBBLE_TRY(sequence.settle());
  return seconds_since(start);
}

Result<double> generate_seconds(const Model::Impl& m, int64_t tokens) {
  NIBBLE_ASSIGN(Sequence sequence, Sequence::create(m.decoder, *m.stream, m.ops, tokens));
  // A card is not done before the host knows the next token; on a CPU choosing it costs nothing.
  kernels::Sampler greedy({.temperature = 0});
  const auto start = Clock::now();
  for (int64_t i = 0; i < tokens; ++i) {
    const int32_t id = bench_id(i, m.decoder.spec.vocab);
    NIBBLE_TRY(sequence.append({&id, 1}));
    if (m.stream->cuda() != nullptr) NIBBLE_TRY(sequence.sample(greedy));
  }
  return seconds_since(start);
}

Result<BenchRow> bench_row(const Model::Impl& m, const MachineReport& machine, bool prompt,
                           int64_t tokens, int repetitions) {
  const auto once = prompt ? &prompt_seconds : &generate_seconds;
  NIBBLE_ASSIGN(double warm_up, once(m, prompt ? tokens : std::min<int64_t>(tokens, 8)));
  (void)warm_up;
  std::vector<double> rates;
  for (int i = 0; i < repetitions; ++i) {
    NIBBLE_ASSIGN(double seconds, once(m, tokens));
    rates.push_back(static_cast<double>(tokens) / seconds);
  }
  const Rate rate = rate_of(rates);
  const int64_t batch = prompt ? std::min(tokens, Sequence::batch_of(*m.stream)) : 1;
  const double limit = static_cast<double>(batch) / limit_seconds(m, machine, batch);
  return BenchRow{fmt::format("{}{}", prompt ? "pp" : "tg", tokens),
                  rate.mean,
                  rate.stddev,
                  m.stream->threads(),
                  main_kernel(m.plan, batch),
                  rate.mean / limit};
}

// Copies of one packed weight, together larger than the last cache: used in turn, each is read from
// memory, as a model's weights are.
Result<std::vector<kernels::PackedWeight>> packed_copies(device::Stream& stream,
                                                         const device::Hardware& hardware,
                                                         const tensor::QuantizedWeight& weight,
                                                         const kernels::Choice& choice) {
  constexpr int64_t kMost = int64_t{768} << 20;  // bytes of all copies
  const kernels::MatmulProblem problem{weight.n, weight.k, weight.format, {}};
  const int64_t bytes = kernels::packed_bytes(problem, choice);
  const int64_t enough = std::clamp(2 * hardware.l3_bytes, int64_t{256} << 20, kMost);
  std::vector<kernels::PackedWeight> copies;
  for (int64_t total = 0; copies.size() < 2 || total < enough; total += bytes) {
    NIBBLE_ASSIGN(kernels::PackedWeight packed, kernels::pack(weight, choice, stream));
    copies.push_back(std::move(packed));
  }
  return copies;
}

KernelBenchRow kernel_row(device::Stream& stream, const std::vector<kernels::PackedWeight>& copies,
                          const MachineReport& machine, int64_t m) {
  const kernels::PackedWeight& first = copies.front();
  const int64_t n = first.problem.n;
  const int64_t k = first.problem.k;
  KernelBenchRow row{"", m, n, k, 0, 0};
  for (const kernels::ChoiceRange& range : first.choice.ranges) {
    if (m >= range.m_min && m <= range.m_max) row.kernel = kernels::kernel_name(*range.kernel);
  }
  std::vector<float> x(static_cast<size_t>(m * k));
  std::vector<float> y(static_cast<size_t>(m * n));
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  for (float& v : x) v = normal(random);
  double best = HUGE_VAL;
  const auto begin = Clock::now();
  for (size_t i = 0; i < 4 * copies.size() && (i < 5 || seconds_since(begin) < 0.5); ++i) {
    const kernels::MatmulTarget target{&copies[i % copies.size()], y.data(), n};
    const auto start = Clock::now();
    kernels::matmul(stream, {&target, 1}, x.data(), k, m);
    best = std::min(best, seconds_since(start));
  }
  const double reading = static_cast<double>(first.bytes.size()) / (machine.read_gb_s * 1e9);
  const double computing =
      2.0 * static_cast<double>(m * n) * static_cast<double>(k) / best_peak(machine);
  row.us = best * 1e6;
  row.of_limit = std::max(reading, computing) / best;
  return row;
}

}  // namespace

MachineReport measure_machine(int threads) {
  const device::Hardware hardware = device::detect_hardware();
  device::Stream stream(threads > 0 ? threads : std::max(1, hardware.cores));
  MachineReport out;
  out.cpu = hardware.cpu_model;
  out.threads = stream.threads();
  if (auto read = kernels::measure_read(stream, hardware); read) out.read_gb_s = *read / 1e9;
  for (const kernels::Peak& peak : kernels::measure_peaks(stream, hardware)) {
    out.peak_gops.emplace_back(peak.unit, peak.per_second / 1e9);
  }
  return out;
}

MachineReport measure_machine(const Model& model) {
  const Model::Impl& m = *model.shared();
  device::Cuda* cuda = m.stream->cuda();
  if (cuda == nullptr) return measure_machine(m.stream->threads());
  constexpr int64_t kBytes = int64_t{2} << 30;
  constexpr int64_t kSize = 8192;
  MachineReport out;
  out.cpu = cuda->gpu().name;
  out.threads = m.stream->threads();
  const double reading = cuda->kernels().read_seconds(cuda->context(), kBytes);
  if (reading > 0) out.read_gb_s = static_cast<double>(kBytes) / reading / 1e9;
  const double product = cuda->kernels().product_seconds(cuda->context(), kSize);
  if (product > 0) out.peak_gops.emplace_back("bf16", 2e-9 * std::pow(kSize, 3) / product);
  return out;
}

Result<std::vector<BenchRow>> bench(const Model& model, const BenchOptions& options,
                                    const MachineReport& machine) try {
  const Model::Impl& m = *model.shared();
  std::vector<BenchRow> rows;
  for (const bool prompt : {true, false}) {
    for (int64_t tokens : prompt ? options.prompt : options.generate) {
      if (tokens < 1) continue;
      NIBBLE_ASSIGN(BenchRow row, bench_row(m, machine, prompt, tokens, options.repetitions));
      rows.push_back(std::move(row));
    }
  }
  return rows;
} catch (const std::bad_alloc& error) {
  return api::out_of_memory(error, "");
}

Result<std::vector<KernelBenchRow>> bench_kernels(const Options& options,
                                                  const MachineReport& machine) try {
  using tensor::Element;
  NIBBLE_ASSIGN(api::ParsedOptions parsed, api::parse_options(options, true));
  if (parsed.plan.hardware.gpu && options.device != "auto") {
    return fail(
        ErrorCode::kUnsupported,
        fmt::format("--device {}: without a model only the CPU's kernels are measured; name "
                    "a model, or say --device cpu",
                    options.device));
  }
  parsed.plan.hardware.gpu.reset();
  device::Stream stream(parsed.threads);
  const tensor::WeightFormat formats[] = {
      {.element = Element::kS4, .scaled = true, .group_k = 128, .scale_type = tensor::DType::kF16},
      {.element = Element::kS8, .scaled = true, .group_k = 32, .scale_type = tensor::DType::kF16},
      {.element = Element::kE4M3, .scaled = true, .scale_type = tensor::DType::kF32},
      {.element = Element::kBF16},
  };
  constexpr std::pair<int64_t, int64_t> kShapes[] = {{4096, 4096}, {14336, 4096}};
  std::vector<KernelBenchRow> rows;
  std::optional<Error> refused;
  for (const tensor::WeightFormat& format : formats) {
    for (const auto& [n, k] : kShapes) {
      const auto choice =
          kernels::choose({n, k, format, {}}, parsed.plan.hardware, parsed.plan.policy);
      if (!choice) {  // --kernel or --isa leaves it out
        refused = choice.error();
        continue;
      }
      NIBBLE_ASSIGN(const tensor::QuantizedWeight weight, load::dummy_weight(format, n, k, 1));
      NIBBLE_ASSIGN(const std::vector<kernels::PackedWeight> copies,
                    packed_copies(stream, parsed.plan.hardware, weight, *choice));
      for (int64_t m : {1, 8, 64, 512}) rows.push_back(kernel_row(stream, copies, machine, m));
    }
  }
  if (rows.empty() && refused) return fail(*refused);
  return rows;
} catch (const std::bad_alloc& error) {
  return api::out_of_memory(error, "");
}

}  // namespace nibble
