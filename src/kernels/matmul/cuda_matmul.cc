// Choosing for a card, and the loop over several weights that read the same x.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "kernels/cuda/plan.h"
#include "kernels/matmul/cuda_tiles.h"
#include "kernels/matmul/cuda_w8a8.h"
#include "kernels/matmul/cuda_weight.h"
#include "kernels/matmul/rows.h"

namespace nibble::kernels {
namespace {

// What a kernel does; the index of its line in the list.
enum Path { kE4M3, kS8, kFew, kMany, kManyBytes, kCodes, kPanelBf16, kPanelF32 };

// Crossovers measured on an H200 (docs/cuda-notebook.md). The kernels for tiles are for Hopper; the
// others are the reference, for every format and card: up to 8 tokens a warp reads the codes of a
// row once, from there on panels are dequantized.
constexpr int64_t kFewTokens = 8;
constexpr int64_t kFewTokensOfTiles = 16;
constexpr int64_t kManyTokensOfTiles = 4096;
constexpr int64_t kManyTokensOfByteTiles = 1024;
constexpr Kernel kList[] = {
    {"matmul_e4m3_e4m3_f32_cuda", device::Isa::kReference, Packing::kPlain, Reads::kFloat8,
     Form::kRows, 1, 1, INT64_MAX, nullptr},
    {"matmul_s8_s8_f32_cuda", device::Isa::kReference, Packing::kPlain, Reads::kInteger,
     Form::kRows, 1, 1, INT64_MAX, nullptr},
    {"matvec_bf16_int_f32_sm90", device::Isa::kReference, Packing::kPlain, Reads::kInteger,
     Form::kRows, 16, 1, kFewTokensOfTiles, nullptr},
    {"matmul_bf16_int_f32_sm90", device::Isa::kReference, Packing::kPlain, Reads::kInteger,
     Form::kRows, 1, kFewTokensOfTiles + 1, kManyTokensOfTiles, nullptr},
    {"matmul_bf16_s8_f32_sm90", device::Isa::kReference, Packing::kPlain, Reads::kInteger,
     Form::kRows, 1, kFewTokensOfTiles + 1, kManyTokensOfByteTiles, nullptr},
    {"matvec_f32_any_f32_cuda", device::Isa::kReference, Packing::kPlain, Reads::kAny, Form::kRows,
     8, 1, kFewTokens, nullptr},
    {"matmul_bf16_any_f32_cuda", device::Isa::kReference, Packing::kPlain, Reads::kAny, Form::kRows,
     1, kFewTokens + 1, INT64_MAX, nullptr},
    {"matmul_f32_any_f32_cuda", device::Isa::kReference, Packing::kPlain, Reads::kAny, Form::kRows,
     1, kFewTokens + 1, INT64_MAX, nullptr},
};

Path path_of(const Kernel& kernel) { return static_cast<Path>(&kernel - kList); }
bool is_of_codes(Path path) { return path == kE4M3 || path == kS8; }
bool is_many(Path path) { return path == kMany || path == kManyBytes; }
bool is_of_tiles(Path path) { return path == kFew || is_many(path); }

std::string refusal(const Kernel& kernel, const MatmulProblem& problem, const device::Gpu& gpu,
                    const MatmulPolicy& policy) {
  if (!glob_matches(policy.kernel_glob, kernel.name)) {
    return fmt::format("its name does not match --kernel {}", policy.kernel_glob);
  }
  const Path path = path_of(kernel);
  if (path == kE4M3) return codes_refusal(Codes::kE4M3, problem, gpu, policy);
  if (path == kS8) return codes_refusal(Codes::kS8, problem, gpu, policy);
  if (path == kCodes || path == kPanelF32) return "";
  if (policy.precision == Precision::kExact) {
    return "rounds weights and activations to bf16; --precision exact wants float";
  }
  if (is_of_tiles(path)) {
    if (gpu.major != 9) {
      return fmt::format("is for Hopper (compute capability 9.0); {} has {}.{}", gpu.name,
                         gpu.major, gpu.minor);
    }
    const std::string why = tiles_refusal(problem.weight);
    const bool four = tensor::bits(problem.weight.element) <= 4;
    if (why.empty() && is_many(path) && four != (path == kMany)) {
      return fmt::format("reads codes of {}; the weight is {}",
                         path == kMany ? "up to 4 bits" : "5 to 8 bits",
                         tensor::name(problem.weight.element));
    }
    return why;
  }
  if (!gpu.at_least(8, 0)) {
    return fmt::format("needs bf16 products (compute capability 8.0); {} has {}.{}", gpu.name,
                       gpu.major, gpu.minor);
  }
  return "";
}

// The scratch slots of a card that matmul uses.
constexpr int kWorkSlot = 0;
constexpr int kPanelSlot = 1;
constexpr int kInputSlot = 2;  // and the following
constexpr size_t kMostTargets = 4;
constexpr int64_t kPanelMost = int64_t{256} << 20;

// x in the form of one target.
struct Input {
  const void* data = nullptr;
  int64_t ld = 0;
  const float* scale = nullptr;  // of codes, for each token
};

struct Job {
  Job() = default;
  Job(const PackedWeight& weight, int64_t m)
      : packed(weight.cuda.get()), path(path_of(kernel_for(weight.choice, m))), rows(m) {}

