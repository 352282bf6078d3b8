// activation.h on a card: loops over (m, n), an element a thread.
#include "kernels/activation/activation.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/functions.h"

namespace nibble::kernels::cuda {
namespace {

__device__ float apply(Activation f, float x) {
  switch (f) {
    case Activation::kSilu:
      return x / (1.0f + expf(-x));
    case Activation::kGelu:
      return 0.5f * x * erfcf(-x * 0.70710678118654752f);
    case Activation::kGeluTanh:
      // (1 + tanh u) / 2 is the logistic function of 2 u; 2 sqrt(2 / pi) = 1.5957691.
      return x / (1.0f + expf(-x * fmaf(x * x, 0.044715f * 1.59576912f, 1.59576912f)));
    case Activation::kQuickGelu:
      return x / (1.0f + expf(-1.702f * x));
    case Activation::kRelu:
      return x < 0.0f ? 0.0f : x;
    case Activation::kRelu2:
      return x < 0.0f ? 0.0f : x * x;
  }
  return x;
}

// body(row, column) for every element of (m, n).
template <class Body>
__global__ void for_elements(int64_t m, int64_t n, Body body) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < m * n; i += step) {
    body(i / n, i % n);
  }
}

template <class Body>
void run(NibbleCudaContext* context, const char* name, int64_t m, int64_t n, const Body& body) {
  if (m <= 0 || n <= 0) return;
  for_elements<<<blocks_for(m * n), kThreads, 0, context->enter()>>>(m, n, body);
  context->launched(name);
}

}  // namespace

void activate(NibbleCudaContext* context, int function, const float* x, int64_t ldx,
              const float* up, int64_t ldu, float* y, int64_t ldy, int64_t m, int64_t n) {
  const auto f = static_cast<Activation>(function);
  run(context, "activate", m, n, [=] __device__(int64_t i, int64_t j) {
    const float v = apply(f, x[i * ldx + j]);
    y[i * ldy + j] = up != nullptr ? v * up[i * ldu + j] : v;
  });
}

void add_to(NibbleCudaContext* context, const float* x, int64_t ldx, float* y, int64_t ldy,
            int64_t m, int64_t n) {
  run(context, "add_to", m, n,
      [=] __device__(int64_t i, int64_t j) { y[i * ldy + j] += x[i * ldx + j]; });
}

void copy(NibbleCudaContext* context, const float* x, int64_t ldx, float* y, int64_t ldy, int64_t m,
          int64_t n) {
  run(context, "copy", m, n,
      [=] __device__(int64_t i, int64_t j) { y[i * ldy + j] = x[i * ldx + j]; });
}

void scale_by(NibbleCudaContext* context, float factor, float* y, int64_t n) {
  run(context, "scale_by", 1, n, [=] __device__(int64_t, int64_t j) { y[j] *= factor; });
}

void soft_cap(NibbleCudaContext* context, float cap, float* y, int64_t n) {
  run(context, "soft_cap", 1, n,
      [=] __device__(int64_t, int64_t j) { y[j] = cap * tanhf(y[j] / cap); });
}

}  // namespace nibble::kernels::cuda
