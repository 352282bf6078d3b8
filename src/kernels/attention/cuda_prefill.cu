// cuda_flash.h: many tokens. The rows of a KV head are all heads of all tokens that read it, token
// by token; a block has 64 of them, 16 a warp, and goes over the keys in tiles that two stages of
// shared memory hold in turn. Two blocks share a multiprocessor, so that the softmax of one runs
// beside the products of the other. Blocks with the longest context start first.
#include "kernels/attention/cuda_flash.cuh"
#include "kernels/cuda/functions.h"

namespace nibble::kernels::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreadsOfBlock = kWarps * kWarp;
constexpr int kRows = kWarps * 16;

template <class S, int D>
struct Plan {
  using M = Factor<S>;
  static constexpr bool kCodes = sizeof(S) == 1;
  static constexpr int kKeys = D > 128 ? 32 : 64;
  static constexpr int kOwn = kCodes ? 2 * kKeys * 4 : 0;  // the tokens' own scales
  static constexpr int kStage = 2 * kKeys * kPitch<S, D> + kOwn;
  static constexpr int kWide = 2 * kStage;  // (2, kKeys) rows of bf16
  static constexpr int kBytes = kWide + (kCodes ? 2 * kKeys * kPitch<M, D> : 0);
};

#if __CUDA_ARCH__ >= 900

// Keys and values of a tile to a stage; nothing from `end` on.
template <class S, int D>
__device__ void fetch(const CudaKv& kv, int64_t kv_head, int64_t key, int64_t end, char* stage) {
  constexpr int kKeys = Plan<S, D>::kKeys;
  constexpr int kChunks = D * static_cast<int>(sizeof(S)) / 16;
  const char* head = head_of(kv, kv_head, key);
  const int64_t at = key % kv.page_tokens;
  const char* keys = head + at * D * static_cast<int>(sizeof(S));
  const char* values = keys + kv.key_bytes;
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll 4
  for (int i = thread; i < kKeys * kChunks; i += kThreadsOfBlock) {
    const int row = i / kChunks;
    char* to = stage + row * kPitch<S, D> + i % kChunks * 16;
    copy_16(to, keys + i * 16, key + row < end);
    copy_16(to + kKeys * kPitch<S, D>, values + i * 16, key + row < end);
  }
  if constexpr (sizeof(S) == 1) {
    if (kv.scale_offset < 0 || thread >= 2 * kKeys) return;
    const auto* own = reinterpret_cast<const float*>(head + kv.scale_offset) +
                      (thread >= kKeys ? kv.page_tokens : 0) + at + thread % kKeys;
    copy_4(stage + 2 * kKeys * kPitch<S, D> + thread * 4, own, key + thread % kKeys < end);
  }
}

// Codes of a stage as bf16.
template <int D>
__device__ void widen_stage(const CudaKv& kv, int64_t kv_head, const char* stage, char* wide) {
  constexpr int kKeys = Plan<uint8_t, D>::kKeys;
  constexpr int kChunks = D / 16;
  const float zeros[2] = {head_zero(kv, kv_head, false), head_zero(kv, kv_head, true)};
  for (int i = static_cast<int>(threadIdx.x); i < 2 * kKeys * kChunks; i += kThreadsOfBlock) {
    const int row = i / kChunks;
    const auto codes =
        *reinterpret_cast<const uint4*>(stage + row * kPitch<uint8_t, D> + i % kChunks * 16);
    widen(kv.type, zeros[row / kKeys], codes,
          reinterpret_cast<uint4*>(wide + row * kPitch<__nv_bfloat16, D> + i % kChunks * 32));
  }
}

// A thread's two rows.
struct Row {
  int64_t token;
  int64_t head;
  bool there;
};
__device__ Row row_of(const CudaStep& step, int64_t kv_head, int64_t index) {
  const int64_t group = step.heads / step.kv.heads;
  return {index / group, kv_head * group + index % group, index < step.m * group};
}

