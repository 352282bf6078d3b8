// Products of 17 tokens and more with codes in tiles: what is compiled, which of it is chosen, and
// the launch (cuda_w4_wgmma_device.cuh has the kernel); and panels for a library's product.
#include <atomic>

#include "kernels/matmul/cuda_w4_wgmma_device.cuh"

namespace nibble::kernels::cuda {
namespace {

using Kernel = void (*)(CUtensorMap, Work);

struct Variant {
  int rows, tokens;
  bool on_sums;
  int bits;
  int per_processor;
  Kernel kernel;
  int stage_bytes;
  int sum_bytes;
  size_t (*shared_bytes)(int stages, int scale_rows);
};

template <int kTokens, int kHeights, bool kOnSums, int kBits, int kPerProcessor>
constexpr Variant variant() {
  using S = Sizes<kTokens, kHeights, kBits>;
  return {S::kRows,       kTokens,       kOnSums,
          kBits,          kPerProcessor, multiply<kTokens, kHeights, kOnSums, kBits, kPerProcessor>,
          S::kStageBytes, S::kSumBytes,  S::shared_bytes};
}

constexpr Variant kVariants[] = {
    variant<32, 1, true, 4, 2>(),  variant<32, 1, false, 4, 2>(),  variant<64, 1, true, 4, 1>(),
    variant<64, 1, false, 4, 2>(), variant<128, 1, false, 4, 1>(), variant<256, 1, false, 4, 1>(),
    variant<32, 2, true, 4, 1>(),  variant<64, 2, false, 4, 1>(),  variant<128, 2, false, 4, 1>(),
};

int scale_rows_of(const W4Args& args) {
  const bool one = args.group >= args.k;
  return one || args.group % 128 == 0 ? 1 : args.group % 64 == 0 ? 2 : 4;
}

const Variant* find(const W4Args& args, const W4Choice& choice) {
  for (const Variant& v : kVariants) {
    if (v.rows == choice.rows && v.tokens == choice.tokens && v.on_sums == choice.on_sums &&
        v.bits == args.bits) {
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
  w.scales_are_bf16 = args.scales_are_bf16;
  w.n = args.n;
  w.blocks = div_up(args.k, kBlock);
  w.steps = div_up(w.blocks, kStepBlocks);
  w.strips = div_up(args.n, kStrip);
  w.group = args.group;
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
  return choice.split < 2 || choice.split <= div_up(div_up(args.k, kBlock), kStepBlocks);
}

size_t w4_workspace(int multiprocessors) {
  // Sums of 256 x 128 outputs a block, or of two smaller ones.
  return kFlagBytes + static_cast<size_t>(multiprocessors) * 256 * 128 * sizeof(float);
}

W4Choice choose_w4(const W4Args& args, int multiprocessors) {
  W4Choice c;
  c.tokens = args.m <= 32 ? 32 : args.m <= 64 ? 64 : args.m <= 128 ? 128 : 256;
  c.on_sums = c.tokens <= 64 && scale_rows_of(args) == 1;
  const int tiles = div_up(args.n, c.rows) * div_up(args.m, c.tokens);
  if (tiles * 2 <= multiprocessors) {
    c.split = 2;
    while (c.split < 8 && tiles * c.split * 2 <= multiprocessors) c.split *= 2;
  }
  if (!w4_can(args, c)) c.split = 0;
  return c;
}

cudaError_t launch_w4_wgmma(const W4Args& args, const W4Choice& choice) {
  if (!w4_can(args, choice)) return cudaErrorInvalidValue;
  const Variant& v = *find(args, choice);
  Card c;
  if (const cudaError_t e = card(c); e != cudaSuccess) return e;
  CUtensorMap map;
  if (const cudaError_t e = describe_x(args, v.tokens, map); e != cudaSuccess) return e;

  Work w{};
  describe_weight(args, w);
  w.m = args.m;
  w.scale_at_end = w.groups == 1 && !v.on_sums;
  w.y = args.y;
  w.ldy = args.ldy;
  w.y_is_bf16 = args.y_is_bf16;
  w.y_in_pairs =
      args.n % 2 == 0 && args.ldy % 2 == 0 && reinterpret_cast<uintptr_t>(args.y) % 4 == 0;
  w.flags = static_cast<uint32_t*>(args.workspace);
  w.partial = reinterpret_cast<float4*>(static_cast<uint8_t*>(args.workspace) + kFlagBytes);
  w.token_tiles = div_up(args.m, v.tokens);
  w.tiles = div_up(args.n, v.rows) * w.token_tiles;

  int blocks = 0;
  if (choice.split > 1) {
    w.split = choice.split;
    blocks = w.tiles * w.split;
  } else {
    w.split = 1;
    const int places = c.processors * v.per_processor;
    blocks = choice.split == 1 ? min(w.tiles, places)
                               : static_cast<int>(min(int64_t{w.tiles} * w.steps, int64_t{places}));
    const int waves = w.tiles / blocks;
    if (choice.split == 0 && w.tiles % blocks != 0) {
      w.shared_tiles = waves > 1 ? w.tiles - (waves - 1) * blocks : w.tiles;
    }
  }

  const int most = (c.shared + 1024) / v.per_processor - 1024;
  w.stages = choice.stages > 0 ? choice.stages : kMostStages;
  while (w.stages > 1 && static_cast<int>(v.shared_bytes(w.stages, w.scale_rows)) > most)
    --w.stages;
  if (choice.split > 1 && w.stages * v.stage_bytes < v.sum_bytes) {
    w.stages = div_up(v.sum_bytes, v.stage_bytes);
  }

  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(kBlockThreads);
  config.dynamicSmemBytes = v.shared_bytes(w.stages, w.scale_rows);
  config.stream = args.stream;
  cudaLaunchAttribute attribute[2];
  attribute[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute[0].val.programmaticStreamSerializationAllowed = 1;
  attribute[1].id = cudaLaunchAttributeClusterDimension;
  attribute[1].val.clusterDim.x = static_cast<unsigned>(w.split);
  attribute[1].val.clusterDim.y = attribute[1].val.clusterDim.z = 1;
  config.attrs = attribute;
  config.numAttrs = w.split > 1 ? 2 : 1;
  return cudaLaunchKernelEx(&config, v.kernel, map, w);
}

// ---- the panel
// -----------------------------------------------------------------------------------------------------

namespace {

// A warp makes 16 rows x 64 inputs. A lane has pairs of inputs of two rows; the four lanes of a row
// trade so that each has eight neighbours.
template <int kBits>
__global__ void __launch_bounds__(256)
    make_panel(Work w, int first_strip, int strips, int rows, __nv_bfloat16* panel, int64_t ldp) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const int64_t count = int64_t{strips} * w.blocks * 4;
  const int64_t warps = int64_t{gridDim.x} * (blockDim.x / 32);
  for (int64_t i = int64_t{blockIdx.x} * (blockDim.x / 32) + threadIdx.x / 32; i < count;
       i += warps) {
    const int tile = static_cast<int>(i % 4);
    const int block = static_cast<int>(i / 4 % w.blocks);
    const int strip = static_cast<int>(i / 4 / w.blocks);
    const int64_t of_strip = first_strip + strip;
    const auto* from = reinterpret_cast<const uint4*>(
        w.codes + ((of_strip * w.blocks + block) * 4 + tile) * (kStrip * kBlock * kBits / 32) +
        lane * (kBits * 4));
    uint32_t codes[kBits];
#pragma unroll
    for (int q = 0; q < kBits / 4; ++q) {
      const uint4 v = __ldcs(from + q);
      codes[4 * q] = v.x, codes[4 * q + 1] = v.y, codes[4 * q + 2] = v.z, codes[4 * q + 3] = v.w;
    }
    uint32_t pair[2][8];  // [row g or g + 8][eight inputs 8 h]: inputs 8 h + 2 t, 8 h + 2 t + 1
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      Grid grid;
      const int group = min((block * kBlock + j / 2 * (kBlock / 2)) / w.group, w.groups - 1);
      const int64_t at = (of_strip * w.groups + group) * kStrip + g * 8 + tile * 2;
      bf16_scales_of(*reinterpret_cast<const uint32_t*>(w.scales + 2 * at), w.scales_are_bf16,
                     grid.scale);
      grid.zero[0] = grid.zero[1] = kBf16Magic | 0x00080008u;
      if (w.zeros != nullptr)
        zeros_of<kBits>(*reinterpret_cast<const uint16_t*>(w.zeros + at), grid.zero);
      uint32_t a[4];
      fragment<kBits, true>(codes, j, grid, w.zeros != nullptr, a);
      pair[0][2 * j] = a[0], pair[1][2 * j] = a[1];
      pair[0][2 * j + 1] = a[2], pair[1][2 * j + 1] = a[3];
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = strip * kStrip + tile * 16 + r * 8 + g;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        // A transposed square of 4 x 4: lane t ends with what the four lanes have of inputs 8 (4
        // half + t).
        uint32_t v[4];
#pragma unroll
        for (int h = 0; h < 4; ++h) v[h] = pair[r][4 * half + h];
        trade(v, t);
        if (row < rows) {
          *reinterpret_cast<uint4*>(panel + row * ldp + block * kBlock + (4 * half + t) * 8) =
              make_uint4(v[0], v[1], v[2], v[3]);
        }
      }
    }
  }
#endif
}

}  // namespace

cudaError_t launch_w4_panel(const W4Args& args, int first, int rows, __nv_bfloat16* panel,
                            int64_t ldp) {
  Work w{};
  describe_weight(args, w);
  const int strips = div_up(rows, kStrip);
  const int64_t warps = int64_t{strips} * w.blocks * 4;
  const auto blocks = static_cast<unsigned>(min((warps + 7) / 8, int64_t{132 * 32}));
  make_panel<4><<<blocks, 256, 0, args.stream>>>(w, first / kStrip, strips, rows, panel, ldp);
  return cudaGetLastError();
}

}  // namespace nibble::kernels::cuda
