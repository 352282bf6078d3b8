// The variants of cuda_w4_wgmma_device.cuh's kernel, which of them a product gets, and their
// launch.
#include <atomic>

#include "kernels/matmul/cuda_w4_wgmma.cuh"
#include "kernels/matmul/cuda_w4_wgmma_device.cuh"

namespace nibble::kernels::cuda {
namespace {

using namespace w4;  // NOLINT

using Kernel = void (*)(CUtensorMap, Work);

struct Variant {
  W4Choice choice;
  int bits;
  double fixed, step;  // microseconds that a product takes, and more for each stage's inputs
  int per_processor;
  int threads;
  Kernel kernel;
  int stage_bytes;
  int after_ring;  // bytes
};

template <int kRows, int kTokens, int kWide, int kSlices, bool kOnSums, int kBits = 4,
          int kPerProcessor = 1>
constexpr Variant variant(double fixed, double step) {
  using S = Tile<kTokens, kRows / kStrip, kWide, kSlices, kOnSums, kBits, kPerProcessor>;
  // What launch_w4_wgmma asks for at least fits, so that whatever is chosen can be launched.
  constexpr int kOfProcessor = 228 << 10;  // Hopper's; 1024 bytes of it for each block
  constexpr int kOfBlock = kOfProcessor / kPerProcessor - 1024;
  static_assert(shared_bytes(2, S::kStageBytes) + S::kAfterRing <= kOfBlock);
  return {{kRows, kTokens, kOnSums, 0, kWide, kSlices},
          kBits,
          fixed,
          step,
          kPerProcessor,
          S::kThreads,
          multiply<S>,
          S::kStageBytes,
          S::kAfterRing};
}

// Rows, tokens, strips of a warpgroup, slices, on sums, bits, blocks on a multiprocessor. Times are
// fitted to sweeps of an H200 over all of them: groups of 128, six shapes, nine numbers of tokens.
constexpr Variant kVariants[] = {
    variant<64, 32, 1, 2, true>(2.91, 0.394),       variant<128, 32, 1, 1, true, 4, 2>(3.7, 0.644),
    variant<128, 32, 2, 2, true>(3.42, 0.657),      variant<256, 32, 2, 1, true>(3.59, 0.633),
    variant<64, 48, 1, 2, true>(2.92, 0.437),       variant<128, 48, 2, 2, true>(3.35, 0.745),
    variant<256, 48, 2, 1, true>(3.64, 0.718),      variant<64, 64, 1, 2, true>(2.97, 0.522),
    variant<128, 64, 2, 2, true>(3.15, 0.868),      variant<256, 64, 1, 1, true>(3.53, 0.843),
    variant<64, 96, 1, 2, true>(3.27, 0.627),       variant<128, 96, 1, 1, true>(1.86, 0.619),
    variant<128, 128, 1, 1, true>(1.36, 0.754),     variant<64, 64, 1, 2, false>(3.16, 0.587),
    variant<256, 64, 1, 1, false>(3.18, 0.905),     variant<128, 128, 1, 1, false>(1.16, 0.800),
    variant<256, 128, 1, 1, false>(1.42, 1.439),    variant<128, 256, 1, 1, false>(0.68, 1.443),
    variant<64, 32, 1, 2, true, 8>(3.03, 0.495),    variant<256, 32, 1, 1, true, 8>(4.95, 0.816),
    variant<64, 64, 1, 2, true, 8>(3.22, 0.631),    variant<256, 64, 1, 1, true, 8>(4.35, 1.013),
    variant<128, 128, 1, 1, true, 8>(2.34, 0.802),  variant<256, 64, 1, 1, false, 8>(3.74, 1.077),
    variant<128, 128, 1, 1, false, 8>(1.93, 0.904), variant<128, 256, 1, 1, false, 8>(1.59, 1.480),
};

int scale_rows_of(const W4Args& args) {
  const bool one = args.group >= args.k;
  return one || args.group % 128 == 0 ? 1 : args.group % 64 == 0 ? 2 : 4;
}

const Variant* find(const W4Args& args, const W4Choice& choice) {
  for (const Variant& v : kVariants) {
    if (v.choice.rows == choice.rows && v.choice.tokens == choice.tokens &&
        v.choice.on_sums == choice.on_sums && v.choice.slices == choice.slices &&
        v.choice.wide == choice.wide && v.bits == args.bits) {
      return &v;
    }
  }
  return nullptr;
}

int div_up(int a, int b) { return (a + b - 1) / b; }

void describe_weight(const W4Args& args, Work& w) {
  w.codes = static_cast<const uint8_t*>(args.codes);
  w.scales = static_cast<const uint8_t*>(args.scales);
  w.zeros = static_cast<const uint8_t*>(args.zeros);
  w.has_zeros = args.zeros != nullptr;
  w.scales_are_bf16 = args.scales_are_bf16;
  w.n = args.n;
  w.blocks = div_up(args.k, kBlock);
  w.strips = div_up(args.n, kStrip);
  w.group = args.group;
  w.by_group = divisor(args.group);
  w.groups = div_up(args.k, args.group);
  w.scale_rows = scale_rows_of(args);
}

struct Card {
  int processors = 0;
  int shared = 0;  // bytes that a block may have
};
// Also lets the kernels have all shared memory. Cards are few: counted once each.
cudaError_t card(Card& out) {
  constexpr int kMost = 64;
  static std::atomic<int> processors[kMost];
  static std::atomic<int> shared[kMost];
  int device = 0;
  if (const cudaError_t e = cudaGetDevice(&device); e != cudaSuccess) return e;
  if (device >= kMost) return cudaErrorInvalidDevice;
  if (shared[device] == 0) {
    int count = 0;
    int bytes = 0;
    cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
    if (const cudaError_t e =
            cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
        e != cudaSuccess) {
      return e;
    }
    for (const Variant& v : kVariants) {
      const auto* kernel = reinterpret_cast<const void*>(v.kernel);
      cudaError_t e =
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
      if (e == cudaSuccess) {
        e = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                 cudaSharedmemCarveoutMaxShared);
      }
      if (e != cudaSuccess) return e;
    }
    processors[device] = count;
    shared[device] = bytes;
  }
  out = {processors[device], shared[device]};
  return cudaSuccess;
}

using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                            const cuuint64_t*, const cuuint32_t*, const cuuint32_t*,
                            CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                            CUtensorMapFloatOOBfill);

