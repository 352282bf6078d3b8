// cuda_flash.h: one token. A block has one KV head, up to 16 of the query heads that share it and a
// part of the context; its warps take 16 keys each of every tile, each with its own ring of copies,
// so that they meet only at the end. The copies of what the cache already holds begin before the
// kernels that make q, k and v have ended.
//
// Queries and shares are two 16-bit numbers each, what rounding the first has lost being the
// second: the products are those of f32 but for 2^-16 (bf16) and 2^-21 (f16).
#include "kernels/attention/cuda_flash.cuh"
#include "kernels/cuda/functions.h"
#include "kernels/rope/cuda.cuh"

namespace nibble::kernels::cuda {
namespace {

constexpr int kMostShared = 226 << 10;  // of a block of Hopper, with some for what is static
constexpr int kKeys = 16;               // of a warp in a tile
constexpr int kRows = 16;

// Shared memory. The rings come last: what the warps join in the end takes their place.
template <class S, int D>
struct Plan {
  using M = Factor<S>;
  static constexpr bool kCodes = sizeof(S) == 1;
  static constexpr int kWarps = D > 128 ? 4 : 8;
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr int kStages = D <= 80 ? 4 : D <= 96 ? 3 : 2;
  static constexpr int kQuery = 0;                                  // (2, kRows) of M: and the rest
  static constexpr int kFresh = kQuery + 2 * kRows * kPitch<M, D>;  // the new key and value
  static constexpr int kScales = kFresh + 2 * D * static_cast<int>(sizeof(S));  // of them
  static constexpr int kStats = kScales + 16;                // (kWarps, kRows, 2)
  static constexpr int kWide = kStats + kWarps * kRows * 8;  // (kWarps, 2, kKeys) of bf16
  static constexpr int kRing = kWide + (kCodes ? kWarps * 2 * kKeys * kPitch<M, D> : 0);
  static constexpr int kOwn = kCodes ? 2 * kKeys * 4 : 0;  // the tokens' own scales
  static constexpr int kStage = 2 * kKeys * kPitch<S, D> + kOwn;
  static constexpr int kRingBytes = kWarps * kStages * kStage;
  static constexpr int kJoin = kWarps * kRows * D * 4;
  static constexpr int kBytes = kRing + (kRingBytes > kJoin ? kRingBytes : kJoin);
};

#if __CUDA_ARCH__ >= 900

// Up to so many tiles each has a block of its own; above, a block has two at least, since joining
// more blocks takes longer than a tile (docs/cuda-notebook.md).
constexpr int64_t kMostAlone = 8;

// Which part of the context a block has, in tiles.
struct Part {
  int64_t position;
  int64_t first_key;  // the query sees
  int64_t first_tile;
  int64_t tiles;  // of this block
  int active;     // blocks that have any
};

template <int kTile>
__device__ Part part_of(const CudaStep& step) {
  Part out;
  out.position = step.placed != nullptr ? *step.placed : step.position;
  const int64_t end = out.position + 1;
  out.first_key = step.window > 0 && end > step.window ? end - step.window : 0;
  const int64_t first = out.first_key / kTile;
  const int64_t all = (end + kTile - 1) / kTile - first;
  const int64_t share = (all + gridDim.y - 1) / gridDim.y;
  const int64_t least = all > kMostAlone ? 2 : 1;
  const int64_t each = share < least ? least : share;
  out.active = static_cast<int>((all + each - 1) / each);
  out.first_tile = first + blockIdx.y * each;
  const int64_t left = all - blockIdx.y * each;
  out.tiles = left < each ? left : each;
  return out;
}

// A warp's copies of its 16 keys and values of a tile; nothing from the new token on.
template <class S, int D>
__device__ void fetch(const CudaStep& step, int64_t kv_head, int64_t key, int64_t position,
                      char* stage, int lane) {
  const CudaKv& kv = step.kv;
  constexpr int kChunks = D * static_cast<int>(sizeof(S)) / 16;
  const char* head = head_of(kv, kv_head, key);
  const int64_t at = key % kv.page_tokens;
  const char* keys = head + at * D * static_cast<int>(sizeof(S));
  const char* values = keys + kv.key_bytes;
  for (int i = lane; i < kKeys * kChunks; i += kWarp) {
    const int row = i / kChunks;
    char* to = stage + row * kPitch<S, D> + i % kChunks * 16;
    copy_16(to, keys + i * 16, key + row < position);
    copy_16(to + kKeys * kPitch<S, D>, values + i * 16, key + row < position);
  }
  if constexpr (sizeof(S) == 1) {
    if (kv.scale_offset < 0) return;
    const bool of_value = lane >= kKeys;
    const auto* own = reinterpret_cast<const float*>(head + kv.scale_offset) +
                      (of_value ? kv.page_tokens : 0) + at + lane % kKeys;
    copy_4(stage + 2 * kKeys * kPitch<S, D> + lane * 4, own, key + lane % kKeys < position);
  }
}

// A warp turns and scales a query: two parts of each number.
template <class M, int D>
__device__ void place_query(const CudaStep& step, const float* q, char* to, float scale, int lane) {
#pragma unroll
  for (int d = 4 * lane; d < D; d += 4 * kWarp) {
    const float4 v = turned_4(step, 0, q, d);
    const uint32_t a = pair_of<M>(v.x * scale, v.y * scale);
    const uint32_t b = pair_of<M>(v.z * scale, v.w * scale);
    *reinterpret_cast<uint2*>(to + d * 2) = {a, b};
    *reinterpret_cast<uint2*>(to + kRows * kPitch<M, D> + d * 2) = {
        rest_of<M>(a, v.x * scale, v.y * scale), rest_of<M>(b, v.z * scale, v.w * scale)};
  }
}

// The new token into a warp's stage.
template <class S, int D>
__device__ void patch(char* stage, int row, const char* fresh, const float* scales, int lane) {
  constexpr int kChunks = D * static_cast<int>(sizeof(S)) / 16;
  for (int i = lane; i < 2 * kChunks; i += kWarp) {
    char* to = stage + (i / kChunks * kKeys + row) * kPitch<S, D> + i % kChunks * 16;
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(fresh + i * 16);
  }
  if constexpr (sizeof(S) == 1) {
    auto* own = reinterpret_cast<float*>(stage + 2 * kKeys * kPitch<S, D>);
    if (lane < 2) own[lane * kKeys + row] = scales[lane];
  }
  __syncwarp();
}

// 16 keys and values of codes as bf16.
template <int D>
__device__ void widen_stage(const CudaStep& step, int64_t kv_head, const char* stage, char* wide,
                            int lane) {
  const float zeros[2] = {head_zero(step.kv, kv_head, false), head_zero(step.kv, kv_head, true)};
  constexpr int kChunks = D / 16;
  for (int i = lane; i < 2 * kKeys * kChunks; i += kWarp) {
    const int row = i / kChunks;
    const auto codes =
        *reinterpret_cast<const uint4*>(stage + row * kPitch<uint8_t, D> + i % kChunks * 16);
    widen(step.kv.type, zeros[row / kKeys], codes,
          reinterpret_cast<uint4*>(wide + row * kPitch<__nv_bfloat16, D> + i % kChunks * 32));
  }
  __syncwarp();
}

// A warp's 16 keys and values, rows of M.
template <class S, int D>
__device__ void attend_16(const CudaStep& step, const char* query, const char* rows,
                          const float* own, const Sight& sight, Softmax& softmax,
                          float (&o)[D / 8][4], int lane) {
  using M = Factor<S>;
  float s[2][4] = {};
  float t[2][4] = {};  // of the rests, so that products do not wait for one another
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    const char* row = query + lane % 16 * kPitch<M, D> + (k * 16 + lane / 16 * 8) * 2;
    uint32_t q[4];
    uint32_t rest[4];
    uint32_t b[4];
    load_matrices(q, row);
    load_matrices(rest, row + kRows * kPitch<M, D>);
    load_keys<M, D>(b, rows, k, lane);
    multiply<M>(s[0], q, b[0], b[1]);
    multiply<M>(s[1], q, b[2], b[3]);
    multiply<M>(t[0], rest, b[0], b[1]);
    multiply<M>(t[1], rest, b[2], b[3]);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    s[0][i] += t[0][i];
    s[1][i] += t[1][i];
  }
  if (own != nullptr) scale_columns(s, own, lane);
  if (step.soft_cap > 0) cap(s, step.soft_cap);
  mask(s, sight, lane);
  carry(softmax, s, o);
  if (own != nullptr) scale_columns(s, own + kKeys, lane);
  uint32_t p[4];
  uint32_t rest[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float a = s[i / 2][i % 2 * 2];
    const float b = s[i / 2][i % 2 * 2 + 1];
    p[i] = pair_of<M>(a, b);
    rest[i] = rest_of<M>(p[i], a, b);
  }
  const char* values = rows + kKeys * kPitch<M, D>;
#pragma unroll
  for (int d = 0; d < D / 16; ++d) {
    uint32_t b[4];
    load_values<M, D>(b, values, d, lane);
    multiply<M>(o[2 * d], p, b[0], b[1]);
    multiply<M>(o[2 * d + 1], p, b[2], b[3]);
    multiply<M>(o[2 * d], rest, b[0], b[1]);
    multiply<M>(o[2 * d + 1], rest, b[2], b[3]);
  }
}

struct Total {
  float top;
  float sum;
};
// With the sink's share.
__device__ Total with_sink(const CudaStep& step, int64_t head, Total t) {
  if (step.sinks == nullptr) return t;
  const float sink = step.sinks[head];
  const float top = fmaxf(t.top, sink);
  return {top, t.sum * exp2f((t.top - top) * kLog2E) + exp2f((sink - top) * kLog2E)};
}

__device__ void add_share(float4& all, const float4& v, float share) {
  all = {fmaf(v.x, share, all.x), fmaf(v.y, share, all.y), fmaf(v.z, share, all.z),
         fmaf(v.w, share, all.w)};
}
__device__ float4 scaled(const float4& v, float factor) {
  return {v.x * factor, v.y * factor, v.z * factor, v.w * factor};
}

// The results of the blocks of a KV head, `count` of them: each has rows of sums (kRows, D), then
// the top and sum of each row. `stats` is shared memory for the latter (rows, count).
template <int D, int kThreads>
__device__ void join_blocks(const CudaStep& step, const float* parts, int count, int64_t first_head,
                            int rows, float2* stats) {
  constexpr int64_t kPart = kRows * (D + 2);
  constexpr int kTogether = 8;
  const int items = rows * (D / 4);
  float4 v[kTogether];
  const auto load = [&](int item, int first) {
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const float* from = parts + (first + j) * kPart + item * 4;
      v[j] = {0, 0, 0, 0};
      if (first + j < count) v[j] = __ldcg(reinterpret_cast<const float4*>(from));
    }
  };
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < items) load(thread, 0);  // they come together with the tops and sums
  for (int i = thread; i < rows * count; i += kThreads) {
    stats[i] =
        __ldcg(reinterpret_cast<const float2*>(parts + i % count * kPart + kRows * D) + i / count);
  }
  __syncthreads();
  for (int item = thread; item < items; item += kThreads) {
    const int row = item / (D / 4);
    Total t{-INFINITY, 0};
    for (int j = 0; j < count; ++j) t.top = fmaxf(t.top, stats[row * count + j].x);
    float4 all = {0, 0, 0, 0};
    for (int first = 0; first < count; first += kTogether) {
      if (first > 0 || item != thread) load(item, first);
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        if (first + j >= count) break;
        const float2 stat = stats[row * count + first + j];
        const float share = exp2f((stat.x - t.top) * kLog2E);
        t.sum = fmaf(stat.y, share, t.sum);
        add_share(all, v[j], share);
      }
    }
    const Total w = with_sink(step, first_head + row, t);
    put_out_4(step, first_head * D + item * 4,
              scaled(all, exp2f((t.top - w.top) * kLog2E) / w.sum));
  }
}

