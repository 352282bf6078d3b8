// attention.h on a card, for any type, size and window: a block for each head of each query token.
// It goes over the keys in tiles of kTile: each thread scores one key, the softmax is carried from
// tile to tile, then each thread sums one dimension (or some) of the values. The cache has the
// layout of kv_cache.h, in which neighbouring threads read neighbouring keys.
#include "kernels/attention/kv_cache.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/functions.h"

namespace nibble::kernels::cuda {
namespace {

constexpr int kTile = 128;      // keys, and threads of a block
constexpr int kMostRounds = kMostCudaDim / kTile;  // dimensions of the values a thread may have

__device__ float to_float(float v) { return v; }
__device__ float to_float(__half v) { return __half2float(v); }
__device__ float to_float(__nv_bfloat16 v) { return __bfloat162float(v); }
template <class T>
__device__ T from_float(float v);
template <>
__device__ float from_float<float>(float v) {
  return v;
}
template <>
__device__ __half from_float<__half>(float v) {
  return __float2half_rn(v);
}
template <>
__device__ __nv_bfloat16 from_float<__nv_bfloat16>(float v) {
  return __float2bfloat16_rn(v);
}

template <class T>
__device__ T* keys_of(const CudaKv& kv, int64_t head, int64_t token) {
  const void* page = kv.pages[token / kv.page_tokens];
  auto* bytes = static_cast<char*>(const_cast<void*>(page));
  const int64_t at = token % kv.page_tokens;
  constexpr int64_t kBlock = KvCache::kBlockTokens;
  return reinterpret_cast<T*>(bytes + head * kv.head_bytes) + at / kBlock * kv.key_dim * kBlock +
         at % kBlock;  // dimension d stands at d * kBlock
}

template <class T>
__device__ T* values_of(const CudaKv& kv, int64_t head, int64_t token) {
  const void* page = kv.pages[token / kv.page_tokens];
  auto* bytes = static_cast<char*>(const_cast<void*>(page));
  return reinterpret_cast<T*>(bytes + head * kv.head_bytes + kv.key_bytes) +
         token % kv.page_tokens * kv.value_pad;
}

template <class T>
__global__ void append_tokens(CudaKv kv, const float* k, int64_t ldk, const float* v, int64_t ldv,
                              int64_t first, int64_t m) {
  const int64_t width = kv.key_dim + kv.value_dim;
  const int64_t count = m * kv.heads * width;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const int64_t d = i % width;
    const int64_t head = i / width % kv.heads;
    const int64_t token = i / width / kv.heads;
    if (d < kv.key_dim) {
      keys_of<T>(kv, head, first + token)[d * KvCache::kBlockTokens] =
          from_float<T>(k[token * ldk + head * kv.key_dim + d]);
    } else {
      const int64_t e = d - kv.key_dim;
      values_of<T>(kv, head, first + token)[e] =
          from_float<T>(v[token * ldv + head * kv.value_dim + e]);
    }
  }
}

// Shared memory: q (key_dim), p (kTile), then the sums of the groups of threads (kTile).
template <class T>
__global__ void __launch_bounds__(kTile)
    attend(CudaAttention config, CudaKv kv, const float* q, int64_t ldq, int64_t position,
           float* out, int64_t ldo) {
  extern __shared__ float shared[];
  float* query = shared;
  float* p = shared + kv.key_dim;
  const int64_t head = blockIdx.x;
  const int64_t token = blockIdx.y;
  const int64_t kv_head = head / (config.heads / kv.heads);
  const int64_t end = position + token + 1;
  const int64_t first = config.window > 0 && end > config.window ? end - config.window : 0;
  for (int64_t d = threadIdx.x; d < kv.key_dim; d += kTile) {
    query[d] = q[token * ldq + head * kv.key_dim + d];
  }
  // Thread t sums dimension t % width of the keys t / width, + groups, ... of a tile.
  const int dims = static_cast<int>(kv.value_dim);
  const int width = dims < kTile ? dims : kTile;
  const int groups = kTile / width;
  const int group = static_cast<int>(threadIdx.x) / width;  // those left over get groups
  const int dim = static_cast<int>(threadIdx.x) % width;
  float acc[kMostRounds] = {};
  float top = -INFINITY;
  float sum = 0;
  for (int64_t begin = first; begin < end; begin += kTile) {
    __syncthreads();  // the query is there; p is read
    const int64_t key = begin + threadIdx.x;
    float score = -INFINITY;
    if (key < end) {
      const T* k = keys_of<T>(kv, kv_head, key);
      float dot = 0;
      for (int64_t d = 0; d < kv.key_dim; ++d) {
        dot = fmaf(query[d], to_float(k[d * KvCache::kBlockTokens]), dot);
      }
      score = dot * config.scale;
      if (config.soft_cap > 0) score = config.soft_cap * tanhf(score / config.soft_cap);
    }
    const float highest = Max::join(top, over_block<Max>(score));
    const float kept = expf(top - highest);  // 0 the first time
    const float share = key < end ? expf(score - highest) : 0.0f;
    p[threadIdx.x] = share;
    sum = sum * kept + over_block<Sum>(share);  // its barriers also publish p
    top = highest;
    const int count = static_cast<int>(end - begin < kTile ? end - begin : kTile);
#pragma unroll
    for (int i = 0; i < kMostRounds; ++i) acc[i] *= kept;
    for (int j = group; j < count && group < groups; j += groups) {
      const T* v = values_of<T>(kv, kv_head, begin + j);
#pragma unroll
      for (int i = 0; i < kMostRounds; ++i) {
        const int d = dim + i * width;
        if (d < dims) acc[i] = fmaf(p[j], to_float(v[d]), acc[i]);
      }
    }
  }
  if (config.sinks != nullptr) {
    const float sink = config.sinks[head];
    const float highest = Max::join(top, sink);
    const float kept = expf(top - highest);
    sum = sum * kept + expf(sink - highest);
    for (float& a : acc) a *= kept;
  }
  float* parts = p + kTile;
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
    out[token * ldo + head * kv.value_dim + d] = all / sum;
  }
}