template <class M, int D>
__device__ void load_queries(const CudaStep& step, const Row (&rows)[2], float scale,
                             uint32_t (&q)[D / 16][4], int lane) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float* from = step.q + rows[r].token * step.ldq + rows[r].head * D + lane % 4 * 2;
#pragma unroll
    for (int k = 0; k < D / 8; ++k) {
      float2 v = {0, 0};
      if (rows[r].there) v = *reinterpret_cast<const float2*>(from + k * 8);
      q[k / 2][k % 2 * 2 + r] = pair_of<M>(v.x * scale, v.y * scale);
    }
  }
}

// A tile's keys and values, rows of M.
template <class S, int D>
__device__ void attend_tile(const CudaStep& step, const uint32_t (&q)[D / 16][4], const char* rows,
                            const float* own, const Sight& sight, bool all_seen, Softmax& softmax,
                            float (&o)[D / 8][4], int lane) {
  using M = Factor<S>;
  constexpr int kKeys = Plan<S, D>::kKeys;
  float s[kKeys / 8][4] = {};
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
#pragma unroll
    for (int j = 0; j < kKeys / 16; ++j) {
      uint32_t b[4];
      load_keys<M, D>(b, rows + j * 16 * kPitch<M, D>, k, lane);
      multiply<M>(s[2 * j], q[k], b[0], b[1]);
      multiply<M>(s[2 * j + 1], q[k], b[2], b[3]);
    }
  }
  if (own != nullptr) scale_columns(s, own, lane);
  if (step.soft_cap > 0) cap(s, step.soft_cap);
  if (!all_seen) mask(s, sight, lane);
  carry(softmax, s, o);
  if (own != nullptr) scale_columns(s, own + kKeys, lane);
  const char* values = rows + kKeys * kPitch<M, D>;
#pragma unroll
  for (int j = 0; j < kKeys / 16; ++j) {
    const uint32_t p[4] = {
        pair_of<M>(s[2 * j][0], s[2 * j][1]), pair_of<M>(s[2 * j][2], s[2 * j][3]),
        pair_of<M>(s[2 * j + 1][0], s[2 * j + 1][1]), pair_of<M>(s[2 * j + 1][2], s[2 * j + 1][3])};
#pragma unroll
    for (int d = 0; d < D / 16; ++d) {
      uint32_t b[4];
      load_values<M, D>(b, values + j * 16 * kPitch<M, D>, d, lane);
      multiply<M>(o[2 * d], p, b[0], b[1]);
      multiply<M>(o[2 * d + 1], p, b[2], b[3]);
    }
  }
}

template <int D>
__device__ void store(const CudaStep& step, const Row (&rows)[2], const Softmax& softmax,
                      float factor, const float (&o)[D / 8][4], int lane) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (!rows[r].there) continue;
    float sum = softmax.sum[r];
    float kept = 1;
    if (step.sinks != nullptr) {
      const float sink = step.sinks[rows[r].head];
      const float top = fmaxf(softmax.top[r], sink);
      kept = exp2f((softmax.top[r] - top) * kLog2E);
      sum = fmaf(sum, kept, exp2f((sink - top) * kLog2E));
    }
    const float scale = kept * factor / sum;
    const int64_t at = rows[r].token * step.ldo + rows[r].head * D + lane % 4 * 2;
#pragma unroll
    for (int d = 0; d < D / 8; ++d) {
      put_out_2(step, at + d * 8, {o[d][2 * r] * scale, o[d][2 * r + 1] * scale});
    }
  }
}

#endif  // __CUDA_ARCH__ >= 900

