// Codes times codes: x and the weight both e4m3, or both s8, multiplied by cuBLASLt as they are.
// Where it has kernels that scale rows and columns (e4m3 on Hopper) they are used; else a pass over
// the sums scales them.
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/functions.h"
#include "kernels/matmul/cuda_cublas.cuh"

namespace nibble::kernels::cuda {
namespace {

// y[m, n] = sum[m, n] * row_scale[n] * scale[m], four n a thread, a token a row of blocks; without
// scales, a copy. `sum` may be y.
template <class T>
__global__ void scale_sums(const T* sum, int64_t lds, const float* row_scale, const float* scale,
                           float* y, int64_t ldy, int64_t n) {
  const int64_t at = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * 4;
  if (at >= n) return;
  const int64_t row = blockIdx.y;
  const float of_token = scale == nullptr ? 1.0f : scale[row];
  T four[4];
  *reinterpret_cast<int4*>(four) = *reinterpret_cast<const int4*>(sum + row * lds + at);
  float out[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const float of_row = row_scale == nullptr ? 1.0f : row_scale[at + j];
    out[j] = static_cast<float>(four[j]) * of_row * of_token;
  }
  float* to = y + row * ldy + at;
  if (reinterpret_cast<uintptr_t>(to) % 16 == 0) {
    *reinterpret_cast<float4*>(to) = {out[0], out[1], out[2], out[3]};
  } else {
    for (int j = 0; j < 4; ++j) to[j] = out[j];
  }
}

template <class T>
void run_scale_sums(cudaStream_t stream, const void* sums, int64_t lds, const float* row_scale,
                    const float* scale, float* y, int64_t ldy, int64_t m, int64_t n) {
  const auto* sum = static_cast<const T*>(sums);
  const auto blocks = static_cast<unsigned>((n / 4 + kThreads - 1) / kThreads);
  for (int64_t begin = 0; begin < m; begin += kMostRows) {
    const int64_t rows = m - begin < kMostRows ? m - begin : kMostRows;
    scale_sums<<<dim3(blocks, static_cast<unsigned>(rows)), kThreads, 0, stream>>>(
        sum + begin * lds, lds, row_scale, scale == nullptr ? nullptr : scale + begin,
        y + begin * ldy, ldy, n);
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
  const float* of_rows = scaled ? nullptr : row_scale;
  const float* of_tokens = scaled ? nullptr : scale;
  const auto run = integers != 0 ? &run_scale_sums<int32_t> : &run_scale_sums<float>;
  run(stream, sum, lds, of_rows, of_tokens, y, ldy, m, weight->n);
  context->launched("multiply_codes");
}

}  // namespace nibble::kernels::cuda
