// norm.h on a card: a block for each row. Rows that are aligned stay in registers between the sum
// and the result, and their weights come while the kernel before still runs.
#include <algorithm>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/functions.h"

namespace nibble::kernels::cuda {
namespace {

constexpr int kMostThreads = 1024;
constexpr int kMostVectors = 4;  // of a thread

template <class Y>
__global__ void __launch_bounds__(kMostThreads)
    rms_norm_vectors(const float* weight, int64_t n, float eps, int add_one, const float* delta,
                     int64_t ldd, float* residual, const float* x, int64_t ldx, Y* y, int64_t ldy) {
  let_next_start();
  const int64_t row = blockIdx.x;
  const int64_t first = int64_t{threadIdx.x} * 4;
  const int64_t step = int64_t{blockDim.x} * 4;
  const float none = add_one != 0 ? 0.0f : 1.0f;
  float4 w[kMostVectors];
  float4 v[kMostVectors];
#pragma unroll
  for (int i = 0; i < kMostVectors; ++i) {
    const int64_t at = first + i * step;
    w[i] = {none, none, none, none};
    if (weight != nullptr && at < n) w[i] = *reinterpret_cast<const float4*>(weight + at);
  }
  wait_for_previous();
  float4 d[kMostVectors];  // all are asked for before anything is written, which may be x
#pragma unroll
  for (int i = 0; i < kMostVectors; ++i) {
    const int64_t at = first + i * step;
    v[i] = d[i] = {0, 0, 0, 0};
    if (at >= n) continue;
    v[i] = *reinterpret_cast<const float4*>(x + row * ldx + at);
    if (delta != nullptr) d[i] = *reinterpret_cast<const float4*>(delta + row * ldd + at);
  }
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kMostVectors; ++i) {
    const int64_t at = first + i * step;
    if (delta != nullptr && at < n) {
      v[i] = {v[i].x + d[i].x, v[i].y + d[i].y, v[i].z + d[i].z, v[i].w + d[i].w};
      *reinterpret_cast<float4*>(residual + row * ldx + at) = v[i];
    }
    squares = fmaf(v[i].x, v[i].x, fmaf(v[i].y, v[i].y, squares));
    squares = fmaf(v[i].z, v[i].z, fmaf(v[i].w, v[i].w, squares));
  }
  squares = over_block<Sum>(squares);
  const float factor = 1.0f / sqrtf(squares / static_cast<float>(n) + eps);
  const float one = add_one != 0 ? 1.0f : 0.0f;
#pragma unroll
  for (int i = 0; i < kMostVectors; ++i) {
    const int64_t at = first + i * step;
    if (at >= n) continue;
    put_4({v[i].x * factor * (w[i].x + one), v[i].y * factor * (w[i].y + one),
           v[i].z * factor * (w[i].z + one), v[i].w * factor * (w[i].w + one)},
          y + row * ldy + at);
  }
}

// 256 threads or fewer where that is enough: several blocks on a multiprocessor hide what one waits
// for.
int threads_for(int64_t n) {
  const int64_t most = (n / 4 + kWarp - 1) / kWarp;
  const int64_t least = (most + kMostVectors - 1) / kMostVectors;
  constexpr int64_t kUsual = kThreads / kWarp;
  return static_cast<int>(std::max(std::min(most, kUsual), least)) * kWarp;
}

bool aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

template <class Y>
__global__ void rms_norm_rows(const float* weight, int64_t n, float eps, int add_one,
                              const float* delta, int64_t ldd, float* residual, const float* x,
                              int64_t ldx, Y* y, int64_t ldy) {
  let_next_start();
  wait_for_previous();
  const int64_t row = blockIdx.x;
  const float* from = x + row * ldx;
  float squares = 0;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
    float v = from[i];
    if (delta != nullptr) {
      v += delta[row * ldd + i];
      residual[row * ldx + i] = v;
    }
    squares = fmaf(v, v, squares);
  }
  squares = over_block<Sum>(squares);
  const float factor = 1.0f / sqrtf(squares / static_cast<float>(n) + eps);
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {  // each thread its own elements again
    const float stored = weight != nullptr ? weight[i] : (add_one != 0 ? 0.0f : 1.0f);
    put(from[i] * factor * (add_one != 0 ? 1.0f + stored : stored), y + row * ldy + i);
  }
}

template <class Y>
__global__ void layer_norm_rows(const float* weight, const float* bias, int64_t n, float eps,
                                const float* x, int64_t ldx, Y* y, int64_t ldy) {
  let_next_start();
  wait_for_previous();
  const float* from = x + blockIdx.x * ldx;
  Y* to = y + blockIdx.x * ldy;
  float sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) sum += from[i];
  const float mean = over_block<Sum>(sum) / static_cast<float>(n);
  float squares = 0;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
    const float d = from[i] - mean;
    squares = fmaf(d, d, squares);
  }
  squares = over_block<Sum>(squares);
  const float factor = 1.0f / sqrtf(squares / static_cast<float>(n) + eps);
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
    float v = (from[i] - mean) * factor;
    if (weight != nullptr) v *= weight[i];
    if (bias != nullptr) v += bias[i];
    put(v, to + i);
  }
}

}  // namespace

void rms_norm(NibbleCudaContext* context, const float* weight, int64_t n, float eps, int add_one,
              const float* delta, int64_t ldd, float* residual, const float* x, int64_t ldx,
              void* y, int64_t ldy, int y_is_bf16, int64_t m) {
  const bool whole = n % 4 == 0 && ldd % 4 == 0 && ldx % 4 == 0 && ldy % 4 == 0 &&
                     aligned(weight) && aligned(delta) && aligned(x) && aligned(y) &&
                     n <= int64_t{4} * kMostThreads * kMostVectors;
  const dim3 grid(static_cast<unsigned>(m));
  with_held(y, y_is_bf16, [&]<class Y>(Y* to) {
    start(context, "rms_norm", whole ? rms_norm_vectors<Y> : rms_norm_rows<Y>, grid,
          whole ? threads_for(n) : kThreads, 0, weight, n, eps, add_one, delta, ldd, residual, x,
          ldx, to, ldy);
  });
}

void layer_norm(NibbleCudaContext* context, const float* weight, const float* bias, int64_t n,
                float eps, const float* x, int64_t ldx, void* y, int64_t ldy, int y_is_bf16,
                int64_t m) {
  with_held(y, y_is_bf16, [&]<class Y>(Y* to) {
    start(context, "layer_norm", layer_norm_rows<Y>, dim3(static_cast<unsigned>(m)), kThreads, 0,
          weight, bias, n, eps, x, ldx, to, ldy);
  });
}

}  // namespace nibble::kernels::cuda
