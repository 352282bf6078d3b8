// cuda_flash.h: one token. A block has one KV head, up to 16 of the query heads that share it and a
// part of the context; its four warps take 16 keys of every 64, each with its own ring of copies,
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

constexpr int kWarps = 4;
constexpr int kKeys = 16;  // of a warp in a tile
constexpr int kRows = 16;

// Shared memory. The rings come last: what the warps join in the end takes their place.
template <class S, int D>
struct Plan {
  using M = Factor<S>;
  static constexpr bool kCodes = sizeof(S) == 1;
  static constexpr int kStages = D <= 96 ? 4 : 3;
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

constexpr int kTile = kWarps * kKeys;

// Which part of the context a block has, in tiles.
struct Part {
  int64_t position;
  int64_t first_key;  // the query sees
  int64_t first_tile;
  int64_t tiles;  // of this block
  int active;     // blocks that have any
};

__device__ Part part_of(const CudaStep& step) {
  Part out;
  out.position = step.placed != nullptr ? *step.placed : step.position;
  const int64_t end = out.position + 1;
  out.first_key = step.window > 0 && end > step.window ? end - step.window : 0;
  const int64_t first = out.first_key / kTile;
  const int64_t all = (end + kTile - 1) / kTile - first;
  const int64_t each = (all + gridDim.x - 1) / gridDim.x;
  out.active = static_cast<int>((all + each - 1) / each);
  out.first_tile = first + blockIdx.x * each;
  const int64_t left = all - blockIdx.x * each;
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
#pragma unroll
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

// Rows of queries, turned and scaled: two parts of each number.
template <class M, int D>
__device__ void place_query(const CudaStep& step, int64_t head, int row, bool there, char* to,
                            float scale, int lane) {
  const float* q = step.q + head * D;
  for (int d = 2 * lane; d < D; d += 2 * kWarp) {
    const float a = there ? turned(step, 0, q, d) * scale : 0.0f;
    const float b = there ? turned(step, 0, q, d + 1) * scale : 0.0f;
    const uint32_t pair = pair_of<M>(a, b);
    auto* at = reinterpret_cast<uint32_t*>(to + row * kPitch<M, D> + d * 2);
    *at = pair;
    at[kRows * kPitch<M, D> / 4] = rest_of<M>(pair, a, b);
  }
}

// A warp keeps the new key or value: in the cache, and in `to` with its scale for this kernel.
// `work` has D floats.
template <class S, int D>
__device__ void keep_fresh(const CudaStep& step, int64_t kv_head, int64_t position, bool of_value,
                           float* work, char* to, float* scale, int lane) {
  const CudaKv& kv = step.kv;
  const float* x = of_value ? step.v + kv_head * D : step.k + kv_head * D;
  for (int d = lane; d < D; d += kWarp) work[d] = of_value ? x[d] : turned(step, 0, x, d);
  __syncwarp();
  RowCode how;
  if constexpr (sizeof(S) == 1) {
    how = code_for(kv, kv_head, position, of_value, work, D, lane);
    if (lane == 0) *scale = how.scale;
    if (kv.scale_offset >= 0 && lane == 0) *own_scale(kv, kv_head, position, of_value) = how.scale;
  }
  S* row = of_value ? value_row<S>(kv, kv_head, position) : key_row<S>(kv, kv_head, position);
  for (int d = lane; d < D; d += kWarp) {
    const S code = encode<S>(kv.type, how, work[d]);
    row[d] = code;
    reinterpret_cast<S*>(to)[d] = code;
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
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    const char* row = query + lane % 16 * kPitch<M, D> + (k * 16 + lane / 16 * 8) * 2;
    uint32_t q[4];
    load_matrices(q, row);
    score_16<M, D>(s[0], s[1], q, rows, k, lane);
    load_matrices(q, row + kRows * kPitch<M, D>);
    score_16<M, D>(s[0], s[1], q, rows, k, lane);
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
  add_values<M, D>(o, p, values, lane);
  add_values<M, D>(o, rest, values, lane);
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

// The results of the blocks of a KV head, `count` of them: each has rows of sums (kRows, D), then
// the top and sum of each row.
template <int D>
__device__ void join_blocks(const CudaStep& step, const float* parts, int count, int64_t first_head,
                            int rows) {
  constexpr int64_t kPart = kRows * (D + 2);
  for (int i = static_cast<int>(threadIdx.x); i < rows * (D / 4); i += kWarps * kWarp) {
    const int row = i / (D / 4);
    const int d = i % (D / 4) * 4;
    const float* stats = parts + kRows * D + 2 * row;
    Total t{-INFINITY, 0};
    for (int j = 0; j < count; ++j) t.top = fmaxf(t.top, __ldcg(stats + j * kPart));
    float4 all = {0, 0, 0, 0};
#pragma unroll 4
    for (int j = 0; j < count; ++j) {
      const float2 stat = __ldcg(reinterpret_cast<const float2*>(stats + j * kPart));
      const float4 v = __ldcg(reinterpret_cast<const float4*>(parts + j * kPart + row * D + d));
      const float share = exp2f((stat.x - t.top) * kLog2E);
      t.sum = fmaf(stat.y, share, t.sum);
      all.x = fmaf(v.x, share, all.x);
      all.y = fmaf(v.y, share, all.y);
      all.z = fmaf(v.z, share, all.z);
      all.w = fmaf(v.w, share, all.w);
    }
    const Total w = with_sink(step, first_head + row, t);
    const float factor = exp2f((t.top - w.top) * kLog2E) / w.sum;
    float* to = step.out + (first_head + row) * D + d;
    to[0] = all.x * factor;
    to[1] = all.y * factor;
    to[2] = all.z * factor;
    to[3] = all.w * factor;
  }
}

// The results of the four warps, which lie in `sums` (kWarps, kRows, D) and `stats`, to `part`, or
// if it is null to the output.
template <int D>
__device__ void join_warps(const CudaStep& step, const float* sums, const float* stats, float* part,
                           float factor, int64_t first_head, int rows) {
  for (int i = static_cast<int>(threadIdx.x); i < rows * D; i += kWarps * kWarp) {
    const int row = i / D;
    Total t{-INFINITY, 0};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) t.top = fmaxf(t.top, stats[(w * kRows + row) * 2]);
    const float base = t.top == -INFINITY ? 0.0f : t.top;
    float all = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float* stat = stats + (w * kRows + row) * 2;
      const float share = exp2f((stat[0] - base) * kLog2E);
      t.sum = fmaf(stat[1], share, t.sum);
      all = fmaf(sums[(w * kRows + row) * D + i % D], share, all);
    }
    all *= factor;
    if (part == nullptr) {
      const Total w = with_sink(step, first_head + row, t);
      step.out[(first_head + row) * D + i % D] = all * (exp2f((t.top - w.top) * kLog2E) / w.sum);
      continue;
    }
    part[i] = all;
    if (i % D == 0) {
      part[kRows * D + 2 * row] = t.top;
      part[kRows * D + 2 * row + 1] = t.sum;
    }
  }
}

#endif  // __CUDA_ARCH__ >= 900

// Grid: (splits, KV heads, sixteens of the query heads of one).
template <class S, int D>
__global__ void __launch_bounds__(kWarps* kWarp) decode_part(CudaStep step, unsigned* counters) {
#if __CUDA_ARCH__ >= 900
  using M = Factor<S>;
  using P = Plan<S, D>;
  extern __shared__ __align__(16) char shared[];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t kv_head = blockIdx.y;
  const int group = static_cast<int>(step.heads / step.kv.heads);
  const int64_t first_head = kv_head * group + blockIdx.z * kRows;
  const int left = group - static_cast<int>(blockIdx.z) * kRows;
  const int rows = left < kRows ? left : kRows;
  const Part part = part_of(step);
  const bool idle = static_cast<int>(blockIdx.x) >= part.active;
  const bool last = static_cast<int>(blockIdx.x) == part.active - 1;
  char* ring = shared + P::kRing + warp * P::kStages * P::kStage;
  const auto key_of = [&](int64_t tile) { return (part.first_tile + tile) * kTile + warp * kKeys; };
  const auto fetch_tile = [&](int64_t tile) {
    const bool any = !idle && tile < part.tiles && key_of(tile) <= part.position;
    if (any) {
      fetch<S, D>(step, kv_head, key_of(tile), part.position, ring + tile % P::kStages * P::kStage,
                  lane);
    }
    end_of_copies();
  };
#pragma unroll
  for (int i = 0; i < P::kStages - 1; ++i) fetch_tile(i);
  wait_for_previous();
  let_next_start();
  if (idle) return;

  const bool own_scales = P::kCodes && step.kv.scale_offset >= 0;
  const float key_scale = P::kCodes && !own_scales ? head_scale(step.kv, kv_head, false) : 1.0f;
  const float value_scale = P::kCodes && !own_scales ? head_scale(step.kv, kv_head, true) : 1.0f;
  auto* fresh_scales = reinterpret_cast<float*>(shared + P::kScales);
  auto* stats = reinterpret_cast<float*>(shared + P::kStats);
  for (int r = warp; r < kRows; r += kWarps) {
    place_query<M, D>(step, first_head + r, r, r < rows, shared + P::kQuery, step.scale * key_scale,
                      lane);
  }
  if (last && warp < 2) {
    // Both blocks of more than 16 query heads write the same.
    __shared__ float work[2][D];
    keep_fresh<S, D>(step, kv_head, part.position, warp == 1, work[warp],
                     shared + P::kFresh + warp * D * static_cast<int>(sizeof(S)),
                     fresh_scales + warp, lane);
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
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = lane / 4 + 8 * r;
    if (lane % 4 == 0) {
      stats[(warp * kRows + row) * 2] = softmax.top[r];
      stats[(warp * kRows + row) * 2 + 1] = softmax.sum[r];
    }
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
  float* parts = step.work + unit * gridDim.x * kRows * (D + 2);
  float* own_part = part.active == 1 ? nullptr : parts + blockIdx.x * kRows * (D + 2);
  join_warps<D>(step, sums, stats, own_part, bad ? NAN : value_scale, first_head, rows);
  if (part.active == 1) return;
  __shared__ bool is_last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    is_last = atomicAdd(counters + unit, 1u) + 1 == static_cast<unsigned>(part.active);
    if (is_last) counters[unit] = 0;
  }
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  join_blocks<D>(step, parts, part.active, first_head, rows);
#endif
}

}  // namespace

bool fits_tensor_cores(const NibbleCudaContext& context, const CudaStep& step) {
  const CudaKv& kv = step.kv;
  const int64_t dim = kv.key_dim;
  const bool sized = dim == 32 || dim == 64 || dim == 80 || dim == 96 || dim == 128 || dim == 256;
  const int64_t units = kv.heads * ((step.heads / kv.heads + kRows - 1) / kRows);
  const bool aligned = step.ldq % 2 == 0 && step.ldo % 2 == 0 &&
                       reinterpret_cast<uintptr_t>(step.q) % 8 == 0 &&
                       reinterpret_cast<uintptr_t>(step.out) % 8 == 0;
  return context.major == 9 && step.exact == 0 && sized && kv.value_dim == dim && aligned &&
         static_cast<KvType>(kv.type) != KvType::kF32 && units <= NibbleCudaContext::kCounters;
}

void decode(NibbleCudaContext* context, const CudaStep& step) {
  const int64_t sixteens = (step.heads / step.kv.heads + kRows - 1) / kRows;
  const dim3 grid(static_cast<unsigned>(step.splits), static_cast<unsigned>(step.kv.heads),
                  static_cast<unsigned>(sixteens));
  with_shape(step.kv, [&]<class S, int D>() {
    constexpr int kBytes = Plan<S, D>::kBytes;
    context->enter();
    context->note("attention",
                  cudaFuncSetAttribute(decode_part<S, D>,
                                       cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
    start(context, "attention", decode_part<S, D>, grid, kWarps * kWarp, kBytes, step,
          context->counters);
  });
}

}  // namespace nibble::kernels::cuda
