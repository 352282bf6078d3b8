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
  int per_processor;
  int threads;
  Kernel kernel;
  int stage_bytes;
  int sum_bytes;
  int handed_bytes;
};

template <int kTokens, int kStrips, int kWide, int kSlices, bool kOnSums, int kBits = 4,
          int kPerProcessor = 1, bool kPair = false>
constexpr Variant variant() {
  using S = Tile<kTokens, kStrips, kWide, kSlices, kOnSums, kBits, kPerProcessor, kPair>;
  // What launch_w4_wgmma asks for at least fits, so that whatever is chosen can be launched.
  constexpr int kOfProcessor = 228 << 10;  // Hopper's; 1024 bytes of it for each block
  constexpr int kOfBlock = kOfProcessor / kPerProcessor - 1024;
  static_assert(shared_bytes(2, S::kStageBytes) + S::kHandedBytes <= kOfBlock);
  static_assert(shared_bytes((S::kSumBytes + S::kStageBytes - 1) / S::kStageBytes,
                             S::kStageBytes) <= kOfBlock);
  return {{S::kRows, kTokens, kOnSums, 0, kWide, kSlices, kPair},
          kBits,
          kPerProcessor,
          S::kThreads,
          multiply<S>,
          S::kStageBytes,
          S::kSumBytes,
          S::kHandedBytes};
}

// Tokens, strips, strips of a warpgroup, slices, on sums, bits, blocks on a multiprocessor, pairs.
constexpr Variant kVariants[] = {
    variant<32, 2, 1, 1, true, 4, 2>(),
    variant<32, 2, 2, 2, true>(),
    variant<32, 4, 2, 1, true>(),
    variant<48, 4, 2, 1, true>(),
    variant<64, 2, 1, 1, true>(),
    variant<64, 2, 2, 2, true>(),
    variant<64, 4, 2, 1, true>(),
    variant<64, 4, 1, 1, false>(),
    variant<96, 2, 1, 1, true>(),
    variant<128, 2, 1, 1, true>(),
    variant<128, 2, 1, 1, false>(),
    variant<256, 2, 1, 1, false>(),
    variant<32, 4, 1, 1, true, 8>(),
    variant<32, 4, 2, 1, true, 8>(),
    variant<64, 4, 2, 1, true, 8>(),
    variant<64, 2, 2, 2, true, 8>(),
    variant<64, 4, 1, 1, true, 8>(),
    variant<64, 4, 1, 1, false, 8>(),
    variant<128, 2, 1, 1, true, 8>(),
    variant<128, 2, 1, 1, false, 8>(),
    variant<256, 2, 1, 1, false, 8>(),
    variant<256, 2, 1, 1, false, 4, 1, true>(),
    variant<256, 2, 1, 1, false, 8, 1, true>(),
};

int scale_rows_of(const W4Args& args) {
  const bool one = args.group >= args.k;
  return one || args.group % 128 == 0 ? 1 : args.group % 64 == 0 ? 2 : 4;
}

const Variant* find(const W4Args& args, const W4Choice& choice) {
  for (const Variant& v : kVariants) {
    if (v.choice.rows == choice.rows && v.choice.tokens == choice.tokens &&
        v.choice.on_sums == choice.on_sums && v.choice.slices == choice.slices &&
        v.choice.wide == choice.wide && v.choice.pair == choice.pair && v.bits == args.bits) {
      return &v;
    }
  }
  return nullptr;
}