// The results of the warps, which lie in `sums` (kWarps, kRows, D) and `stats`, to `part`, or if it
// is null to the output.
template <int D, int kWarps>
__device__ void join_warps(const CudaStep& step, const float* sums, const float2* stats,
                           float* part, float factor, int64_t first_head, int rows) {
  const int thread = static_cast<int>(threadIdx.x);
  for (int item = thread; item < rows * (D / 4); item += kWarps * kWarp) {
    const int row = item / (D / 4);
    Total t{-INFINITY, 0};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) t.top = fmaxf(t.top, stats[w * kRows + row].x);
    float4 all = {0, 0, 0, 0};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float2 stat = stats[w * kRows + row];
      const float share = exp2f((stat.x - t.top) * kLog2E);
      t.sum = fmaf(stat.y, share, t.sum);
      add_share(all, *reinterpret_cast<const float4*>(sums + w * kRows * D + item * 4), share);
    }
    if (part == nullptr) {
      const Total w = with_sink(step, first_head + row, t);
      put_out_4(step, first_head * D + item * 4,
                scaled(all, factor * (exp2f((t.top - w.top) * kLog2E) / w.sum)));
      continue;
    }
    put_4(scaled(all, factor), part + item * 4);
    if (item % (D / 4) == 0) {
      reinterpret_cast<float2*>(part + kRows * D)[row] = {t.top, t.sum};
    }
  }
}

