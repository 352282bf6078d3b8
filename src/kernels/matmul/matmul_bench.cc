// Speed of the kernels as a share of what the machine can do, measured in the same run.
//
//   matmul_bench [--threads N] [--isa avx2|avx512] [--exact] [--kernel GLOB] [--format NAME]
//                [--shape NxK] [--m M,M,...] [--mb MEGABYTES]
//
// `--mb` spreads the calls over so many bytes of different weights (default 0: one weight, in the
// cache). A line is: format, shape, M, kernel, microseconds; bytes a second as a share of the
// read bandwidth; multiply-adds a second as a share of the peak of the instruction that does them.
#include <fmt/format.h>
#include <time.h>

#include <chrono>
#include <cstdlib>
#include <map>

#include "kernels/matmul/ceilings.h"
#include "kernels/matmul/kernel.h"
#include "kernels/matmul/random_weight.h"

namespace nibble::kernels {
namespace {

using tensor::DType;
using tensor::Element;
using tensor::WeightFormat;
using tensor::ZeroKind;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// One thread is timed by its own clock, which stops while another program has the core.
double now(const device::Stream& stream) {
  if (stream.threads() > 1) return now();
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

const std::map<std::string, WeightFormat>& formats() {
  static const std::map<std::string, WeightFormat> all = {
      {"q4_1",
       {.element = Element::kU4,
        .scaled = true,
        .group_k = 32,
        .scale_type = DType::kF16,
        .zero = ZeroKind::kOffset}},
      {"q4_0", {.element = Element::kS4, .scaled = true, .group_k = 32, .scale_type = DType::kF16}},
      {"q8_0", {.element = Element::kS8, .scaled = true, .group_k = 32, .scale_type = DType::kF16}},
      {"q6_k", {.element = Element::kS6, .scaled = true, .group_k = 16}},
      {"awq",
       {.element = Element::kU4,
        .scaled = true,
        .group_k = 128,
        .scale_type = DType::kF16,
        .zero = ZeroKind::kInteger}},
      {"gptq",
       {.element = Element::kS4, .scaled = true, .group_k = 128, .scale_type = DType::kF16}},
      {"s8c", {.element = Element::kS8, .scaled = true}},
      {"e4m3c", {.element = Element::kE4M3, .scaled = true}},
      {"e4m3b", {.element = Element::kE4M3, .scaled = true, .group_n = 128, .group_k = 128}},
      {"e5m2t", {.element = Element::kE5M2, .scaled = true, .group_n = 0}},
      {"mxfp4",
       {.element = Element::kE2M1, .scaled = true, .group_k = 32, .scale_type = DType::kE8M0}},
      {"nvfp4",
       {.element = Element::kE2M1,
        .scaled = true,
        .group_k = 16,
        .second_scale = tensor::SecondScale::kMultiplies}},
      {"nvfp4_over",
       {.element = Element::kE2M1,
        .scaled = true,
        .group_k = 16,
        .second_scale = tensor::SecondScale::kDivides}},
      {"nvfp4_f32", {.element = Element::kE2M1, .scaled = true, .group_k = 16}},
      {"nf4", {.element = Element::kNF4, .scaled = true, .group_k = 64}},
      {"bf16", {.element = Element::kBF16}},
      {"f16", {.element = Element::kF16}},
      {"f32", {.element = Element::kF32}}};
  return all;
}

struct Options {
  int threads = 1;
  MatmulPolicy policy;
  std::string format = "q4_1";
  int64_t n = 576;
  int64_t k = 1536;
  std::vector<int64_t> m = {1, 2, 4, 8, 16, 64, 512};
  int64_t mb = 0;
};

Options parse(int argc, char** argv) {
  Options out;
  const auto number = [](const std::string& s) { return std::strtoll(s.c_str(), nullptr, 10); };
  for (int i = 1; i < argc; ++i) {
    const std::string key = argv[i];
    const std::string value = i + 1 < argc ? argv[i + 1] : "";
    if (key == "--exact") {
      out.policy.precision = Precision::kExact;
      continue;
    }
    ++i;
    if (key == "--threads") out.threads = static_cast<int>(number(value));
    if (key == "--isa")
      out.policy.isa = value == "avx2" ? device::Isa::kAvx2 : device::Isa::kAvx512;
    if (key == "--kernel") out.policy.kernel_glob = value;
    if (key == "--format") out.format = value;
    if (key == "--mb") out.mb = number(value);
    if (key == "--shape") {
      out.n = number(value);
      out.k = number(value.substr(value.find('x') + 1));
    }
    if (key == "--m") {
      out.m.clear();
      for (size_t at = 0; at < value.size(); at = value.find(',', at) + 1) {
        out.m.push_back(number(value.substr(at)));
        if (value.find(',', at) == std::string::npos) break;
      }
    }
  }
  return out;
}

// The instruction that does a kernel's multiply-adds, and how many it needs for one.
std::pair<Unit, double> unit_of(const Kernel& kernel) {
  const bool wide = kernel.isa == device::Isa::kAvx512;
  if (kernel.form == Form::kS8Digits)
    return {wide ? Unit::kDpbusd512 : Unit::kMadd256, wide ? 2 : 1};
  if (kernel.form == Form::kS16Panel) return {wide ? Unit::kDpwssd512 : Unit::kMadd256, 1};
  return {wide ? Unit::kFma512 : Unit::kFma256, 1};
}

// The best of many short runs: the machine is shared.
double seconds_a_call(device::Stream& stream, const std::vector<PackedWeight>& weights,
                      const std::vector<float>& x, int64_t m) {
  const int64_t n = weights[0].problem.n;
  const int64_t k = weights[0].problem.k;
  std::vector<float> y(static_cast<size_t>(m * n));
  const auto call = [&](size_t i) {
    const MatmulTarget target{&weights[i % weights.size()], y.data(), n};
    matmul(stream, {&target, 1}, x.data(), k, m);
  };
  double best = 1e9;
  const double begin = now();
  size_t calls = weights.size();
  for (int round = 0; round < 5 || now() - begin < 1.0; ++round) {
    const double start = now(stream);
    for (size_t i = 0; i < calls; ++i) call(i);
    const double each = (now(stream) - start) / static_cast<double>(calls);
    best = std::min(best, each);
    if (weights.size() == 1) calls = static_cast<size_t>(std::clamp(0.002 / each, 1.0, 10000.0));
  }
  return best;
}

int run(const Options& o) {
  device::Stream stream(o.threads);
  const device::Hardware hardware = device::detect_hardware();
  tensor::Buffer memory = *tensor::Buffer::allocate(size_t{512} << 20);
  std::fill(memory.data(), memory.data() + memory.size(), std::byte{1});
  const double bandwidth =
      read_bandwidth(stream, memory.data(), static_cast<int64_t>(memory.size()));
  fmt::print("{} threads, reads {:.1f} GB/s", o.threads, bandwidth * 1e-9);
  std::map<Unit, double> peaks;
  for (Unit unit :
       {Unit::kFma256, Unit::kMadd256, Unit::kFma512, Unit::kDpwssd512, Unit::kDpbusd512}) {
    if (unit >= Unit::kFma512 && !hardware.avx512) continue;
    peaks[unit] = peak(stream, unit);
  }
  fmt::print(
      ", G multiply-adds/s: fma256 {:.0f} madd256 {:.0f} fma512 {:.0f} dpwssd512 {:.0f} "
      "dpbusd512 {:.0f}\n",
      peaks[Unit::kFma256] * 1e-9, peaks[Unit::kMadd256] * 1e-9, peaks[Unit::kFma512] * 1e-9,
      peaks[Unit::kDpwssd512] * 1e-9, peaks[Unit::kDpbusd512] * 1e-9);

  const WeightFormat& format = formats().at(o.format);
  auto choice = choose({o.n, o.k, format, {}}, hardware, o.policy);
  if (!choice) {
    fmt::print("{}\n", choice.error().message);
    return 1;
  }
  std::vector<PackedWeight> weights;
  for (int64_t bytes = 0; weights.empty() || bytes < o.mb << 20;) {
    const auto w = random_weight(format, o.n, o.k, static_cast<uint32_t>(weights.size() % 4));
    weights.push_back(std::move(*pack(w, *choice, stream)));
    bytes += static_cast<int64_t>(weights.back().bytes.size());
  }
  for (int64_t m : o.m) {
    const Kernel* kernel = nullptr;
    for (const ChoiceRange& range : choice->ranges) {
      if (m >= range.m_min) kernel = range.kernel;
    }
    const double t = seconds_a_call(stream, weights, random_activations(m * o.k, 1), m);
    const auto [unit, each] = unit_of(*kernel);
    const double work = static_cast<double>(o.n * o.k * m);
    fmt::print(
        "{:6} {}x{} m {:4} {:36} {:9.2f} us {:5.1f} GB/s = {:4.2f}  {:7.1f} Gma/s = {:4.2f}\n",
        o.format, o.n, o.k, m, kernel->name, t * 1e6,
        static_cast<double>(weights[0].bytes.size()) / t * 1e-9,
        static_cast<double>(weights[0].bytes.size()) / t / bandwidth, work / t * 1e-9,
        work * each / t / peaks[unit]);
  }
  return 0;
}

}  // namespace
}  // namespace nibble::kernels

int main(int argc, char** argv) { return nibble::kernels::run(nibble::kernels::parse(argc, argv)); }