Divisor divisor(int by) { return {(uint64_t{1} << 40) / static_cast<uint64_t>(by) + 1}; }

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
      const cudaError_t e =
          cudaFuncSetAttribute(reinterpret_cast<const void*>(v.kernel),
                               cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
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

bool w4_can(const W4Args& args, const W4Choice& choice) {
  const Variant* v = find(args, choice);
  if (v == nullptr || (choice.on_sums && scale_rows_of(args) != 1)) return false;
  if (choice.pair) return choice.split < 2;
  return choice.split < 2 ||
         choice.split <= div_up(div_up(args.k, kBlock), kStepBlocks * choice.slices);
}

size_t w4_workspace(int multiprocessors) {
  // Sums of 256 x 128 outputs a block, or of two smaller ones.
  return kFlagBytes +
         static_cast<size_t>(max(multiprocessors, kProcessors)) * 256 * 128 * sizeof(float);
}

namespace {

// Of products with scales on sums and 4 bits, up to 128 tokens. `small`: so few and short rows that
// a product costs what its parts wait for.
W4Choice choose_few(const W4Args& args, int multiprocessors, bool few_rows, bool small) {
  const auto one_wave = [&](int rows, int tokens, int places) {
    const int count = div_up(args.n, rows) * div_up(args.m, tokens);
    return count <= places && count * 5 > places * 4;
  };
  W4Choice c;
  c.on_sums = true;
  c.tokens = args.m <= 32                ? 32
             : args.m <= 48 && !few_rows ? 48
             : args.m <= 64              ? 64
             : small && args.m > 96      ? 64
             : args.m <= 96              ? 96
                                         : 128;
  if (c.tokens >= 96) return c;
  if (few_rows) {
    if (small && c.tokens == 64 && args.m <= 64) return c;
    c.wide = c.slices = 2;
    if (small) c.split = 2;
  } else if (c.tokens == 32 && one_wave(128, 32, 2 * multiprocessors)) {
    c.split = 1;
  } else {
    c.rows = 256, c.wide = 2;
    if (one_wave(256, c.tokens, multiprocessors)) c.split = 1;
  }
  return c;
}

}  // namespace

// By sweeps over all tiles and splits on an H200 (docs/cuda-notebook.md).
W4Choice choose_w4(const W4Args& args, int multiprocessors) {
  const bool sums = scale_rows_of(args) == 1;
  const bool four = args.bits == 4;
  const auto tiles = [&](int rows, int tokens) {
    return div_up(args.n, rows) * div_up(args.m, tokens);
  };
  const bool few_rows = tiles(256, args.m) * 2 < multiprocessors;
  const bool small = few_rows && args.k <= 6144;
  W4Choice c;
  c.on_sums = sums;
  if (sums && four && args.m <= 128) {
    c = choose_few(args, multiprocessors, few_rows, small);
  } else if (sums && args.m <= 32) {
    c.rows = 256, c.tokens = 32;
    if (small) c.split = 2;
  } else if (sums && few_rows && args.m <= 64) {
    c.wide = 2;
    if (small) {
      c.slices = c.split = 2;
    } else {
      c.rows = 256;
    }
  } else if (args.m <= 64) {
    c.rows = 256, c.tokens = 64;
  } else if (args.m <= 128 || (args.m <= 256 && few_rows)) {
    c.tokens = 128;
    if (args.m > 128) c.split = 2;
  } else {
    c.tokens = 256;
    c.on_sums = false;
    const int count = tiles(128, 256);
    const int waves = div_up(count, multiprocessors);
    if (count * 2 <= multiprocessors) {
      c.split = 2;
    } else if (waves == 1) {
      c.split = count * 5 > multiprocessors * 4 ? 1 : 0;
      c.pair = c.split == 0;
    } else {
      // Whole tiles, where few multiprocessors have one less than the others.
      c.split = count * 20 >= waves * multiprocessors * 19 ? 1 : 0;
      c.pair = true;
    }
  }
  const int count = tiles(c.rows, c.tokens);
  if (c.split > 1) {
    while (c.split < 8 && count * c.split * 4 <= multiprocessors) c.split *= 2;
    while (c.split > 1 && !w4_can(args, c)) c.split /= 2;
    // Clusters that do not fit at once take turns.
    if (c.split < 2 || count * c.split > multiprocessors) c.split = 0;
  }
  return c;
}

cudaError_t launch_w4_wgmma(const W4Args& args, const W4Choice& choice) {
  if (!w4_can(args, choice)) return cudaErrorInvalidValue;
  const Variant& v = *find(args, choice);
  Card c;
  if (const cudaError_t e = card(c); e != cudaSuccess) return e;
  CUtensorMap map;
  if (const cudaError_t e = describe_x(args, v.choice.tokens, map); e != cudaSuccess) return e;

  Work w{};
  describe_weight(args, w);
  w.m = args.m;
  w.steps = div_up(w.blocks, kStepBlocks * choice.slices);
  w.scale_at_end = w.groups == 1 && !v.choice.on_sums;
  w.y = args.y;
  w.ldy = args.ldy;
  w.y_is_bf16 = args.y_is_bf16;
  w.y_in_quads =
      args.n % 4 == 0 && args.ldy % 4 == 0 && reinterpret_cast<uintptr_t>(args.y) % 16 == 0;
  w.y_in_pairs =
      args.n % 2 == 0 && args.ldy % 2 == 0 && reinterpret_cast<uintptr_t>(args.y) % 4 == 0;
  w.flags = static_cast<uint32_t*>(args.workspace);
  w.partial = reinterpret_cast<float4*>(static_cast<uint8_t*>(args.workspace) + kFlagBytes);
  w.token_tiles = div_up(args.m, v.choice.tokens);
  w.pair = choice.pair ? 1 : 0;
  w.tiles = div_up(args.n, v.choice.rows << w.pair) * w.token_tiles;

  w.by_token_tiles = divisor(w.token_tiles);

  int blocks = 0;
  if (choice.split > 1) {
    w.split = choice.split;
    blocks = w.tiles * w.split;
  } else {
    w.split = 1;
    const int places = (c.processors * v.per_processor) >> w.pair;
    blocks = choice.split == 1 ? min(w.tiles, places)
                               : static_cast<int>(min(int64_t{w.tiles} * w.steps, int64_t{places}));
    const int waves = w.tiles / blocks;
    if (choice.split == 0 && w.tiles % blocks != 0) {
      w.shared_tiles = waves > 1 ? w.tiles - (waves - 1) * blocks : w.tiles;
    }
  }

  w.by_split = divisor(w.split);
  w.by_steps = divisor(w.steps);
  w.run = w.shared_tiles * w.steps / blocks;
  w.longer = w.shared_tiles * w.steps % blocks;

  const int handed = w.split > 1 ? 0 : v.handed_bytes;
  const int most = (c.shared + 1024) / v.per_processor - 1024 - handed;
  w.stages = choice.stages > 0 ? choice.stages : kMostStages;
  while (w.stages > 1 && shared_bytes(w.stages, v.stage_bytes) > most) --w.stages;
  w.stages = max(w.stages, 2);  // a stage is freed when the next one is begun
  if (w.split > 1 && w.stages * v.stage_bytes < v.sum_bytes) {
    w.stages = div_up(v.sum_bytes, v.stage_bytes);
  }

  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks << w.pair));
  config.blockDim = dim3(static_cast<unsigned>(v.threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes(w.stages, v.stage_bytes) + handed);
  config.stream = args.stream;
  cudaLaunchAttribute attribute[2];
  attribute[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute[0].val.programmaticStreamSerializationAllowed = 1;
  attribute[1].id = cudaLaunchAttributeClusterDimension;
  attribute[1].val.clusterDim.x = static_cast<unsigned>(w.split << w.pair);
  attribute[1].val.clusterDim.y = attribute[1].val.clusterDim.z = 1;
  config.attrs = attribute;
  config.numAttrs = w.split > 1 || w.pair != 0 ? 2 : 1;
  return cudaLaunchKernelEx(&config, v.kernel, map, w);
}

}  // namespace nibble::kernels::cuda