  const CudaPacked* packed = nullptr;
  Path path = kCodes;
  int64_t rows = 0;
  bool x_is_f32 = false;  // of kFew: as the layers have it
  Input x;

  bool tiles() const { return packed->weight.tiles.bits != 0; }
  bool codes() const { return is_of_codes(path); }
  bool bf16() const { return path == kPanelBf16 || is_many(path) || (path == kFew && !x_is_f32); }
  int64_t input_bytes() const { return codes() ? 1 : bf16() ? 2 : 4; }
  // Inputs are padded so that rows are read in whole chunks.
  int64_t k_pad() const {
    return tiles() && bf16() ? packed->weight.tiles.k_pad : (packed->weight.k + 31) / 32 * 32;
  }
  bool changes_x() const {
    const CudaInput& in = packed->input;
    return in.factor != nullptr || in.hadamard != 0 || in.order != nullptr ||
           in.activation.type != tensor::ActivationFormat::Type::kFloat;
  }
  bool as_it_is(const float* from, int64_t ldx) const {
    return input_bytes() == 4 && !changes_x() && packed->weight.k == k_pad() && ldx % 4 == 0 &&
           reinterpret_cast<uintptr_t>(from) % 16 == 0;
  }
  // Whether x may be rounded by whoever makes it: nothing comes before that.
  bool takes_bf16() const {
    return bf16() && !changes_x() && packed->weight.k == k_pad() && k_pad() % 8 == 0;
  }
  bool writes_bf16() const { return is_many(path) || path == kPanelBf16; }
  // With more tokens than that, passes of their own add and normalize sooner (an H200).
  bool fuses() const { return path == kFew && rows <= CudaFew::kMostFused; }
  bool adds() const { return path == kPanelBf16 || path == kPanelF32 || fuses(); }
  // The second part of a norm.
  bool takes_half_normed() const { return fuses() && takes_bf16(); }
  // One launch saved: the kernel for few tokens rounds x itself.
  bool can_read_f32(const float* from, int64_t ldx, int64_t m) const {
    constexpr int64_t kMost = 4;
    return path == kFew && m <= kMost && !changes_x() && packed->weight.k % 8 == 0 &&
           ldx % 4 == 0 && reinterpret_cast<uintptr_t>(from) % 16 == 0;
  }
  bool same_tiles(const Job& other) const {
    const CudaTiles& a = packed->weight.tiles;
    const CudaTiles& b = other.packed->weight.tiles;
    return a.bits == b.bits && a.group == b.group && a.k_pad == b.k_pad &&
           a.scales_are_bf16 == b.scales_are_bf16 && (a.zeros == nullptr) == (b.zeros == nullptr);
  }
  // Of weights of a card, pointers tell tables apart; equal tables of two weights are two tables.
  bool same_input(const Job& other) const {
    const CudaInput& a = packed->input;
    const CudaInput& b = other.packed->input;
    return input_bytes() == other.input_bytes() && k_pad() == other.k_pad() &&
           packed->weight.k == other.packed->weight.k && a.factor == b.factor &&
           a.hadamard == b.hadamard && a.order == b.order && a.activation == b.activation &&
           a.input_scale == b.input_scale && a.input_zero == b.input_zero;
  }
  // Whether the two can be one launch that ends with an activation.
  bool is_gate_of(const Job& up) const {
    return path == kFew && up.path == kFew && packed->weight.n == up.packed->weight.n &&
           same_tiles(up) && same_input(up);
  }
};

Input prepared(device::Cuda& cuda, int slot, const Job& job, const float* x, int64_t ldx,
               int64_t m) {
  if (job.as_it_is(x, ldx) || job.x_is_f32) return {x, ldx};
  const int64_t k = job.packed->weight.k;
  const int64_t ld = job.k_pad();
  const auto work_bytes = static_cast<size_t>(m * (k + 3)) * sizeof(float) + static_cast<size_t>(k);
  auto* work = reinterpret_cast<float*>(cuda.scratch(kWorkSlot, work_bytes));
  const int64_t bytes = (m * ld * job.input_bytes() + 255) / 256 * 256;
  const int64_t of_scales = job.codes() ? m * int64_t{sizeof(float)} : 0;
  std::byte* out = cuda.scratch(slot, static_cast<size_t>(bytes + of_scales));
  if (job.codes()) {
    auto* scale = reinterpret_cast<float*>(out + bytes);
    cuda.kernels().prepare_codes(cuda.context(), &job.packed->input, x, ldx, m, k, work, out, ld,
                                 scale);
    return {out, ld, scale};
  }
  cuda.kernels().prepare(cuda.context(), &job.packed->input, x, ldx, m, k, work, out, ld,
                         job.bf16());
  return {out, ld};
}

// y is where the sums go, if it can be read there four at a time.
void run_codes(device::Cuda& cuda, const Job& job, const RowsTarget& target, int64_t m) {
  const CudaWeight& weight = job.packed->weight;
  float* y = target.y.f32();
  void* sum = y;
  int64_t lds = target.ldy;
  if (lds % 4 != 0 || reinterpret_cast<uintptr_t>(sum) % 16 != 0) {
    lds = weight.n;
    sum = cuda.scratch(kPanelSlot, static_cast<size_t>(m * lds) * sizeof(float));
  }
  cuda.kernels().multiply_codes(cuda.context(), &weight, job.path == kS8, job.x.data, job.x.ld,
                                job.x.scale, job.packed->row_scale, sum, lds, y, target.ldy, m);
}

void run(device::Cuda& cuda, const Job& job, const RowsTarget& target, int64_t m) {
  const CudaKernels& kernels = cuda.kernels();
  const CudaWeight& weight = job.packed->weight;
  const bool y_is_bf16 = target.y.held == Held::kBf16;
  if (job.codes()) return run_codes(cuda, job, target, m);
  if (is_many(job.path)) {
    return kernels.multiply_many(cuda.context(), &weight, job.x.data, job.x.ld, target.y.data,
                                 target.ldy, y_is_bf16, m);
  }
  if (job.path == kCodes) {
    kernels.matvec(cuda.context(), &weight, static_cast<const float*>(job.x.data), job.x.ld,
                   target.y.f32(), target.ldy, m);
    return;
  }
  constexpr int64_t kLeastRows = 64;
  const int64_t row_bytes = job.k_pad() * job.input_bytes();
  const int64_t whole = (weight.n + kLeastRows - 1) / kLeastRows * kLeastRows * row_bytes;
  const int64_t bytes = std::max(std::min(whole, kPanelMost), kLeastRows * row_bytes);
  std::byte* panel = cuda.scratch(kPanelSlot, static_cast<size_t>(bytes));
  kernels.gemm(cuda.context(), &weight, job.x.data, job.x.ld, job.bf16(), panel, bytes,
               target.y.data, target.ldy, y_is_bf16, target.add, m);
}

// Those of the jobs for few tokens that read the same x in the same way are one launch.
CudaFew few_of(std::span<const Job> jobs, std::span<const RowsTarget> targets, const ConstRows& x,
               int64_t m) {
  static_assert(kMostTargets <= CudaFew::kMost);
  CudaFew call = {};
  for (size_t i = 0; i < jobs.size(); ++i) {
    call.weight[i] = &jobs[i].packed->weight;
    call.y[i] = targets[i].y.f32();
    call.ldy[i] = targets[i].ldy;
  }
  call.count = static_cast<int32_t>(jobs.size());
  call.add = targets[0].add;
  call.x = jobs[0].x.data;
  call.ldx = jobs[0].x.ld;
  call.x_is_f32 = jobs[0].x_is_f32;
  call.squares = x.squares;
  call.norm_eps = x.eps;
  call.next_norm = targets[0].next.weight;
  call.next_rows = targets[0].next.rows;
  call.next_squares = targets[0].next.squares;
  call.m = m;
  return call;
}

// Of the kernels that fit, those that read one packing: tiles, where there are kernels for them and
// none for the codes of inputs.
const char* only_one_packing(std::vector<const Kernel*>& fitting) {
  const auto of_codes = [](const Kernel* k) { return is_of_codes(path_of(*k)); };
  const auto of_tiles = [](const Kernel* k) { return is_of_tiles(path_of(*k)); };
  if (std::any_of(fitting.begin(), fitting.end(), of_codes) ||
      std::none_of(fitting.begin(), fitting.end(), of_tiles)) {
    std::erase_if(fitting, of_tiles);
    return kCudaPacking;
  }
  std::erase_if(fitting,
                [](const Kernel* k) { return path_of(*k) == kCodes || path_of(*k) == kPanelF32; });
  return kTilePacking;
}

Held bf16_if_all(const device::Stream& stream, std::span<const PackedWeight* const> weights,
                 int64_t m, bool (Job::*can)() const) {
  if (stream.shared_cuda() == nullptr) return Held::kF32;
  const bool all = std::all_of(weights.begin(), weights.end(), [&](const PackedWeight* weight) {
    return (Job(*weight, m).*can)();
  });
  return all ? Held::kBf16 : Held::kF32;
}

}  // namespace

std::span<const Kernel> cuda_kernels() { return kList; }

bool multiplies_codes(const Choice& choice) {
  return std::any_of(choice.ranges.begin(), choice.ranges.end(),
                     [](const ChoiceRange& range) { return is_of_codes(path_of(*range.kernel)); });
}

int64_t cuda_workspace_bytes() {
  constexpr int64_t kOfCublas = int64_t{32} << 20;
  return kPanelMost + kOfCublas;
}

Choice judge_for_cuda(const MatmulProblem& problem, const device::Gpu& gpu,
                      const MatmulPolicy& policy) {
  Choice out;
  out.activation = problem.activation;
  auto [fitting, refused] =
      judged(kList, [&](const Kernel& kernel) { return refusal(kernel, problem, gpu, policy); });
  out.refusals = std::move(refused);
  if (fitting.empty()) return out;
  out.packing = only_one_packing(fitting);
  out.ranges = ranges_of(fitting);
  out.activation = weight_only(problem, gpu, policy) ? tensor::ActivationFormat{}
                                                     : activation_for(problem, policy);
  const Kernel* last = fitting.front();
  for (const ChoiceRange& range : out.ranges) last = std::max(last, range.kernel);
  std::erase_if(out.refusals, [&](const Refusal& r) {
    return std::none_of(kList, last, [&](const Kernel& k) { return r.kernel == k.name; });
  });
  return out;
}

Held held_for(const device::Stream& stream, std::span<const PackedWeight* const> weights,
              int64_t m) {
  return bf16_if_all(stream, weights, m, &Job::takes_bf16);
}

Held held_by(const device::Stream& stream, std::span<const PackedWeight* const> weights,
             int64_t m) {
  return bf16_if_all(stream, weights, m, &Job::writes_bf16);
}

bool can_add(const device::Stream& stream, const PackedWeight& weight, int64_t m) {
  return stream.shared_cuda() != nullptr && Job(weight, m).adds();
}

void matmul(device::Stream& stream, std::span<const RowsTarget> targets, ConstRows x, int64_t ldx,
            int64_t m) {
  if (m == 0) return;
  if (stream.cuda() != nullptr) return matmul_on_cuda(stream, targets, x, ldx, m);
  std::vector<MatmulTarget> floats;
  for (const RowsTarget& t : targets) {
    NIBBLE_CHECK(!t.add);
    floats.push_back({t.weight, t.y.f32(), t.ldy});
  }
  matmul(stream, floats, x.f32(), ldx, m);
}

bool can_split_norm(const device::Stream& stream, const PackedWeight& adds,
                    std::span<const PackedWeight* const> readers, int64_t m) {
  constexpr int64_t kWhole = 64;  // rows of a strip
  if (stream.shared_cuda() == nullptr || readers.empty()) return false;
  const int64_t n = adds.problem.n;
  return Job(adds, m).fuses() && n % kWhole == 0 &&
         std::all_of(readers.begin(), readers.end(), [&](const PackedWeight* reader) {
           return reader->problem.k == n && Job(*reader, m).takes_half_normed();
         });
}

bool can_gate(const device::Stream& stream, const PackedWeight& gate, const PackedWeight& up,
              int64_t m) {
  return stream.shared_cuda() != nullptr && Job(gate, m).is_gate_of(Job(up, m));
}

namespace {

// The jobs of several weights that read x, each with x as it wants it.
struct Jobs {
  Jobs(device::Cuda& cuda, std::span<const PackedWeight* const> weights, const ConstRows& x,
       int64_t ldx, int64_t m) {
    NIBBLE_CHECK(weights.size() <= kMostTargets);
    for (size_t i = 0; i < weights.size(); ++i) {
      Job& job = all[i];
      job = Job(*weights[i], m);
      if (x.held == Held::kBf16) {
        NIBBLE_CHECK(job.takes_bf16() && ldx % 8 == 0);
        NIBBLE_CHECK(x.squares == nullptr || job.takes_half_normed());
        job.x = {x.data, ldx};
        continue;
      }
      job.x_is_f32 = job.can_read_f32(x.f32(), ldx, m);
      const Job* twin =
          std::find_if(all, all + i, [&](const Job& other) { return job.same_input(other); });
      job.x = twin != all + i
                  ? twin->x
                  : prepared(cuda, kInputSlot + static_cast<int>(i), job, x.f32(), ldx, m);
    }
  }