#endif  // __CUDA_ARCH__ >= 900

// Grid: (KV heads, splits, sixteens of the query heads of one): the blocks that have a part of a
// short context come first.
template <class S, int D>
__global__ void __launch_bounds__(Plan<S, D>::kThreads)
    decode_part(CudaStep step, unsigned* counters) {
#if __CUDA_ARCH__ >= 900
  using M = Factor<S>;
  using P = Plan<S, D>;
  let_next_start();
  extern __shared__ __align__(16) char shared[];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t kv_head = blockIdx.x;
  const int group = static_cast<int>(step.heads / step.kv.heads);
  const int64_t first_head = kv_head * group + blockIdx.z * kRows;
  const int left = group - static_cast<int>(blockIdx.z) * kRows;
  const int rows = left < kRows ? left : kRows;
  const Part part = part_of<P::kWarps * kKeys>(step);
  const bool idle = static_cast<int>(blockIdx.y) >= part.active;
  const bool last = static_cast<int>(blockIdx.y) == part.active - 1;
  char* ring = shared + P::kRing + warp * P::kStages * P::kStage;
  const auto key_of = [&](int64_t tile) {
    return (part.first_tile + tile) * P::kWarps * kKeys + warp * kKeys;
  };
  const auto fetch_tile = [&](int64_t tile) {
    const bool any = !idle && tile < part.tiles && key_of(tile) <= part.position;
    if (any) {
      fetch<S, D>(step, kv_head, key_of(tile), part.position, ring + tile % P::kStages * P::kStage,
                  lane);
    }
    end_of_copies();
  };
#pragma unroll 1
  for (int i = 0; i < P::kStages - 1; ++i) fetch_tile(i);
  const bool own_scales = P::kCodes && step.kv.scale_offset >= 0;
  const float key_scale = P::kCodes && !own_scales ? head_scale(step.kv, kv_head, false) : 1.0f;
  const float value_scale = P::kCodes && !own_scales ? head_scale(step.kv, kv_head, true) : 1.0f;
  // Rows of queries that there are not are zeros.
  for (int i = static_cast<int>(threadIdx.x); i < 2 * kRows * D / 8; i += P::kThreads) {
    const int row = i / (D / 8);
    if (row % kRows < rows) continue;
    char* to = shared + P::kQuery + row * kPitch<M, D> + i % (D / 8) * 16;
    *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);
  }
  wait_for_previous();
  if (idle) return;

  auto* fresh_scales = reinterpret_cast<float*>(shared + P::kScales);
  // Blocks for more than 16 query heads of one KV head all keep the same.
  for (int job = warp; job < rows + (last ? 2 : 0); job += P::kWarps) {
    if (job < rows) {
      place_query<M, D>(step, step.q + (first_head + job) * D,
                        shared + P::kQuery + job * kPitch<M, D>, step.scale * key_scale, lane);
    } else {
      const int of_value = job - rows;
      keep_row<S, D>(step, kv_head, 0, part.position, of_value != 0,
                     shared + P::kFresh + of_value * D * static_cast<int>(sizeof(S)),
                     fresh_scales + of_value, lane);
    }
  }
  __syncthreads();

  Softmax softmax;
  float o[D / 8][4] = {};
  for (int64_t tile = 0; tile < part.tiles; ++tile) {
    const int64_t key = key_of(tile);
    wait_for_copies<P::kStages - 2>();
    __syncwarp();
    fetch_tile(tile + P::kStages - 1);
    if (key > part.position) continue;
    char* stage = ring + tile % P::kStages * P::kStage;
    if (part.position < key + kKeys) {
      patch<S, D>(stage, static_cast<int>(part.position - key), shared + P::kFresh, fresh_scales,
                  lane);
    }
    const char* rows_of = stage;
    if constexpr (P::kCodes) {
      char* wide = shared + P::kWide + warp * 2 * kKeys * kPitch<M, D>;
      widen_stage<D>(step, kv_head, stage, wide, lane);
      rows_of = wide;
    }
    const auto* own =
        own_scales ? reinterpret_cast<const float*>(stage + 2 * kKeys * kPitch<S, D>) : nullptr;
    const int first = static_cast<int>(part.first_key > key ? part.first_key - key : 0);
    const int64_t seen = part.position + 1 - key;
    const int end = static_cast<int>(seen < kKeys ? seen : kKeys);
    attend_16<S, D>(step, shared + P::kQuery, rows_of, own, {{first, first}, {end, end}}, softmax,
                    o, lane);
    __syncwarp();
  }
  finish(softmax);
  wait_for_copies<0>();
  __syncthreads();  // the rings are no longer read
  auto* sums = reinterpret_cast<float*>(shared + P::kRing);
  auto* stats = reinterpret_cast<float2*>(shared + P::kStats);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = lane / 4 + 8 * r;
    if (lane % 4 == 0) stats[warp * kRows + row] = {softmax.top[r], softmax.sum[r]};
    if (row >= rows) continue;
    float* to = sums + (warp * kRows + row) * D + lane % 4 * 2;
