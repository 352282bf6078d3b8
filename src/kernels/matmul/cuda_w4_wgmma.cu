// The variants of cuda_w4_wgmma_device.cuh's kernel, which of them a product gets, and their
// launch.
#include <atomic>

#include "kernels/matmul/cuda_w4_wgmma.cuh"
#include "kernels/matmul/cuda_w4_wgmma_device.cuh"

namespace nibble::kernels::cuda {
namespace {

using namespace w4;  // NOLINT

using Kernel = void (*)(CUtensorMap, Work);

// Plain weights have a kernel of their own where scales are in bf16 weights: they have no zeros,
// and scales of 128 inputs or more that fold.
struct Variant {
  W4Choice choice;
  int bits;
  int threads;
  Kernel kernel, plain;
  double step_us, plain_step_us;  // microseconds of a stage's inputs
  int stage_bytes;
  int after_ring;  // bytes
};

template <int kRows, int kTokens, int kWide, int kSlices, bool kOnSums, int kBits = 4>
constexpr Variant variant(double plain, double rest) {
  constexpr Weights kAs = kOnSums ? Weights::kCodes : Weights::kScaled;
  constexpr Weights kPlainAs = kOnSums ? Weights::kCodes : Weights::kFolded;
  using S = Tile<kTokens, kRows / kStrip, kWide, kSlices, kAs, kBits>;
  using Plain = Tile<kTokens, kRows / kStrip, kWide, kSlices, kPlainAs, kBits>;
  // What launch_w4_wgmma asks for at least fits, so that whatever is chosen can be launched.
  constexpr int kOfBlock = (228 << 10) - 1024;  // Hopper's
  static_assert(shared_bytes(2, S::kStageBytes) + S::kAfterRing <= kOfBlock);
  return {{kRows, kTokens, kOnSums, 0, kWide, kSlices},
          kBits,
          S::kThreads,
          multiply<S>,
          multiply<Plain>,
          rest,
          plain,
          S::kStageBytes,
          S::kAfterRing};
}
template <int kRows, int kTokens, int kWide, int kSlices, bool kOnSums>
constexpr Variant variant(double step) {
  return variant<kRows, kTokens, kWide, kSlices, kOnSums>(step, step);
}

// Rows, tokens, strips of a warpgroup, slices, on sums, bits; microseconds of a step where weights
// are plain, and else. Fitted to sweeps of an H200 over all of them: groups of 128, six shapes, up
// to 26 numbers of tokens; the others of 8 bits are a guess.
constexpr Variant kVariants[] = {
    variant<64, 32, 1, 2, true>(0.482),
    variant<128, 32, 2, 2, true>(0.761),
    variant<256, 32, 2, 1, true>(0.708),
    variant<64, 48, 1, 2, true>(0.525),
    variant<128, 48, 2, 2, true>(0.877),
    variant<256, 48, 2, 1, true>(0.811),
    variant<64, 64, 1, 2, true>(0.544),
    variant<128, 64, 2, 2, true>(0.985),
    variant<256, 64, 1, 1, true>(0.951),
    variant<64, 96, 1, 2, true>(0.757),
    variant<64, 32, 1, 2, false>(0.455, 0.533),
    variant<128, 32, 2, 2, false>(0.694, 0.934),
    variant<256, 32, 2, 1, false>(0.639, 0.882),
    variant<64, 48, 1, 2, false>(0.489, 0.565),
    variant<128, 48, 2, 2, false>(0.805, 1.060),
    variant<256, 48, 2, 1, false>(0.730, 0.986),
    variant<64, 64, 1, 2, false>(0.552, 0.629),
    variant<128, 64, 2, 2, false>(0.904, 1.085),
    variant<256, 64, 1, 1, false>(0.800, 0.954),
    variant<128, 80, 1, 1, false>(0.534, 0.617),
    variant<256, 80, 1, 1, false>(0.926, 1.073),
    variant<64, 96, 1, 2, false>(0.722, 0.760),
    variant<128, 96, 1, 1, false>(0.586, 0.686),
    variant<256, 96, 1, 1, false>(1.060, 1.168),
    variant<128, 112, 1, 1, false>(0.659, 0.731),
    variant<256, 112, 1, 1, false>(1.177, 1.274),
    variant<128, 120, 1, 1, false>(0.670, 0.740),
    variant<256, 120, 1, 1, false>(1.300),
    variant<128, 128, 1, 1, false>(0.708, 0.756),
    variant<128, 144, 1, 1, false>(0.808, 0.809),
    variant<128, 160, 1, 1, false>(0.885, 0.890),
    variant<128, 192, 1, 1, false>(1.032, 1.032),
    variant<256, 128, 1, 1, false>(1.391, 1.443),
    variant<64, 32, 1, 2, false, 8>(0.571, 0.657),
    variant<256, 32, 1, 1, false, 8>(0.954, 1.097),
    variant<64, 64, 1, 2, false, 8>(0.678, 0.780),
    variant<256, 64, 1, 1, false, 8>(1.065, 1.225),
    variant<128, 80, 1, 1, false, 8>(0.659, 0.758),
    variant<256, 80, 1, 1, false, 8>(1.167, 1.342),
    variant<128, 96, 1, 1, false, 8>(0.700, 0.805),
    variant<256, 96, 1, 1, false, 8>(1.285, 1.478),
    variant<128, 112, 1, 1, false, 8>(0.799, 0.919),
    variant<256, 112, 1, 1, false, 8>(1.457, 1.676),
    variant<128, 128, 1, 1, false, 8>(0.845, 0.972),
    variant<128, 144, 1, 1, false, 8>(0.874, 1.005),
    variant<128, 160, 1, 1, false, 8>(0.955, 1.098),
    variant<128, 192, 1, 1, false, 8>(1.141, 1.312),
};

int scale_rows_of(const W4Args& args) {
  const bool one = args.group >= args.k;
  return one || args.group % 128 == 0 ? 1 : args.group % 64 == 0 ? 2 : 4;
}

bool is_plain(const W4Args& args) {
  return args.zeros == nullptr && args.scales_fold && scale_rows_of(args) == 1;
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
    const auto allow = [&](Kernel of) {
      const auto* kernel = reinterpret_cast<const void*>(of);
      cudaError_t e =
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
      if (e == cudaSuccess) {
        e = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                 cudaSharedmemCarveoutMaxShared);
      }
      return e;
    };
    for (const Variant& v : kVariants) {
      cudaError_t e = allow(v.kernel);
      if (e == cudaSuccess) e = allow(v.plain);
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

// Boxes have as many tokens as a tile: more would be tokens that do not exist, and to fill these
// with zeros takes the copy longer than to read as many.
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
  // Two parts of 256 x 128 sums a block.
  return static_cast<size_t>(multiprocessors) * 2 * 256 * 128 * sizeof(float);
}

namespace {

Deal deal_of(const W4Args& args, const Variant& v, int split, int multiprocessors) {
  return deal(div_up(args.n, v.choice.rows), div_up(args.m, v.choice.tokens),
              div_up(div_up(args.k, kBlock), kStepBlocks * v.choice.slices), split,
              multiprocessors);
}

// What a product takes, in microseconds, less what is the same for all: the block with most to do.
double time_of(const Variant& v, bool plain, const Deal& d, int split) {
  constexpr double kOfTile = 0.3;     // to finish 32768 sums
  constexpr double kOfPart = 8;       // to trade as many with the sharers of a tile
  constexpr double kOfSharer = 0.25;  // of each of them
  constexpr double kOfRuns = 3.5;     // of runs that begin and end within tiles
  const Runs& r = d.runs;
  const double size = v.choice.rows * v.choice.tokens / 32768.0;
  const int whole = div_up(r.tiles - r.shared_tiles, d.blocks);
  const int steps = r.run + (r.longer > 0 ? 1 : 0) + whole * r.steps;
  double us = (plain ? v.plain_step_us : v.step_us) * steps + kOfTile * size * whole;
  if (r.shared_tiles > 0) {
    us += (kOfTile + kOfPart) * size + kOfSharer * d.blocks / r.shared_tiles;
  }
  const bool even = split > 1 && d.blocks == r.tiles * split && r.steps % split == 0;
  if (r.shared_tiles > 0 && !even) us += kOfRuns;
  return us;
}

}  // namespace

// Asked at each launch: about a microsecond.
W4Choice choose_w4(const W4Args& args, int multiprocessors) {
  constexpr int kMostSplit = 8;
  const bool plain = is_plain(args);
  W4Choice best;
  double best_time = 0;
  for (const Variant& v : kVariants) {
    if (v.bits != args.bits) continue;
    if (plain && v.choice.on_sums) continue;  // never faster than folded scales
    // Each tile of tokens reads all codes again: of small ones, what the sweeps timed.
    if (v.choice.tokens <= 64 && args.m > 2 * v.choice.tokens) continue;
    // With one tile of tokens two of 128 rows take less, as sweeps say, where weights are plain.
    const bool large = v.choice.rows == 256 && v.choice.tokens == 128;
    if (large && plain && args.m <= v.choice.tokens) continue;
    const int whole = div_up(args.n, v.choice.rows) * div_up(args.m, v.choice.tokens);
    const int even = max(min(multiprocessors / whole, kMostSplit), 1);
    for (const int split : {0, 1, even}) {
      if (!can(args, v, split)) continue;
      const Deal d = deal_of(args, v, split, multiprocessors);
      const bool is_shared = d.runs.shared_tiles > 0;
      if (is_shared && d.runs.steps > kMostSplit * d.runs.run)
        continue;  // more sharers than were ever timed
      const double time = time_of(v, plain, d, split);
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

  Work w{};
  describe_weight(args, w);
  const Deal d = deal_of(args, v, choice.split, c.processors);
  w.runs = d.runs;
  w.m = args.m;
  w.tile_tokens = div_up(args.m, d.runs.token_tiles);
  CUtensorMap map;
  if (const cudaError_t e = describe_x(args, w.tile_tokens, map); e != cudaSuccess) return e;
  w.scale_at_end = w.groups == 1 && !v.choice.on_sums;
  w.y = args.y;
  w.ldy = args.ldy;
  w.y_is_bf16 = args.y_is_bf16;
  w.y_in_octets =
      args.n % 8 == 0 && args.ldy % 8 == 0 && reinterpret_cast<uintptr_t>(args.y) % 16 == 0;
  w.partial = static_cast<float4*>(args.workspace);

  const int most = c.shared - v.after_ring;
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
  return cudaLaunchKernelEx(&config, is_plain(args) ? v.plain : v.kernel, map, w);
}

}  // namespace nibble::kernels::cuda
