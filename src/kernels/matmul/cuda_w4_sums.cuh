// What becomes of a tile's sums: parts of it are added, through the workspace or the memory of a
// cluster, and stored as y.
#pragma once

#include "kernels/matmul/cuda_sm90.cuh"
#include "kernels/matmul/cuda_w4_work.cuh"

namespace nibble::kernels::cuda::w4 {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// One number, as y's type.
__device__ inline void store(const Work& w, int row, int token, float v) {
  if (row >= w.n || token >= w.m) return;
  const int64_t at = token * w.ldy + row;
  if (w.y_is_bf16) {
    static_cast<__nv_bfloat16*>(w.y)[at] = __float2bfloat16_rn(v);
  } else {
    static_cast<float*>(w.y)[at] = v;
  }
}

// Rows row to row + 3, row a multiple of 4.
__device__ inline void store_rows(const Work& w, int row, int token, float4 v) {
  if (!w.y_in_quads) {
    store(w, row, token, v.x);
    store(w, row + 1, token, v.y);
    store(w, row + 2, token, v.z);
    store(w, row + 3, token, v.w);
  } else if (w.y_is_bf16) {
    const __nv_bfloat162 low = __floats2bfloat162_rn(v.x, v.y);
    const __nv_bfloat162 high = __floats2bfloat162_rn(v.z, v.w);
    *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(w.y) + token * w.ldy + row) = make_uint2(
        *reinterpret_cast<const uint32_t*>(&low), *reinterpret_cast<const uint32_t*>(&high));
  } else {
    *reinterpret_cast<float4*>(static_cast<float*>(w.y) + token * w.ldy + row) = v;
  }
}

__device__ inline void put(float* to, float v) { *to = v; }
__device__ inline void put(__nv_bfloat16* to, float v) { *to = __float2bfloat16_rn(v); }

// A thread's sums of a strip, as they lie in wgmma's registers: its first row and token. These are
// loops of few instructions: whatever is run once a product is fetched for it.
template <class T, int kCount>
__device__ void store_each(const Work& w, int row, int token, const float (&d)[kCount]) {
  T* to = static_cast<T*>(w.y) + token * w.ldy + row;
  const bool first = row < w.n;
  const bool second = row + 8 < w.n;
#pragma unroll
  for (int j = 0; j < kCount; j += 4) {
    const int t = token + j * 2;
    if (t < w.m && first) put(to, d[j]);
    if (t < w.m && second) put(to + 8, d[j + 2]);
    if (t + 1 < w.m && first) put(to + w.ldy, d[j + 1]);
    if (t + 1 < w.m && second) put(to + w.ldy + 8, d[j + 3]);
    to += 8 * w.ldy;
  }
}

template <int kCount>
__device__ void store_sums(const Work& w, int row, int token, const float (&d)[kCount]) {
  if (!w.y_is_bf16) return store_each<float>(w, row, token, d);
  if (!w.y_in_pairs) return store_each<__nv_bfloat16>(w, row, token, d);
  // Lanes of rows g and g ^ 1 trade, and each stores two rows of one token.
  const bool odd = (threadIdx.x & 4) != 0;
  __nv_bfloat162 pair[kCount / 2];
#pragma unroll
  for (int j = 0; j < kCount; j += 2) {
    const float other = __shfl_xor_sync(0xffffffffu, odd ? d[j] : d[j + 1], 4);
    pair[j / 2] = __floats2bfloat162_rn(odd ? other : d[j], odd ? d[j + 1] : other);
  }
  row &= ~1;
  token += odd ? 1 : 0;
  auto* to = static_cast<__nv_bfloat16*>(w.y) + token * w.ldy + row;
  const bool first = row < w.n;
  const bool second = row + 8 < w.n;
#pragma unroll
  for (int j = 0; j < kCount; j += 4) {
    const bool is = token + j * 2 < w.m;
    if (is && first) *reinterpret_cast<__nv_bfloat162*>(to) = pair[j / 2];
    if (is && second) *reinterpret_cast<__nv_bfloat162*>(to + 8) = pair[j / 2 + 1];
    to += 8 * w.ldy;
  }
}

template <class S>
struct Sums {
  static constexpr int kCount = S::kCount;
  static constexpr int kQuads = kCount / 4;
  using Registers = float[kCount];
  using AllRegisters = float[S::kWide][kCount];