#pragma unroll
    for (int d = 0; d < D / 8; ++d) {
      *reinterpret_cast<float2*>(to + d * 8) = make_float2(o[d][2 * r], o[d][2 * r + 1]);
    }
  }
  __syncthreads();
  // Of codes: a number that was not finite makes everything nan.
  const bool bad = P::kCodes && last && *step.kv.first_bad <= part.position;
  const int64_t unit = kv_head * gridDim.z + blockIdx.z;
  float* parts = step.work + unit * gridDim.y * kRows * (D + 2);
  float* own_part = part.active == 1 ? nullptr : parts + blockIdx.y * kRows * (D + 2);
  join_warps<D, P::kWarps>(step, sums, stats, own_part, bad ? NAN : value_scale, first_head, rows);
  if (part.active == 1) return;
  __shared__ bool is_last;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();  // what the block has written is seen before it is counted
    is_last = atomicAdd(counters + unit, 1u) + 1 == static_cast<unsigned>(part.active);
    if (is_last) counters[unit] = 0;
    __threadfence();
  }
  __syncthreads();
  if (!is_last) return;
  join_blocks<D, P::kThreads>(step, parts, part.active, first_head, rows,
                              reinterpret_cast<float2*>(sums));
#endif
}

}  // namespace

bool fits_tensor_cores(const NibbleCudaContext& context, const CudaStep& step) {
  const CudaKv& kv = step.kv;
  const int64_t dim = kv.key_dim;
  const bool sized = dim == 32 || dim == 64 || dim == 80 || dim == 96 || dim == 128 || dim == 256;
  const int64_t units = kv.heads * ((step.heads / kv.heads + kRows - 1) / kRows);
  const bool aligned = step.ldq % 4 == 0 && step.ldk % 4 == 0 && step.ldv % 4 == 0 &&
                       step.ldo % 4 == 0 && reinterpret_cast<uintptr_t>(step.q) % 16 == 0 &&
                       reinterpret_cast<uintptr_t>(step.k) % 16 == 0 &&
                       reinterpret_cast<uintptr_t>(step.v) % 16 == 0 &&
                       reinterpret_cast<uintptr_t>(step.out) % 16 == 0;
  return context.major == 9 && step.exact == 0 && sized && kv.value_dim == dim && aligned &&
         static_cast<KvType>(kv.type) != KvType::kF32 && units <= NibbleCudaContext::kCounters;
}

void decode(NibbleCudaContext* context, const CudaStep& step) {
  const int64_t sixteens = (step.heads / step.kv.heads + kRows - 1) / kRows;
  const dim3 grid(static_cast<unsigned>(step.kv.heads), static_cast<unsigned>(step.splits),
                  static_cast<unsigned>(sixteens));
  with_shape(step.kv, [&]<class S, int D>() {
    constexpr int kBytes = Plan<S, D>::kBytes;
    static_assert(kBytes <= kMostShared);
    context->enter();
    context->note("attention",
                  cudaFuncSetAttribute(decode_part<S, D>,
                                       cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
    start(context, "attention", decode_part<S, D>, grid, Plan<S, D>::kThreads, kBytes, step,
          context->counters);
  });
}

}  // namespace nibble::kernels::cuda
