// y = x W^T for few tokens: a warp for each row of W, which reads the codes once and multiplies
// them with up to kMostTokens rows of x. And the look-up of single rows.
#include "kernels/cuda/functions.h"
#include "kernels/matmul/cuda_codes.cuh"
#include "kernels/matmul/cuda_tiles.cuh"

namespace nibble::kernels::cuda {
namespace {

constexpr int kMostTokens = 8;
constexpr int kRows = kThreads / kWarp;  // of a block

template <int kBits, int kTokens>
__global__ void __launch_bounds__(kThreads)
    matvec_rows(CudaWeight w, const float* x, int64_t ldx, float* y, int64_t ldy) {
  __shared__ float values[256];
  load_values<kBits>(w, values);
  let_next_start();
  wait_for_previous();
  const int64_t n = int64_t{blockIdx.x} * kRows + threadIdx.x / kWarp;
  if (n >= w.n) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int k_end = static_cast<int>(w.k);
  float sum[kTokens] = {};
  for (int k = lane * kChunk; k < k_end; k += kWarp * kChunk) {
    float v[kChunk];
    weights_of<kBits>(w, values, n, k, v);
#pragma unroll
    for (int m = 0; m < kTokens; ++m) {
      const auto* from = reinterpret_cast<const float4*>(x + m * ldx + k);
      const float4 a = from[0];
      const float4 b = from[1];
      sum[m] = fmaf(v[0], a.x, sum[m]);
      sum[m] = fmaf(v[1], a.y, sum[m]);
      sum[m] = fmaf(v[2], a.z, sum[m]);
      sum[m] = fmaf(v[3], a.w, sum[m]);
      sum[m] = fmaf(v[4], b.x, sum[m]);
      sum[m] = fmaf(v[5], b.y, sum[m]);
      sum[m] = fmaf(v[6], b.z, sum[m]);
      sum[m] = fmaf(v[7], b.w, sum[m]);
    }
  }
#pragma unroll
  for (int m = 0; m < kTokens; ++m) {
    const float all = over_warp<Sum>(sum[m]);
    if (lane == 0) y[m * ldy + n] = all;
  }
}

template <int kBits, int kTokens>
void run_matvec(NibbleCudaContext* context, const CudaWeight& w, const float* x, int64_t ldx,
                float* y, int64_t ldy, int64_t tokens) {
  if constexpr (kTokens > 1) {
    if (tokens < kTokens) {
      return run_matvec<kBits, kTokens - 1>(context, w, x, ldx, y, ldy, tokens);
    }
  }
  const dim3 grid(static_cast<unsigned>((w.n + kRows - 1) / kRows));
  start(context, "matvec", matvec_rows<kBits, kTokens>, grid, kThreads, 0, w, x, ldx, y, ldy);
}

// A block for each of the rows.
template <int kBits>
__global__ void look_up_rows(CudaWeight w, const int32_t* ids, float* out) {
  __shared__ float values[256];
  load_values<kBits>(w, values);
  float* to = out + blockIdx.x * w.k;
  const int k_end = static_cast<int>(w.k);
  for (int k = static_cast<int>(threadIdx.x) * kChunk; k < k_end; k += blockDim.x * kChunk) {
    float v[kChunk];
    weights_of<kBits>(w, values, ids[blockIdx.x], k, v);
    for (int i = 0; i < kChunk && k + i < k_end; ++i) {
      to[w.order != nullptr ? w.order[k + i] : k + i] = v[i];
    }
  }
}

}  // namespace

void matvec(NibbleCudaContext* context, const CudaWeight* weight, const float* x, int64_t ldx,
            float* y, int64_t ldy, int64_t m) {
  with_bits(*weight, [&]<int kBits>() {
    for (int64_t done = 0; done < m; done += kMostTokens) {
      run_matvec<kBits, kMostTokens>(context, *weight, x + done * ldx, ldx, y + done * ldy, ldy,
                                     m - done);
    }
  });
}

void look_up(NibbleCudaContext* context, const CudaWeight* weight, const int32_t* ids, int64_t m,
             float* out) {
  if (weight->tiles.bits != 0) return look_up_tiles(context, *weight, ids, m, out);
  with_bits(*weight, [&]<int kBits>() {
    look_up_rows<kBits>
        <<<static_cast<unsigned>(m), kThreads, 0, context->enter()>>>(*weight, ids, out);
  });
  context->launched("look_up");
}

}  // namespace nibble::kernels::cuda