  static __device__ uint32_t* flag_of(const Work& w, int block) {
    return w.flags + block * kMostWarps + threadIdx.x / 32;
  }

  // A part of a tile, for the block that has its first step: for the same warp of it, which `tell`
  // tells of it. What was stored before takes its time to be seen by others, so there should be
  // work between the two.
  static __device__ void leave(const Work& w, int me, const AllRegisters& all) {
    float4* to = part_of(w, me);
#pragma unroll
    for (int s = 0; s < S::kWide; ++s) {
      const Registers& d = all[s];
#pragma unroll
      for (int i = 0; i < kQuads; ++i) {
        __stcg(to + (s * kQuads + i) * S::kOwners,
               make_float4(d[4 * i], d[4 * i + 1], d[4 * i + 2], d[4 * i + 3]));
      }
    }
  }
  static __device__ float4* part_of(const Work& w, int block) {
    return w.partial + static_cast<int64_t>(block) * S::kWide * kQuads * S::kOwners + threadIdx.x;
  }
  static __device__ void tell(const Work& w, int me) {
    __threadfence();
    __syncwarp();
    if (threadIdx.x % 32 == 0) sm90::store_release(flag_of(w, me), 1);
  }

  static __device__ void gather(const Work& w, const Segments& all, const Segment& g,
                                AllRegisters& sums) {
    const int end = (g.tile + 1) * w.steps;
    int last = all.me();
    while (all.begin_of(last + 1) < end) ++last;
    for (int i = all.me() + 1 + static_cast<int>(threadIdx.x) % 32; i <= last; i += 32) {
      uint32_t* flag = flag_of(w, all.slot(i));
      while (sm90::load_acquire(flag) == 0) {
      }
      *flag = 0;  // for the next launch
    }
    __syncwarp();
#pragma unroll(S::kWide* kQuads <= 8 ? 4 : 1)
    for (int p = all.me() + 1; p <= last; ++p) {
      const float4* at = part_of(w, all.slot(p));
#pragma unroll
      for (int s = 0; s < S::kWide; ++s) {
        Registers& d = sums[s];
#pragma unroll
        for (int i = 0; i < kQuads; ++i) {
          const float4 v = __ldcg(at + (s * kQuads + i) * S::kOwners);
          d[4 * i] += v.x, d[4 * i + 1] += v.y, d[4 * i + 2] += v.z, d[4 * i + 3] += v.w;
        }
      }
    }
  }

  // d *= the scales of rows that are strip's and of row + 8.
  static __device__ void scale(const Work& w, int strip, Registers& d) {
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32 % 4;
    const auto* from = reinterpret_cast<const uint32_t*>(
        w.scales + static_cast<int64_t>(min(strip, w.strips - 1)) * w.groups * 2 * kStrip);
    const float2 s = w4_scales(from[lane / 4 * 4 + warp], w.scales_are_bf16);
#pragma unroll
    for (int j = 0; j < kCount; ++j) d[j] *= j / 2 % 2 == 0 ? s.x : s.y;
  }

  // The blocks of a cluster add their sums, each for its share of the tokens. All consumers.
  static __device__ void stage(uint32_t at, int row, const Registers& d) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const int token = j / 4 * 8 + threadIdx.x % 4 * 2 + j % 2;
      const uint32_t to = at + (token * S::kLd + row + j / 2 % 2 * 8) * 4;
      sm90::store_shared(to, d[j]);
    }
  }
  static __device__ void add_cluster(const Work& w, uint32_t at, int first_row, int first_token) {
    const int rank = static_cast<int>(sm90::cluster_rank());
    const int tokens = S::kTokens / w.split;
    constexpr int kRowQuads = S::kRows / 4;
    for (int i = threadIdx.x; i < tokens * kRowQuads; i += S::kConsumers) {
      const int token = rank * tokens + i / kRowQuads;
      const int row = i % kRowQuads * 4;
      if (first_token + token >= w.m || first_row + row >= w.n) continue;
      float4 sum = make_float4(0, 0, 0, 0);
      for (int p = 0; p < w.split; ++p) {
#pragma unroll
        for (int s = 0; s < S::kSlices; ++s) {
          const float4 v = sm90::load_of_cluster(
              at + s * S::kSliceBytes + (token * S::kLd + row) * 4, static_cast<uint32_t>(p));
          sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
        }
      }
      store_rows(w, first_row + row, first_token + token, sum);
    }
  }
};

#endif

}  // namespace nibble::kernels::cuda::w4