  Job all[kMostTargets];
};

}  // namespace

void matmul_gated(device::Stream& stream, const GatedTarget& target, ConstRows x, int64_t ldx,
                  int64_t m) {
  if (m == 0) return;
  NIBBLE_CHECK(stream.cuda() != nullptr);
  device::Cuda& cuda = *stream.cuda();
  const PackedWeight* const weights[] = {target.gate_weight, target.up_weight};
  const Jobs jobs(cuda, weights, x, ldx, m);
  NIBBLE_CHECK(jobs.all[0].is_gate_of(jobs.all[1]));
  const RowsTarget targets[] = {{target.gate_weight, target.gate, target.ld},
                                {target.up_weight, target.up, target.ld}};
  CudaFew call = few_of({jobs.all, 2}, targets, x, m);
  call.gated = target.y.data;
  call.ldg = target.ldy;
  call.gated_is_bf16 = target.y.held == Held::kBf16;
  call.function = static_cast<int32_t>(target.function);
  cuda.kernels().multiply_few(cuda.context(), &call);
}

void matmul_on_cuda(device::Stream& stream, std::span<const RowsTarget> targets, ConstRows x,
                    int64_t ldx, int64_t m) {
  NIBBLE_CHECK(targets.size() <= kMostTargets);
  device::Cuda& cuda = *stream.cuda();
  const PackedWeight* weights[kMostTargets];
  for (size_t i = 0; i < targets.size(); ++i) weights[i] = targets[i].weight;
  const Jobs made(cuda, {weights, targets.size()}, x, ldx, m);
  const Job* const jobs = made.all;
  for (size_t i = 0; i < targets.size(); ++i) {
    NIBBLE_CHECK(targets[i].y.held == Held::kF32 || jobs[i].writes_bf16());
    NIBBLE_CHECK(!targets[i].add || jobs[i].adds());
    NIBBLE_CHECK(targets[i].next.weight == nullptr ||
                 (targets[i].add && jobs[i].path == kFew && targets.size() == 1));
  }
  for (size_t i = 0; i < targets.size();) {
    size_t end = i + 1;
    if (jobs[i].path == kFew) {
      while (end < targets.size() && jobs[end].path == kFew && jobs[end].x.data == jobs[i].x.data &&
             jobs[end].same_tiles(jobs[i]) && targets[end].add == targets[i].add) {
        ++end;
      }
      const CudaFew call = few_of({jobs + i, end - i}, targets.subspan(i, end - i), x, m);
      cuda.kernels().multiply_few(cuda.context(), &call);
    } else {
      run(cuda, jobs[i], targets[i], m);
    }
    i = end;
  }
}

}  // namespace nibble::kernels
