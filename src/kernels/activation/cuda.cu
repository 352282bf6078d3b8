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
__global__ void __launch_bounds__(kThreads) for_elements(int64_t m, int64_t n, Body body) {
  let_next_start();
  wait_for_previous();
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t row = blockIdx.y; row < m; row += gridDim.y) {
    for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += step) body(row, i);
  }
}

template <class Body>
void run(NibbleCudaContext* context, const char* name, int64_t m, int64_t n, const Body& body) {
  if (m <= 0 || n <= 0) return;
  const int64_t rows = m < kMostRows ? m : kMostRows;
  const dim3 grid(static_cast<unsigned>(blocks_for(n)), static_cast<unsigned>(rows));
  start(context, name, for_elements<Body>, grid, kThreads, 0, m, n, body);
}

// Four neighbours a thread, where rows are aligned to 16 bytes.
template <class Y>
__global__ void __launch_bounds__(kThreads)
    activate_fours(Activation f, const float* x, int64_t ldx, const float* up, int64_t ldu, Y* y,
                   int64_t ldy, int64_t m, int64_t n) {
  let_next_start();
  wait_for_previous();
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * 4;
  if (i >= n) return;
  for (int64_t row = blockIdx.y; row < m; row += gridDim.y) {
    float4 v = *reinterpret_cast<const float4*>(x + row * ldx + i);
    float4 u = {1, 1, 1, 1};
    if (up != nullptr) u = *reinterpret_cast<const float4*>(up + row * ldu + i);
    v = {apply(f, v.x) * u.x, apply(f, v.y) * u.y, apply(f, v.z) * u.z, apply(f, v.w) * u.w};
    put_4(v, y + row * ldy + i);
  }
}

// One element, for run().
template <class Y>
struct Activate {
  Activation f;
  const float* x;
  int64_t ldx;
  const float* up;
  int64_t ldu;
  Y* y;
  int64_t ldy;
  __device__ void operator()(int64_t i, int64_t j) const {
    const float v = apply(f, x[i * ldx + j]);
    put(up != nullptr ? v * up[i * ldu + j] : v, y + i * ldy + j);
  }
};

// A block column for each of the rows.
__global__ void __launch_bounds__(kThreads) add_rows_to_all(CudaRows rows, int64_t m) {
  let_next_start();
  wait_for_previous();
  const CudaRows::Row& row = rows.row[blockIdx.z];
  const int64_t j = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (j >= row.n) return;
  const float v = row.values[j];
  for (int64_t i = blockIdx.y; i < m; i += gridDim.y) row.y[i * row.ldy + j] += v;
}

}  // namespace

void activate(NibbleCudaContext* context, int function, const float* x, int64_t ldx,
              const float* up, int64_t ldu, void* y, int64_t ldy, int y_is_bf16, int64_t m,
              int64_t n) {
  const auto f = static_cast<Activation>(function);
  const auto aligned = [](const void* from, int64_t ld) {
    return reinterpret_cast<uintptr_t>(from) % 16 == 0 && ld % 4 == 0;
  };
  const bool in_fours =
      n % 4 == 0 && aligned(x, ldx) && aligned(up, up != nullptr ? ldu : 0) && aligned(y, ldy);
  const dim3 grid(static_cast<unsigned>((n / 4 + kThreads - 1) / kThreads),
                  static_cast<unsigned>(m < kMostRows ? m : kMostRows));
  with_held(y, y_is_bf16, [&]<class Y>(Y* to) {
    if (in_fours) {
      return start(context, "activate", activate_fours<Y>, grid, kThreads, 0, f, x, ldx, up, ldu,
                   to, ldy, m, n);
    }
    run(context, "activate", m, n, Activate<Y>{f, x, ldx, up, ldu, to, ldy});
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

void add_rows(NibbleCudaContext* context, const CudaRows* rows, int64_t m) {
  int64_t widest = 0;
  for (int i = 0; i < rows->count; ++i) widest = rows->row[i].n > widest ? rows->row[i].n : widest;
  const dim3 grid(static_cast<unsigned>((widest + kThreads - 1) / kThreads),
                  static_cast<unsigned>(m < kMostRows ? m : kMostRows),
                  static_cast<unsigned>(rows->count));
  start(context, "add_rows", add_rows_to_all, grid, kThreads, 0, *rows, m);
}

}  // namespace nibble::kernels::cuda