// call.operator()<T>() with the type that the cache holds.
template <class Call>
void with_type(int32_t type, const Call& call) {
  switch (static_cast<KvType>(type)) {
    case KvType::kBf16:
      return call.template operator()<__nv_bfloat16>();
    case KvType::kF16:
      return call.template operator()<__half>();
    default:
      return call.template operator()<float>();
  }
}

}  // namespace

void append(NibbleCudaContext* context, const CudaKv* kv, const float* k, int64_t ldk,
            const float* v, int64_t ldv, int64_t first, int64_t m) {
  const int blocks = blocks_for(m * kv->heads * (kv->key_dim + kv->value_dim));
  with_type(kv->type, [&]<class T>() {
    append_tokens<T>
        <<<blocks, kThreads, 0, context->enter()>>>(*kv, k, ldk, v, ldv, first, m);
  });
  context->launched("append");
}

void attention(NibbleCudaContext* context, const CudaAttention* config, const CudaKv* kv,
               const float* q, int64_t ldq, int64_t position, int64_t m, float* out,
               int64_t ldo) {
  const size_t shared = static_cast<size_t>(kv->key_dim + 2 * kTile) * sizeof(float);
  for (int64_t begin = 0; begin < m; begin += kMostRows) {
    const int64_t rows = m - begin < kMostRows ? m - begin : kMostRows;
    const dim3 grid(static_cast<unsigned>(config->heads), static_cast<unsigned>(rows));
    with_type(kv->type, [&]<class T>() {
      attend<T><<<grid, kTile, shared, context->enter()>>>(
          *config, *kv, q + begin * ldq, ldq, position + begin, out + begin * ldo, ldo);
    });
  }
  context->launched("attention");
}

}  // namespace nibble::kernels::cuda
