// Products of few tokens with codes in tiles: what is compiled, how the work is cut, and the launch
// (cuda_w4_few_device.cuh has the kernel).
#include <algorithm>
#include <atomic>
#include <bit>

#include "kernels/matmul/cuda_w4_few_device.cuh"

namespace nibble::kernels::cuda {
namespace {

int round_up(int value, int to) { return (value + to - 1) / to * to; }

int units_of(const W4Args& w) { return round_up(w.k, kUnit) / kUnit; }

// Scales of a row and unit.
int scale_rows_of(const W4Args& w) {
  if (w.group == 32) return 4;
  return w.group % kUnit == 0 || w.group >= w.k ? 1 : 2;
}

// Whether there are shapes with 64 rows a warp, or such ones alone. With more than 8 tokens and
// several scales they would want more registers than there are.
bool can_be_wide(const W4Few& args) {
  const W4Args& w = args.weights[0];
  return w.bits == 4 && (args.m <= 8 || scale_rows_of(w) == 1);
}
bool must_be_wide(const W4Few& args) { return args.weights[0].bits == 4 && args.x_is_f32; }

// call.operator()<Shape>() for what the weights are and the tokens need.
template <class Call>
auto with_shape(const W4Few& args, bool wide, const Call& call) {
  const W4Args& w = args.weights[0];
  const auto with_rest = [&]<int kBits, int kScaleRows, bool kZeros>() {
    using B = __nv_bfloat16;
    if (args.x_is_f32) {
      constexpr int kTiles = kBits == 4 ? 4 : 2;
      return call.template operator()<Shape<kBits, 1, kScaleRows, kZeros, float, kTiles>>();
    }
    if constexpr (kBits == 4) {
      if (wide && args.m <= 8) {
        return call.template operator()<Shape<kBits, 1, kScaleRows, kZeros, B, 4>>();
      }
      if constexpr (kScaleRows == 1) {
        if (wide) return call.template operator()<Shape<kBits, 2, kScaleRows, kZeros, B, 4>>();
      }
    }
    return args.m <= 8 ? call.template operator()<Shape<kBits, 1, kScaleRows, kZeros, B, 2>>()
                       : call.template operator()<Shape<kBits, 2, kScaleRows, kZeros, B, 2>>();
  };
  const auto with_scales = [&]<int kBits, bool kZeros>() {
    switch (scale_rows_of(w)) {
      case 1:
        return with_rest.template operator()<kBits, 1, kZeros>();
      case 2:
        return with_rest.template operator()<kBits, 2, kZeros>();
      default:
        return with_rest.template operator()<kBits, 4, kZeros>();
    }
  };
  if (w.bits == 8) return with_scales.template operator()<8, false>();
  return w.zeros != nullptr ? with_scales.template operator()<4, true>()
                            : with_scales.template operator()<4, false>();
}

int strips_of(const W4Few& args) {
  int out = 0;
  for (int i = 0; i < args.count; ++i) out += round_up(args.weights[i].n, kStrip) / kStrip;
  return out;
}

constexpr int kAhead = 64 << 10;  // bytes of codes beyond the ring

// Of a device, asked once.
constexpr int kMostDevices = 64;
struct AskedOnce {
  std::atomic<int> clusters[kMostDevices][4];  // of 1, 2, 4, 8 blocks at once; 0: not asked yet
};
AskedOnce asked;

// Clusters of `config` that run at once: not all multiprocessors of every card are in some cluster.
template <class S>
cudaError_t clusters_at_once(int device, cudaLaunchConfig_t config, int ranks, int& most) {
  std::atomic<int>& known =
      asked.clusters[device % kMostDevices][std::countr_zero(unsigned(ranks))];
  most = device < kMostDevices ? known.load(std::memory_order_relaxed) : 0;
  if (most > 0) return cudaSuccess;
  config.dynamicSmemBytes = kSharedMost;  // one block a multiprocessor
  const cudaError_t error = cudaOccupancyMaxActiveClusters(&most, few_tokens<S>, &config);
  if (error != cudaSuccess) return error;
  if (most < 1) return cudaErrorLaunchOutOfResources;
  known.store(most, std::memory_order_relaxed);
  return cudaSuccess;
}

template <class S>
cudaError_t allow_shared_memory(int device) {
  static std::atomic<uint64_t> done;
  const uint64_t bit = uint64_t{1} << device % kMostDevices;
  if (device < kMostDevices && (done.load(std::memory_order_relaxed) & bit) != 0)
    return cudaSuccess;
  const cudaError_t error =
      cudaFuncSetAttribute(few_tokens<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedMost);
  if (error == cudaSuccess) done.fetch_or(bit, std::memory_order_relaxed);
  return error;
}

template <class S>
cudaError_t launch(const W4Few& args, const W4FewPlan& plan, int multiprocessors) {
  const W4Args& first = args.weights[0];
  Work w = {};
  for (int i = 0; i < kMostWeights; ++i) {
    w.first_strip[i + 1] = w.first_strip[i];
    if (i >= args.count) continue;
    const W4Args& from = args.weights[i];
    w.weight[i] = {static_cast<const uint8_t*>(from.codes),
                   static_cast<const uint8_t*>(from.scales),
                   static_cast<const uint8_t*>(from.zeros),
                   from.y,
                   from.ldy,
                   from.n};
    w.first_strip[i + 1] += round_up(from.n, kStrip) / kStrip;
  }
  w.x = args.x;
  w.ldx = args.ldx;
  w.m = args.m;
  w.k = args.k;
  w.units = units_of(first);
  w.slice = (w.units + plan.ranks - 1) / plan.ranks;
  w.group = std::min(first.group, w.units * kUnit);
  w.groups = round_up(w.units * kUnit, w.group) / w.group;
  w.ranks = plan.ranks;
  w.log_ranks = std::countr_zero(static_cast<unsigned>(plan.ranks));
  w.stages = plan.stages;
  w.early = plan.early;
  w.ahead = kAhead + (plan.stages - plan.early) * S::kCodeBytes;
  w.squares = args.squares;
  w.norm_eps = args.norm_eps;
  w.next = args.next;
  w.gated = args.gated ? 1 : 0;
  w.function = args.function;
  w.add = args.add;
  w.scales_are_bf16 = first.scales_are_bf16;
  w.y_is_bf16 = first.y_is_bf16;
  const int bytes = memory_of<S>(w.m, w.slice, w.ranks, w.stages).bytes;
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = allow_shared_memory<S>(device);
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim.x = static_cast<unsigned>(plan.ranks);
  attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = static_cast<unsigned>(multiprocessors / plan.ranks * plan.ranks);
  config.blockDim = S::kThreads;
  config.dynamicSmemBytes = static_cast<size_t>(bytes);
  config.stream = args.stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  int most = 0;
  error = clusters_at_once<S>(device, config, plan.ranks, most);
  if (error != cudaSuccess) return error;
  const int shares = w.strips() >> w.gated;  // strips, or pairs of them
  const int clusters = std::min(most, shares);
  w.strips_each = shares / clusters;
  w.strips_more = shares % clusters;
  config.gridDim = static_cast<unsigned>(clusters * plan.ranks);
  return cudaLaunchKernelEx(&config, few_tokens<S>, w);
}

}  // namespace

W4FewPlan plan_w4_few(const W4Few& args, int multiprocessors) {
  // Microseconds, fitted to what an H200 took for four shapes and six numbers of tokens
  // (docs/cuda-notebook.md): a stage's products, a strip beside them, reading codes and x, an
  // exchange of sums between 2, 4 and 8 ranks.
  const int bits = args.weights[0].bits;
  const double of_strip = 0.25 + 0.02 * args.m;
  constexpr double kReadBytes = 4.45e6;
  constexpr double kXBytes = 18e3;
  constexpr double kExchange[4] = {0, 1.45, 1.45, 1.6};
  constexpr int kOfMoreStages = 4;    // up to so many tokens
  constexpr double kNotWhole = 0.32;  // of a last round that not all blocks have; others then begin
  const int units = units_of(args.weights[0]);
  const int strips = strips_of(args);
  const int together = args.gated ? 2 : 1;
  const double read = strips * 64.0 * units * kUnit * (bits + 0.125) / 8 / kReadBytes;
  W4FewPlan best;
  for (const bool wide : {true, false}) {
    if (wide ? !can_be_wide(args) : must_be_wide(args)) continue;
    const double of_stage = bits == 8 ? 0.68 : wide ? 0.7 + 0.012 * args.m : 0.67 + 0.01 * args.m;
    const double more = bits == 8 || wide ? 0 : 0.25;
    for (int log = 0; log < 4; ++log) {
      const int ranks = 1 << log;
      const int slice = (units + ranks - 1) / ranks;
      if (slice * (ranks - 1) >= units) break;
      // Not all multiprocessors are in some cluster of four.
      const int blocks = ranks > 2 ? multiprocessors * 10 / 11 : multiprocessors;
      const int clusters = std::min(std::max(blocks / ranks, 1), strips / together);
      const int strip_stages = (slice * bits + 31) / 32;
      const double rounds = static_cast<double>(strips) / clusters;
      const int whole_rounds = (strips / together + clusters - 1) / clusters * together;
      // Where every multiprocessor has one strip, more stages are read too early.
      const bool one_strip = whole_rounds == 1 && clusters * ranks > multiprocessors * 4 / 5;
      const int most = one_strip && bits == 4 ? 2 : args.m > kOfMoreStages ? 3 : 4;
      const int stages = with_shape(args, wide, [&]<class S>() {
        const int left = kSharedMost - memory_of<S>(args.m, slice, ranks, 0).bytes - 128;
        return std::min(
            {left / (S::kStageBytes + 16), most, std::max(whole_rounds * strip_stages, 2)});
      });
      if (stages < 2) continue;
      const double reading = ranks > 2 ? 1.05 * read : read;
      double time = std::max(reading, rounds * (strip_stages * of_stage + of_strip));
      time *= 1 + kNotWhole * (whole_rounds / rounds - 1);
      if (stages == 2 && whole_rounds * strip_stages > 2) time *= 1.03;
      time += more + args.m * slice * kUnit * (args.x_is_f32 ? 4 : 2) / kXBytes + kExchange[log];
      if (best.ranks != 0 && time >= best.time) continue;
      // More of the ring would be in the way of x.
      best = {ranks, stages, args.m > kOfMoreStages ? std::min(stages, 2) : stages, wide, time};
    }
  }
  return best;
}

cudaError_t launch_w4_few(const W4Few& args, const W4FewPlan& plan, int multiprocessors) {
  const W4Args& w = args.weights[0];
  const int most = args.x_is_f32 ? kFewTokensF32 : kFewTokens;
  if (plan.ranks == 0 || plan.early < 1 || plan.early > plan.stages || args.m < 1 ||
      args.m > most || (w.bits == 8 && w.zeros != nullptr) ||
      ((args.squares != nullptr || args.add || args.gated) && args.m > kFewTokensFused) ||
      (args.squares != nullptr && args.k % 32 != 0) || (args.add && w.y_is_bf16) ||
      (args.next.weight != nullptr && (!args.add || args.count != 1 || w.n % kStrip != 0)) ||
      (args.gated && (args.count != 2 || args.add || args.weights[1].n != w.n))) {
    return cudaErrorInvalidValue;
  }
  return with_shape(args, plan.wide,
                    [&]<class S>() { return launch<S>(args, plan, multiprocessors); });
}

}  // namespace nibble::kernels::cuda
