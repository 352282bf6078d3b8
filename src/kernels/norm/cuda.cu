// norm.h on a card: a block for each row.
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/functions.h"

namespace nibble::kernels::cuda {
namespace {

__global__ void rms_norm_rows(const float* weight, int64_t n, float eps, int add_one,
                              const float* delta, int64_t ldd, float* residual, const float* x,
                              int64_t ldx, float* y, int64_t ldy) {
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
    y[row * ldy + i] = from[i] * factor * (add_one != 0 ? 1.0f + stored : stored);
  }
}

__global__ void layer_norm_rows(const float* weight, const float* bias, int64_t n, float eps,
                                const float* x, int64_t ldx, float* y, int64_t ldy) {
  const float* from = x + blockIdx.x * ldx;
  float* to = y + blockIdx.x * ldy;
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
    to[i] = v;
  }
}

}  // namespace

void rms_norm(NibbleCudaContext* context, const float* weight, int64_t n, float eps, int add_one,
              const float* delta, int64_t ldd, float* residual, const float* x, int64_t ldx,
              float* y, int64_t ldy, int64_t m) {
  rms_norm_rows<<<static_cast<unsigned>(m), kThreads, 0, context->enter()>>>(
      weight, n, eps, add_one, delta, ldd, residual, x, ldx, y, ldy);
  context->launched("rms_norm");
}

void layer_norm(NibbleCudaContext* context, const float* weight, const float* bias, int64_t n,
                float eps, const float* x, int64_t ldx, float* y, int64_t ldy, int64_t m) {
  layer_norm_rows<<<static_cast<unsigned>(m), kThreads, 0, context->enter()>>>(weight, bias, n, eps,
                                                                               x, ldx, y, ldy);
  context->launched("layer_norm");
}

}  // namespace nibble::kernels::cuda