// Grid: (KV heads, 64s of rows).
template <class S, int D>
__global__ void __launch_bounds__(kThreadsOfBlock, D > 128 ? 1 : 2) prefill_block(CudaStep step) {
#if __CUDA_ARCH__ >= 900
  using M = Factor<S>;
  using P = Plan<S, D>;
  constexpr int kKeys = P::kKeys;
  extern __shared__ __align__(16) char shared[];
  let_next_start();
  wait_for_previous();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t kv_head = blockIdx.x;
  const int64_t group = step.heads / step.kv.heads;
  const int64_t position = step.placed != nullptr ? *step.placed : step.position;
  const int64_t first_row = (gridDim.y - 1 - blockIdx.y) * int64_t{kRows};
  const int64_t all_rows = step.m * group;
  const int64_t last_row = (first_row + kRows < all_rows ? first_row + kRows : all_rows) - 1;
  const int64_t end = position + last_row / group + 1;
  const int64_t lowest = position + first_row / group + 1 - step.window;
  const int64_t begin = step.window > 0 && lowest > 0 ? lowest / kKeys * kKeys : 0;

  const int64_t own_row = first_row + warp * 16;
  const Row rows[2] = {row_of(step, kv_head, own_row + lane / 4),
                       row_of(step, kv_head, own_row + lane / 4 + 8)};
  // What the warp's first and last row see.
  const int64_t least_end = position + own_row / group + 1;
  const int64_t most_end = position + (own_row + 15) / group + 1;
  const bool own_scales = P::kCodes && step.kv.scale_offset >= 0;
  const bool scaled = P::kCodes && !own_scales;
  const float key_scale = scaled ? head_scale(step.kv, kv_head, false) : 1.0f;
  uint32_t q[D / 16][4];
  load_queries<M, D>(step, rows, step.scale * key_scale, q, lane);
  Softmax softmax;
  float o[D / 8][4] = {};
  fetch<S, D>(step.kv, kv_head, begin, end, shared);
  end_of_copies();
  int at = 0;
  for (int64_t key = begin; key < end; key += kKeys, at ^= 1) {
    const char* stage = shared + at * P::kStage;
    if (key + kKeys < end) {
      fetch<S, D>(step.kv, kv_head, key + kKeys, end, shared + (at ^ 1) * P::kStage);
    }
    end_of_copies();
    wait_for_copies<1>();
    __syncthreads();
    const char* rows_of = stage;
    if constexpr (P::kCodes) {
      widen_stage<D>(step.kv, kv_head, stage, shared + P::kWide);
      __syncthreads();
      rows_of = shared + P::kWide;
    }
    const bool any = key < most_end && (step.window == 0 || key + kKeys + step.window > least_end);
    if (any) {
      const bool all_seen =
          key + kKeys <= least_end && (step.window == 0 || key + step.window >= most_end);
      Sight sight{};
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int64_t row_end = position + rows[r].token + 1 - key;
        const int64_t first = step.window > 0 ? row_end - step.window : 0;
        sight.end[r] = static_cast<int>(row_end < kKeys ? row_end : kKeys);
        sight.first[r] = static_cast<int>(first < kKeys ? first < 0 ? 0 : first : kKeys);
      }
      const auto* own =
          own_scales ? reinterpret_cast<const float*>(stage + 2 * kKeys * kPitch<S, D>) : nullptr;
      attend_tile<S, D>(step, q, rows_of, own, sight, all_seen, softmax, o, lane);
    }
    __syncthreads();  // the stage is read
  }
  finish(softmax);
  const bool bad = P::kCodes && *step.kv.first_bad < position + step.m;
  const float value_scale = scaled ? head_scale(step.kv, kv_head, true) : 1.0f;
  store<D>(step, rows, softmax, bad ? NAN : value_scale, o, lane);
#endif
}

}  // namespace

void prefill(NibbleCudaContext* context, const CudaStep& step) {
  const int64_t rows = step.m * (step.heads / step.kv.heads);
  const dim3 grid(static_cast<unsigned>(step.kv.heads),
                  static_cast<unsigned>((rows + kRows - 1) / kRows));
  with_shape(step.kv, [&]<class S, int D>() {
    constexpr int kBytes = Plan<S, D>::kBytes;
    context->enter();
    context->note("attention",
                  cudaFuncSetAttribute(prefill_block<S, D>,
                                       cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
    start(context, "attention", prefill_block<S, D>, grid, kThreadsOfBlock, kBytes, step);
  });
}

}  // namespace nibble::kernels::cuda
