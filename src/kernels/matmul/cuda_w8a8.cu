// Codes times codes: x and the weight both e4m3, or both s8, multiplied by cuBLASLt as they are.
// Where it has kernels that scale rows and columns (e4m3 on Hopper) they are used; else a pass over
// the sums scales them.
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/functions.h"
#include "kernels/matmul/cuda_cublas.cuh"

namespace nibble::kernels::cuda {
namespace {

// y[m, n] = sum[m, n] * row_scale[n] * scale[m], four at a time; without scales, a copy. `sum` may
// be y.
template <class T>
__global__ void scale_sums(const T* sum, int64_t lds, const float* row_scale, const float* scale,
                           float* y, int64_t ldy, int64_t m, int64_t n) {
  const int64_t quads = n / 4;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < m * quads; i += step) {
    const int64_t row = i / quads;
    const int64_t at = i % quads * 4;
    const float of_token = scale == nullptr ? 1.0f : scale[row];
    T four[4];
    *reinterpret_cast<int4*>(four) = *reinterpret_cast<const int4*>(sum + row * lds + at);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float of_row = row_scale == nullptr ? 1.0f : row_scale[at + j];
      y[row * ldy + at + j] = static_cast<float>(four[j]) * of_row * of_token;
    }
  }
}

// Scaling in the product costs cuBLASLt 7 us and more where there are few tokens; a pass over the
// sums costs 2 us and their bytes twice. Measured on an H200 (docs/cuda-notebook.md).
bool scale_in_product(int64_t m, int64_t n) {
  constexpr int64_t kCheapPass = int64_t{1} << 20;
  return m > 64 && m * n > kCheapPass;
}

}  // namespace

void multiply_codes(NibbleCudaContext* context, const CudaWeight* weight, int integers,
                    const void* x, int64_t ldx, const float* scale, const float* row_scale,
                    void* sum, int64_t lds, float* y, int64_t ldy, int64_t m) {
  CublasLt& lt = *context->cublas;
  cudaStream_t stream = context->enter();
  const auto product = [&](In in, const OuterScales& scales) {
    const CublasLt::Shape shape = {weight->n,
                                   m,
                                   weight->k,
                                   ldx,
                                   weight->row_bytes,
                                   lds,
                                   static_cast<int64_t>(in),
                                   alignment(x),
                                   alignment(sum)};
    return multiply(lt, stream, shape, weight->code, x, sum, scales);
  };
  const bool scaled = integers == 0 && scale_in_product(m, weight->n) &&
                      product(In::kE4M3Scaled, {row_scale, scale});
  if (!scaled && !product(integers != 0 ? In::kS8 : In::kE4M3, {})) {
    return context->note("cuBLASLt", "a product of 8-bit codes was refused");
  }
  if (scaled && sum == y) return;
  const int blocks = blocks_for(m * weight->n / 4);
  if (integers != 0) {
    scale_sums<<<blocks, kThreads, 0, stream>>>(static_cast<const int32_t*>(sum), lds, row_scale,
                                                scale, y, ldy, m, weight->n);
  } else {
    scale_sums<<<blocks, kThreads, 0, stream>>>(static_cast<const float*>(sum), lds,
                                                scaled ? nullptr : row_scale,
                                                scaled ? nullptr : scale, y, ldy, m, weight->n);
  }
  context->launched("multiply_codes");
}

}  // namespace nibble::kernels::cuda
