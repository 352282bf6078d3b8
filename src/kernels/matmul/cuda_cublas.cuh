// Products through cuBLASLt, which is opened at run time (cuda_gemm.cu). For the .cu files that
// have both factors as cuBLASLt takes them.
#pragma once

#include <cublasLt.h>

#include <array>
#include <map>
#include <optional>

#include "device/cuda_context.h"

namespace nibble::kernels {

// cuBLASLt's functions, its handle and what it was found best for each shape.
class CublasLt {
 public:
  static constexpr size_t kWorkspace = size_t{32} << 20;

  ~CublasLt() {
    if (workspace != nullptr) cudaFree(workspace);
    if (handle != nullptr) destroy(handle);
  }

  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulDescCreate) desc_create = nullptr;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;

  cublasLtHandle_t handle = nullptr;
  void* workspace = nullptr;
  // (n, m, k, ldx, ldp, ldy, In, alignment of x, of y, Out)
  using Shape = std::array<int64_t, 10>;
  std::map<Shape, std::optional<cublasLtMatmulAlgo_t>> algorithms;  // nothing: there is none
};

namespace cuda {

// What both factors are.
enum class In : int64_t {
  kF32,
  kBf16,
  kE4M3,
  kE4M3Scaled,  // each number of y is multiplied by a scale of its row and one of its column
  kS8,
};

// What y is: of 32 bits, s32 for s8 and else f32; and whether the product is added to it.
enum class Out : int64_t { k32Bits, kAddedF32, kBf16 };

// For kE4M3Scaled: (n) of the panel's rows, (m) of x's.
struct OuterScales {
  const float* panel = nullptr;
  const float* x = nullptr;
};

// The largest power of two up to 256 that divides an address.
int64_t alignment(const void* address);

// y (m, n) = x (m, k) panel^T, panel (n, k). False: cuBLASLt has no way to do it.
bool multiply(CublasLt& lt, cudaStream_t stream, const CublasLt::Shape& shape, const void* panel,
              const void* x, void* y, const OuterScales& scales = {});

}  // namespace cuda
}  // namespace nibble::kernels