cudaError_t describe_x(const W4Args& args, int tokens, CUtensorMap& map) {
  static std::atomic<Encode> known{nullptr};
  Encode encode = known;
  if (encode == nullptr) {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    const cudaError_t e = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000,
                                                           cudaEnableDefault, &result);
    if (e != cudaSuccess) return e;
    if (found == nullptr) return cudaErrorNotSupported;
    known = encode = reinterpret_cast<Encode>(found);
  }
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(div_up(args.k, kBlock)) * kBlock,
                               static_cast<cuuint64_t>(args.m)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(args.ldx) * 2};
  const cuuint32_t box[2] = {kBlock, static_cast<cuuint32_t>(tokens)};
  const cuuint32_t every[2] = {1, 1};
  const CUresult r =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<__nv_bfloat16*>(args.x), sizes,
             strides, box, every, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return r == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace

namespace {

bool can(const W4Args& args, const Variant& v, int split) {
  if (v.choice.on_sums && scale_rows_of(args) != 1) return false;
  return split <= div_up(div_up(args.k, kBlock), kStepBlocks * v.choice.slices);
}

}  // namespace

bool w4_can(const W4Args& args, const W4Choice& choice) {
  const Variant* v = find(args, choice);
  return v != nullptr && can(args, *v, choice.split);
}

size_t w4_workspace(int multiprocessors) {
  // Two parts of 256 x 128 sums a block, or four of half as many.
  return static_cast<size_t>(multiprocessors) * 2 * 256 * 128 * sizeof(float);
}

