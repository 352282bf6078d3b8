// One step of attention on a card. Keys and values go into the cache first; then come the kernels
// on tensor cores (cuda_decode.cu, cuda_prefill.cu, cuda_wgmma.cu) where there are some for the
// cache, and where products may be rounded to 16 bits. The kernel here is for all others, any type
// and size: a block for each head of each query token. It goes over the keys in tiles of kTile:
// each thread scores one key, the softmax is carried from tile to tile, then each thread sums one
// dimension (or some) of the values.
#include "kernels/attention/cuda_flash.h"
#include "kernels/attention/cuda_kv.cuh"
#include "kernels/attention/cuda_wgmma.cuh"
#include "kernels/cuda/functions.h"
#include "kernels/rope/cuda.cuh"

namespace nibble::kernels::cuda {
namespace {

constexpr int kTile = 128;                         // keys, and threads of a block
constexpr int kMostRounds = kMostCudaDim / kTile;  // dimensions of the values a thread may have

// call.operator()<T>() with the type that the cache holds.
template <class Call>
void with_type(int32_t type, const Call& call) {
  switch (static_cast<KvType>(type)) {
    case KvType::kBf16:
      return call.template operator()<__nv_bfloat16>();
    case KvType::kF16:
      return call.template operator()<__half>();
    case KvType::kF32:
      return call.template operator()<float>();
    default:
      return call.template operator()<uint8_t>();
  }
}

template <class T>
__device__ void keep(const CudaKv& kv, int64_t head, int64_t token, bool of_value, const float* x,
                     int lane) {
  const int n = static_cast<int>(of_value ? kv.value_dim : kv.key_dim);
  RowCode how;
  if constexpr (sizeof(T) == 1) {
    int most = 0;
    for (int i = lane; i < n; i += kWarp) most = Max::join(most, magnitude(x[i]));
    how = code_for(kv, head, token, of_value, over_warp<Max>(most), lane);
  }
  T* to = of_value ? value_row<T>(kv, head, token) : key_row<T>(kv, head, token);
  for (int i = lane; i < n; i += kWarp) to[i] = encode<T>(kv.type, how, x[i]);
}

// A warp for each head of each token: q's and k's are turned, k's and v's kept.
template <class T>
__global__ void __launch_bounds__(kThreads) keep_tokens(CudaStep step) {
  let_next_start();
  wait_for_previous();
  const CudaKv& kv = step.kv;
  const int64_t position = step.placed != nullptr ? *step.placed : step.position;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t warps = kThreads / kWarp;
  const int64_t heads = step.heads + 2 * kv.heads;
  const int64_t first = int64_t{blockIdx.x} * warps + threadIdx.x / kWarp;
  for (int64_t i = first; i < step.m * heads; i += int64_t{gridDim.x} * warps) {
    const int64_t token = i / heads;
    int64_t head = i % heads;
    if (head < step.heads) {
      turn(step, token, step.q + token * step.ldq + head * kv.key_dim, lane);
      continue;
    }
    head -= step.heads;
    if (head < kv.heads) {
      float* k = step.k + token * step.ldk + head * kv.key_dim;
      turn(step, token, k, lane);
      __syncwarp();
      keep<T>(kv, head, position + token, false, k, lane);
    } else {
      head -= kv.heads;
      const float* v = step.v + token * step.ldv + head * kv.value_dim;
      keep<T>(kv, head, position + token, true, v, lane);
    }
  }
}

// What makes a row of codes numbers: (code - zero) * scale.
template <class T>
__device__ RowCode held(const CudaKv& kv, int64_t head, int64_t token, bool of_value) {
  if constexpr (sizeof(T) != 1) return {};
  if (kv.scale_offset >= 0) return {*own_scale(kv, head, token, of_value), 0.0f};
  return {head_scale(kv, head, of_value), head_zero(kv, head, of_value)};
}

// Shared memory: q (key_dim), p (kTile), zeros of values (kTile), then the sums of the groups of
// threads (kTile).
template <class T>
__global__ void __launch_bounds__(kTile) attend_to_all(CudaStep step, int64_t first_token) {
  let_next_start();
  wait_for_previous();
  extern __shared__ float shared[];
  const CudaKv& kv = step.kv;
  float* query = shared;
  float* p = shared + kv.key_dim;
  float* parts = p + kTile;
  const int64_t position = step.placed != nullptr ? *step.placed : step.position;
  const int64_t head = blockIdx.x;
  const int64_t token = first_token + blockIdx.y;
  const int64_t kv_head = head / (step.heads / kv.heads);
  const int64_t end = position + token + 1;
  const int64_t first = step.window > 0 && end > step.window ? end - step.window : 0;
  const bool bad = sizeof(T) == 1 && *kv.first_bad < position + step.m;
  for (int64_t d = threadIdx.x; d < kv.key_dim; d += kTile) {
    query[d] = step.q[token * step.ldq + head * kv.key_dim + d];
  }
  // Thread t sums dimension t % width of the keys t / width, + groups, ... of a tile.
  const int dims = static_cast<int>(kv.value_dim);
  const int width = dims < kTile ? dims : kTile;
  const int groups = kTile / width;
  const int group = static_cast<int>(threadIdx.x) / width;  // those left over get groups
  const int dim = static_cast<int>(threadIdx.x) % width;
  const float value_zero = held<T>(kv, kv_head, first, true).zero;
  float acc[kMostRounds] = {};
  float top = -INFINITY;
  float sum = 0;
  for (int64_t begin = first; begin < end; begin += kTile) {
    __syncthreads();  // the query is there; p is read
    const int64_t key = begin + threadIdx.x;
    float score = -INFINITY;
    if (key < end) {
      const T* k = key_row<T>(kv, kv_head, key);
      const RowCode how = held<T>(kv, kv_head, key, false);
      float dot = 0;
      for (int64_t d = 0; d < kv.key_dim; ++d) {
        dot = fmaf(query[d], value_of(kv.type, k[d]) - how.zero, dot);
      }
      score = dot * (how.scale * step.scale);
      if (step.soft_cap > 0) score = step.soft_cap * tanhf(score / step.soft_cap);
    }
    const float highest = Max::join(top, over_block<Max>(score));
    const float kept = expf(top - highest);  // 0 the first time
    const float share = key < end ? expf(score - highest) : 0.0f;
    p[threadIdx.x] = key < end ? share * held<T>(kv, kv_head, key, true).scale : 0.0f;
    sum = sum * kept + over_block<Sum>(share);  // its barriers also publish p
    top = highest;
    const int count = static_cast<int>(end - begin < kTile ? end - begin : kTile);
#pragma unroll
    for (int i = 0; i < kMostRounds; ++i) acc[i] *= kept;
    for (int j = group; j < count && group < groups; j += groups) {
      const T* v = value_row<T>(kv, kv_head, begin + j);
#pragma unroll
      for (int i = 0; i < kMostRounds; ++i) {
        const int d = dim + i * width;
        if (d < dims) acc[i] = fmaf(p[j], value_of(kv.type, v[d]) - value_zero, acc[i]);
      }
    }
  }
  if (step.sinks != nullptr) {
    const float sink = step.sinks[head];
    const float highest = Max::join(top, sink);
    const float kept = expf(top - highest);
    sum = sum * kept + expf(sink - highest);
    for (float& a : acc) a *= kept;
  }
#pragma unroll
  for (int i = 0; i < kMostRounds; ++i) {
    if (i * width >= dims) break;
    __syncthreads();
    parts[threadIdx.x] = acc[i];
    __syncthreads();
    const int d = dim + i * width;
    if (group != 0 || d >= dims) continue;
    float all = 0;
    for (int g = 0; g < groups; ++g) all += parts[g * width + dim];
    put_out(step, token * step.ldo + head * kv.value_dim + d, bad ? NAN : all / sum);
  }
}

__global__ void forget(long long* first_bad, long long token) {
  wait_for_previous();
  if (*first_bad >= token) *first_bad = INT64_MAX;
}

void attend_slowly(NibbleCudaContext* context, const CudaStep& step) {
  const size_t shared = static_cast<size_t>(step.kv.key_dim + 2 * kTile) * sizeof(float);
  for (int64_t begin = 0; begin < step.m; begin += kMostRows) {
    const int64_t rows = step.m - begin < kMostRows ? step.m - begin : kMostRows;
    const dim3 grid(static_cast<unsigned>(step.heads), static_cast<unsigned>(rows));
    with_type(step.kv.type, [&]<class T>() {
      start(context, "attention", attend_to_all<T>, grid, kTile, shared, step, begin);
    });
  }
}

}  // namespace

void attend(NibbleCudaContext* context, const CudaStep* step) {
  const bool fast = fits_tensor_cores(*context, *step);
  if (fast && step->m == 1) return decode(context, *step);
  if (fast && fits_warpgroups(*step)) {
    return context->note("attention", launch_warpgroups(*step, context->enter()));
  }
  const int64_t warps = step->m * (step->heads + 2 * step->kv.heads);
  with_type(step->kv.type, [&]<class T>() {
    start(context, "append", keep_tokens<T>, dim3(blocks_for(warps * kWarp)), kThreads, 0, *step);
  });
  if (fast) return prefill(context, *step);
  attend_slowly(context, *step);
}

void forget_bad(NibbleCudaContext* context, long long* first_bad, int64_t token) {
  start(context, "forget", forget, dim3(1), 1, 0, first_bad, token);
}

}  // namespace nibble::kernels::cuda
