// activation.h on a card: loops over (m, n), 16 bytes of x a thread, or an element where rows are
// not aligned to that.
#include "kernels/activation/cuda_functions.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/functions.h"

namespace nibble::kernels::cuda {
namespace {

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

__device__ inline float number(float v) { return v; }
__device__ inline float number(__nv_bfloat16 v) { return __bfloat162float(v); }

// 16 bytes of x, and of up, a thread, where rows are aligned to that.
template <class X>
constexpr int kTogether = 16 / sizeof(X);
template <class X>
struct alignas(16) Together {
  X v[kTogether<X>];
};
__device__ inline void put_together(const float (&v)[4], float* to) {
  put_4({v[0], v[1], v[2], v[3]}, to);
}
__device__ inline void put_together(const float (&v)[4], __nv_bfloat16* to) {
  put_4({v[0], v[1], v[2], v[3]}, to);
}
__device__ inline void put_together(const float (&v)[8], float* to) {
  put_4({v[0], v[1], v[2], v[3]}, to);
  put_4({v[4], v[5], v[6], v[7]}, to + 4);
}
__device__ inline void put_together(const float (&v)[8], __nv_bfloat16* to) {
  *reinterpret_cast<uint4*>(to) = {bf16_pair(v[0], v[1]), bf16_pair(v[2], v[3]),
                                   bf16_pair(v[4], v[5]), bf16_pair(v[6], v[7])};
}
template <class X, class Y>
__global__ void __launch_bounds__(kThreads)
    activate_together(Activation f, const X* x, int64_t ldx, const X* up, int64_t ldu, Y* y,
                      int64_t ldy, int64_t m, int64_t n) {
  let_next_start();
  wait_for_previous();
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kTogether<X>;
  if (i >= n) return;
  for (int64_t row = blockIdx.y; row < m; row += gridDim.y) {
    const auto a = *reinterpret_cast<const Together<X>*>(x + row * ldx + i);
    Together<X> b = a;
    if (up != nullptr) b = *reinterpret_cast<const Together<X>*>(up + row * ldu + i);
    float v[kTogether<X>];
#pragma unroll
    for (int j = 0; j < kTogether<X>; ++j) v[j] = number(a.v[j]);
    apply(f, v);
    if (up != nullptr) {
#pragma unroll
      for (int j = 0; j < kTogether<X>; ++j) v[j] *= number(b.v[j]);
    }
    put_together(v, y + row * ldy + i);
  }
}

// One element, for run().
template <class X, class Y>
struct Activate {
  Activation f;
  const X* x;
  int64_t ldx;
  const X* up;
  int64_t ldu;
  Y* y;
  int64_t ldy;
  __device__ void operator()(int64_t i, int64_t j) const {
    float v[1] = {number(x[i * ldx + j])};
    apply(f, v);
    put(up != nullptr ? v[0] * number(up[i * ldu + j]) : v[0], y + i * ldy + j);
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

void activate(NibbleCudaContext* context, int function, const void* x, int64_t ldx, const void* up,
              int64_t ldu, int x_is_bf16, void* y, int64_t ldy, int y_is_bf16, int64_t m,
              int64_t n) {
  const auto f = static_cast<Activation>(function);
  const auto with = [&]<class X, class Y>(const X* from, Y* to) {
    constexpr int64_t kCount = kTogether<X>;
    const auto aligned = [](const void* rows, int64_t ld) {
      return reinterpret_cast<uintptr_t>(rows) % 16 == 0 && ld % kCount == 0;
    };
    const auto* with_up = static_cast<const X*>(up);
    if (n % kCount != 0 || !aligned(x, ldx) || !aligned(up, up != nullptr ? ldu : 0) ||
        !aligned(y, ldy)) {
      return run(context, "activate", m, n, Activate<X, Y>{f, from, ldx, with_up, ldu, to, ldy});
    }
    const dim3 grid(static_cast<unsigned>((n / kCount + kThreads - 1) / kThreads),
                    static_cast<unsigned>(m < kMostRows ? m : kMostRows));
    start(context, "activate", activate_together<X, Y>, grid, kThreads, 0, f, from, ldx, with_up,
          ldu, to, ldy, m, n);
  };
  with_held(y, y_is_bf16, [&]<class Y>(Y* to) {
    if (x_is_bf16 != 0) {
      with(static_cast<const __nv_bfloat16*>(x), to);
    } else {
      with(static_cast<const float*>(x), to);
    }
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