namespace {

Deal deal_of(const W4Args& args, const Variant& v, int split, int multiprocessors) {
  return deal(div_up(args.n, v.choice.rows), div_up(args.m, v.choice.tokens),
              div_up(div_up(args.k, kBlock), kStepBlocks * v.choice.slices), split,
              multiprocessors * v.per_processor);
}

// What a product takes, in microseconds: the block with most steps.
double time_of(const Variant& v, const Deal& d, int split) {
  constexpr double kOfPart = 8.7;   // to trade 32768 sums with the sharers of a tile
  constexpr double kOfRuns = 1.15;  // of runs that begin and end within tiles
  const Runs& r = d.runs;
  const int whole = div_up(r.tiles - r.shared_tiles, d.blocks);
  const int steps = r.run + (r.longer > 0 ? 1 : 0) + whole * r.steps;
  double us = v.fixed + v.step * static_cast<double>(steps);
  if (r.shared_tiles > 0) us += kOfPart * v.choice.rows * v.choice.tokens / 32768;
  const bool even = split > 1 && d.blocks == r.tiles * split && r.steps % split == 0;
  if (r.shared_tiles > 0 && !even) us += kOfRuns;
  return us;
}

}  // namespace

// Asked at each launch: under a microsecond.
W4Choice choose_w4(const W4Args& args, int multiprocessors) {
  constexpr int kMostSplit = 8;
  W4Choice best;
  double best_time = 0;
  for (const Variant& v : kVariants) {
    if (v.bits != args.bits) continue;
    // Each tile of tokens reads all codes again: what the sweeps timed.
    const int most_tiles = v.choice.tokens % 3 == 0 ? 1 : 2;
    if (v.choice.tokens < 128 && args.m > most_tiles * v.choice.tokens) continue;
    const int whole = div_up(args.n, v.choice.rows) * div_up(args.m, v.choice.tokens);
    const int even = max(min(multiprocessors * v.per_processor / whole, kMostSplit), 1);
    for (const int split : {0, 1, even}) {
      if (!can(args, v, split)) continue;
      const Deal d = deal_of(args, v, split, multiprocessors);
      const bool is_shared = d.runs.shared_tiles > 0;
      if (is_shared && d.runs.steps > kMostSplit * d.runs.run)
        continue;  // more sharers than were ever timed
      const double time = time_of(v, d, split);
      if (best_time > 0 && time >= best_time) continue;
      best = v.choice;
      best.split = split;
      best_time = time;
    }
  }
  return best;
}

cudaError_t launch_w4_wgmma(const W4Args& args, const W4Choice& choice) {
  const Variant* found = find(args, choice);
  if (found == nullptr || !can(args, *found, choice.split)) return cudaErrorInvalidValue;
  const Variant& v = *found;
  Card c;
  if (const cudaError_t e = card(c); e != cudaSuccess) return e;
  CUtensorMap map;
  if (const cudaError_t e = describe_x(args, v.choice.tokens, map); e != cudaSuccess) return e;

  Work w{};
  describe_weight(args, w);
  w.m = args.m;
  w.scale_at_end = w.groups == 1 && !v.choice.on_sums;
  w.y = args.y;
  w.ldy = args.ldy;
  w.y_is_bf16 = args.y_is_bf16;
  w.y_in_octets =
      args.n % 8 == 0 && args.ldy % 8 == 0 && reinterpret_cast<uintptr_t>(args.y) % 16 == 0;
  w.partial = static_cast<float4*>(args.workspace);
  const Deal d = deal_of(args, v, choice.split, c.processors);
  w.runs = d.runs;

  const int most = (c.shared + 1024) / v.per_processor - 1024 - v.after_ring;
  w.stages = choice.stages > 0 ? choice.stages : kMostStages;
  while (w.stages > 1 && shared_bytes(w.stages, v.stage_bytes) > most) --w.stages;
  w.stages = max(w.stages, 2);  // a stage is freed when the next one is begun

  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(d.blocks));
  config.blockDim = dim3(static_cast<unsigned>(v.threads));
  config.dynamicSmemBytes =
      static_cast<size_t>(shared_bytes(w.stages, v.stage_bytes) + v.after_ring);
  config.stream = args.stream;
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeCooperative;
  attributes[1].val.cooperative = 1;
  config.attrs = attributes;
  config.numAttrs = args.others && d.runs.shared_tiles > 0 ? 2 : 1;
  return cudaLaunchKernelEx(&config, v.kernel, map, w);
}

}  // namespace nibble::kernels::cuda
