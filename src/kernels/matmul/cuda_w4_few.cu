// Products of few tokens with codes in tiles: what is compiled, how the work is cut, and the launch
// (cuda_w4_few_device.cuh has the kernel).
#include <algorithm>

#include "kernels/matmul/cuda_w4_few_device.cuh"

namespace nibble::kernels::cuda {
namespace {

int round_up(int value, int to) { return (value + to - 1) / to * to; }

int units_of(const W4Args& w) { return round_up(w.k, kUnit) / kUnit; }

// Tiles of rows a warp and warps that share a row: measured (docs/cuda-notebook.md).
template <int kBits, int kTokenTiles, int kScaleRows, bool kZeros, class X>
using ShapeFor = Shape<kBits, kTokenTiles, kBits == 4 && kTokenTiles == 1 ? 4 : 2,
                       kBits == 4 && kTokenTiles == 1 ? 8 : 4, kScaleRows, kZeros, X>;

// call.operator()<Shape>() for what the weights are and the tokens need.
template <class Call>
auto with_shape(const W4Few& args, const Call& call) {
  const W4Args& w = args.weights[0];
  const auto with_rest = [&]<int kBits, int kScaleRows, bool kZeros>() {
    if (args.m > 8) {
      return call.template operator()<ShapeFor<kBits, 2, kScaleRows, kZeros, __nv_bfloat16>>();
    }
    if (!args.x_is_f32) {
      return call.template operator()<ShapeFor<kBits, 1, kScaleRows, kZeros, __nv_bfloat16>>();
    }
    return call.template operator()<ShapeFor<kBits, 1, kScaleRows, kZeros, float>>();
  };
  const auto with_scales = [&]<int kBits, bool kZeros>() {
    if (w.group == 32) return with_rest.template operator()<kBits, 4, kZeros>();
    if (w.group % kUnit == 0 || w.group >= w.k) {
      return with_rest.template operator()<kBits, 1, kZeros>();
    }
    return with_rest.template operator()<kBits, 2, kZeros>();
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
  w.stages = plan.stages;
  w.scales_are_bf16 = first.scales_are_bf16;
  w.y_is_bf16 = first.y_is_bf16;
  const int bytes = memory_of<S>(w.m, w.slice, w.ranks, w.stages).bytes;
  const auto kernel = few_tokens<S>;
  cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedMost);
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
  // Clusters cannot use all multiprocessors of every card.
  int most = 0;
  error = cudaOccupancyMaxActiveClusters(&most, kernel, &config);
  if (error != cudaSuccess) return error;
  if (most < 1) return cudaErrorLaunchOutOfResources;
  w.clusters = std::min(most, w.strips());
  config.gridDim = static_cast<unsigned>(w.clusters * plan.ranks);
  return cudaLaunchKernelEx(&config, kernel, w);
}

}  // namespace

W4FewPlan plan_w4_few(const W4Few& args, int multiprocessors) {
  // Microseconds, measured on an H200: a unit of 128 inputs and 64 rows on one multiprocessor, its
  // share of reading x, and an exchange of sums between 2, 4 and 8 ranks. A ring of two stages is
  // a little slower; a longer one than these leaves the next kernel no room to begin early.
  const bool many = args.m > 8;
  const double of_unit = args.weights[0].bits == 4 ? (many ? 0.18 : 0.09) : (many ? 0.3 : 0.2);
  constexpr double kXBytes = 60e3;
  constexpr double kReadBytes = 4.2e6;
  constexpr double kExchange[] = {0, 1.2, 2.6, 3.4};
  constexpr double kTwoStages = 1.03;
  const int most_stages = many ? 3 : 4;
  const int units = units_of(args.weights[0]);
  const int strips = strips_of(args);
  const double read = strips * 64.0 * units * 128 * (args.weights[0].bits + 0.2) / 8 / kReadBytes;
  W4FewPlan best;
  double best_time = 0;
  for (int log = 0; log < 4; ++log) {
    const int ranks = 1 << log;
    const int slice = (units + ranks - 1) / ranks;
    if (slice * (ranks - 1) >= units) break;
    const int stages = with_shape(args, [&]<class S>() {
      const int left = kSharedMost - memory_of<S>(args.m, slice, ranks, 0).bytes - 128;
      return std::min(left / (S::kStageBytes + 16), most_stages);
    });
    if (stages < 2) continue;
    const int clusters = std::min(multiprocessors / ranks, strips);
    const int rounds = (strips + clusters - 1) / clusters;
    const double time = (std::max(read, rounds * slice * of_unit) +
                         args.m * slice * kUnit * 2 / kXBytes + kExchange[log]) *
                        (stages == 2 ? kTwoStages : 1);
    if (best.ranks == 0 || time < best_time) best = {ranks, stages}, best_time = time;
  }
  return best;
}

cudaError_t launch_w4_few(const W4Few& args, const W4FewPlan& plan, int multiprocessors) {
  return with_shape(args, [&]<class S>() { return launch<S>(args, plan, multiprocessors); });
}

}  // namespace nibble::kernels::cuda
