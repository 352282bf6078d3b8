// y = x W^T for many tokens: rows of W are dequantized into a panel, which cuBLASLt multiplies. The
// library (half a gigabyte, part of the CUDA toolkit) is opened when a card is.
#include <dlfcn.h>

#include <cstdio>
#include <new>

#include "kernels/cuda/functions.h"
#include "kernels/matmul/cuda_codes.cuh"
#include "kernels/matmul/cuda_cublas.cuh"
#include "kernels/matmul/cuda_tiles.cuh"

namespace nibble::kernels {

void CublasLtDeleter::operator()(CublasLt* handle) const { delete handle; }

namespace cuda {
namespace {

void* open_library() {
  for (const char* name : {"libcublasLt.so.13", "/usr/local/cuda/lib64/libcublasLt.so.13",
                           "/usr/local/cuda/targets/x86_64-linux/lib/libcublasLt.so.13"}) {
    if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL); library != nullptr) return library;
  }
  return nullptr;
}

template <class Function>
bool load(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

bool load_all(void* library, CublasLt& lt) {
  return load(library, "cublasLtCreate", lt.create) &&
         load(library, "cublasLtDestroy", lt.destroy) &&
         load(library, "cublasLtMatmul", lt.matmul) &&
         load(library, "cublasLtMatmulDescCreate", lt.desc_create) &&
         load(library, "cublasLtMatmulDescDestroy", lt.desc_destroy) &&
         load(library, "cublasLtMatmulDescSetAttribute", lt.desc_set) &&
         load(library, "cublasLtMatrixLayoutCreate", lt.layout_create) &&
         load(library, "cublasLtMatrixLayoutDestroy", lt.layout_destroy) &&
         load(library, "cublasLtMatmulPreferenceCreate", lt.preference_create) &&
         load(library, "cublasLtMatmulPreferenceDestroy", lt.preference_destroy) &&
         load(library, "cublasLtMatmulPreferenceSetAttribute", lt.preference_set) &&
         load(library, "cublasLtMatmulAlgoGetHeuristic", lt.heuristic);
}

cudaDataType_t type_of(In in) {
  switch (in) {
    case In::kF32:
      return CUDA_R_32F;
    case In::kBf16:
      return CUDA_R_16BF;
    case In::kS8:
      return CUDA_R_8I;
    default:
      return CUDA_R_8F_E4M3;
  }
}

// The descriptions of one product. cuBLASLt counts columns first: Y^T (n, m) = P^T X^T with the
// panel P^T as (k, n), transposed, and X^T as (k, m).
struct Product {
  Product(CublasLt& library, const CublasLt::Shape& shape, const OuterScales& scales)
      : lt(library) {
    const auto [n, m, k, ldx, ldp, ldy, kind, of_x, of_y, kind_out] = shape;
    const cudaDataType_t in = type_of(static_cast<In>(kind));
    const bool integers = in == CUDA_R_8I;
    const cudaDataType_t of_sums = integers ? CUDA_R_32I : CUDA_R_32F;
    const cudaDataType_t out = static_cast<Out>(kind_out) == Out::kBf16 ? CUDA_R_16BF : of_sums;
    const cublasOperation_t transposed = CUBLAS_OP_T;
    fine = lt.desc_create(&desc, integers ? CUBLAS_COMPUTE_32I : CUBLAS_COMPUTE_32F, of_sums) ==
               CUBLAS_STATUS_SUCCESS &&
           set(CUBLASLT_MATMUL_DESC_TRANSA, transposed) &&
           lt.layout_create(&a, in, static_cast<uint64_t>(k), static_cast<uint64_t>(n), ldp) ==
               CUBLAS_STATUS_SUCCESS &&
           lt.layout_create(&b, in, static_cast<uint64_t>(k), static_cast<uint64_t>(m), ldx) ==
               CUBLAS_STATUS_SUCCESS &&
           lt.layout_create(&c, out, static_cast<uint64_t>(n), static_cast<uint64_t>(m), ldy) ==
               CUBLAS_STATUS_SUCCESS;
    if (static_cast<In>(kind) != In::kE4M3Scaled) return;
    constexpr auto kOuter = static_cast<int32_t>(CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
    fine = fine && set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, kOuter) &&
           set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, kOuter) &&
           set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, scales.panel) &&
           set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, scales.x);
  }
  template <class T>
  bool set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    return lt.desc_set(desc, attribute, &value, sizeof value) == CUBLAS_STATUS_SUCCESS;
  }
  ~Product() {
    if (c != nullptr) lt.layout_destroy(c);
    if (b != nullptr) lt.layout_destroy(b);
    if (a != nullptr) lt.layout_destroy(a);
    if (desc != nullptr) lt.desc_destroy(desc);
  }
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;

  CublasLt& lt;
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t a = nullptr;
  cublasLtMatrixLayout_t b = nullptr;
  cublasLtMatrixLayout_t c = nullptr;
  bool fine = false;
};

// Null: cuBLASLt has none for this card.
const cublasLtMatmulAlgo_t* best_algorithm(CublasLt& lt, const CublasLt::Shape& shape,
                                           const Product& product) {
  if (const auto known = lt.algorithms.find(shape); known != lt.algorithms.end()) {
    return known->second ? &*known->second : nullptr;
  }
  cublasLtMatmulPreference_t preference = nullptr;
  if (lt.preference_create(&preference) != CUBLAS_STATUS_SUCCESS) return nullptr;
  const size_t workspace = CublasLt::kWorkspace;
  const auto of_x = static_cast<uint32_t>(shape[7]);
  const auto of_y = static_cast<uint32_t>(shape[8]);
  lt.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                    sizeof workspace);
  lt.preference_set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &of_x, sizeof of_x);
  lt.preference_set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &of_y, sizeof of_y);
  lt.preference_set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &of_y, sizeof of_y);
  cublasLtMatmulHeuristicResult_t result{};
  int found = 0;
  const cublasStatus_t status = lt.heuristic(lt.handle, product.desc, product.a, product.b,
                                             product.c, product.c, preference, 1, &result, &found);
  lt.preference_destroy(preference);
  const bool fine = status == CUBLAS_STATUS_SUCCESS && found > 0;
  lt.algorithms.emplace(shape, fine ? std::optional(result.algo) : std::nullopt);
  return best_algorithm(lt, shape, product);
}

}  // namespace

// The largest power of two up to 256 that divides an address.
int64_t alignment(const void* address) {
  int64_t out = 1;
  while (out < 256 && reinterpret_cast<uintptr_t>(address) % (2 * out) == 0) out *= 2;
  return out;
}

bool multiply(CublasLt& lt, cudaStream_t stream, const CublasLt::Shape& shape, const void* panel,
              const void* x, void* y, const OuterScales& scales) {
  const Product product(lt, shape, scales);
  if (!product.fine) return false;
  const cublasLtMatmulAlgo_t* algorithm = best_algorithm(lt, shape, product);
  if (algorithm == nullptr) return false;
  const bool integers = static_cast<In>(shape[6]) == In::kS8;
  const float one = 1;
  const int32_t integer_one = 1;
  const int32_t none = 0;  // of either type
  const bool add = static_cast<Out>(shape[9]) == Out::kAddedF32;
  return lt.matmul(lt.handle, product.desc,
                   integers ? static_cast<const void*>(&integer_one) : &one, panel, product.a, x,
                   product.b, add ? static_cast<const void*>(&one) : &none, y, product.c, y,
                   product.c, algorithm, lt.workspace, CublasLt::kWorkspace,
                   stream) == CUBLAS_STATUS_SUCCESS;
}

namespace {

// Rows [first, first + rows) to panel (rows, ldp), in the order of the codes; zeros from k on.
template <int kBits, class Out>
__global__ void dequantize_rows(CudaWeight w, int64_t first, int64_t rows, Out* panel,
                                int64_t ldp) {
  __shared__ float values[256];
  load_values<kBits>(w, values);
  const int64_t chunks = ldp / kChunk;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < rows * chunks; i += step) {
    const int64_t row = i / chunks;
    const int k = static_cast<int>(i % chunks) * kChunk;
    float v[kChunk];
    weights_of<kBits>(w, values, first + row, k, v);
    Out* to = panel + row * ldp + k;
#pragma unroll
    for (int j = 0; j < kChunk; ++j) to[j] = static_cast<Out>(k + j < w.k ? v[j] : 0.0f);
  }
}

void dequantize(NibbleCudaContext* context, const CudaWeight& w, int64_t first, int64_t rows,
                void* panel, int64_t ldp, bool bf16) {
  const int blocks = blocks_for(rows * ldp / kChunk);
  with_bits(w, [&]<int kBits>() {
    if (bf16) {
      dequantize_rows<kBits><<<blocks, kThreads, 0, context->enter()>>>(
          w, first, rows, static_cast<__nv_bfloat16*>(panel), ldp);
    } else {
      dequantize_rows<kBits><<<blocks, kThreads, 0, context->enter()>>>(
          w, first, rows, static_cast<float*>(panel), ldp);
    }
  });
  context->launched("dequantize");
}

}  // namespace

const char* missing(NibbleCudaContext* context) {
  if (context->cublas != nullptr) return nullptr;
  context->enter();
  void* library = open_library();
  if (library == nullptr) {
    return "libcublasLt.so.13, a part of the CUDA 13 toolkit, was not found; install it or put its "
           "folder into LD_LIBRARY_PATH";
  }
  std::unique_ptr<CublasLt, CublasLtDeleter> lt(new (std::nothrow) CublasLt);
  if (lt == nullptr || !load_all(library, *lt)) return "libcublasLt.so.13 lacks a function";
  if (lt->create(&lt->handle) != CUBLAS_STATUS_SUCCESS ||
      cudaMalloc(&lt->workspace, CublasLt::kWorkspace) != cudaSuccess ||
      make_tile_work(context) != cudaSuccess) {
    cudaGetLastError();
    return "cuBLASLt cannot be started: the memory of the card may be taken";
  }
  context->cublas = std::move(lt);
  return nullptr;
}

void gemm(NibbleCudaContext* context, const CudaWeight* weight, const void* x, int64_t ldx,
          int bf16, void* panel, int64_t panel_bytes, void* y, int64_t ldy, int y_is_bf16, int add,
          int64_t m) {
  const bool tiles = weight->tiles.bits != 0;
  const int64_t ldp = tiles ? weight->tiles.k_pad : (weight->k + 31) / 32 * 32;
  const int64_t row_bytes = ldp * (bf16 != 0 ? 2 : 4);
  constexpr int64_t kStep = 64;
  const int64_t most = panel_bytes / row_bytes / kStep * kStep;
  for (int64_t first = 0; first < weight->n; first += most) {
    const int64_t rows = weight->n - first < most ? weight->n - first : most;
    if (tiles) {
      panel_of_tiles(context, *weight, first, rows, static_cast<__nv_bfloat16*>(panel), ldp);
    } else {
      dequantize(context, *weight, first, rows, panel, ldp, bf16 != 0);
    }
    char* to = static_cast<char*>(y) + first * (y_is_bf16 != 0 ? 2 : 4);
    const auto in = static_cast<int64_t>(bf16 != 0 ? In::kBf16 : In::kF32);
    const auto out = static_cast<int64_t>(y_is_bf16 != 0 ? Out::kBf16
                                          : add != 0     ? Out::kAddedF32
                                                         : Out::k32Bits);
    const CublasLt::Shape shape = {rows, m,  ldp,          ldx,           ldp,
                                   ldy,  in, alignment(x), alignment(to), out};
    if (!multiply(*context->cublas, context->enter(), shape, panel, x, to)) {
      context->note("cuBLASLt", "a product was refused");
    }
  }
}

namespace {

__global__ void read_all(const uint4* from, int64_t count, uint32_t* out) {
  uint32_t all = 0;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
#pragma unroll 4
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const uint4 v = from[i];
    all ^= v.x ^ v.y ^ v.z ^ v.w;
  }
  if (all == 0x9e3779b9u) *out = all;  // keeps the reads
}

// Random bits whose exponents are those of numbers around 1.
__global__ void fill_bf16(uint16_t* to, int64_t count) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const auto hash = static_cast<uint32_t>(i * 2654435761u) >> 7;
    to[i] = static_cast<uint16_t>(0x3f00u | (hash & 0x80ffu));
  }
}

// The best of several runs of `work`, in seconds; 0 when it failed.
template <class Work>
double best_seconds(NibbleCudaContext* context, const Work& work) {
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  if (cudaEventCreate(&begin) != cudaSuccess || cudaEventCreate(&end) != cudaSuccess) return 0;
  double best = 0;
  for (int i = 0; i < 6; ++i) {
    cudaEventRecord(begin, context->stream);
    work();
    cudaEventRecord(end, context->stream);
    if (cudaEventSynchronize(end) != cudaSuccess) return 0;
    float ms = 0;
    cudaEventElapsedTime(&ms, begin, end);
    if (i > 0 && (best == 0 || ms * 1e-3 < best)) best = ms * 1e-3;
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return best;
}

}  // namespace

double read_seconds(NibbleCudaContext* context, int64_t bytes) {
  context->enter();
  void* memory = nullptr;
  if (cudaMalloc(&memory, static_cast<size_t>(bytes) + 16) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  fill_bf16<<<blocks_for(bytes / 2), kThreads, 0, context->stream>>>(static_cast<uint16_t*>(memory),
                                                                     bytes / 2);
  auto* out = reinterpret_cast<uint32_t*>(static_cast<char*>(memory) + bytes);
  const double seconds = best_seconds(context, [&] {
    read_all<<<context->multiprocessors * 8, 512, 0, context->stream>>>(
        static_cast<const uint4*>(memory), bytes / 16, out);
  });
  cudaFree(memory);
  return seconds;
}

double product_seconds(NibbleCudaContext* context, int64_t n) {
  context->enter();
  char* memory = nullptr;
  const auto square = static_cast<size_t>(n * n);
  if (cudaMalloc(&memory, 8 * square) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  fill_bf16<<<blocks_for(2 * n * n), kThreads, 0, context->stream>>>(
      reinterpret_cast<uint16_t*>(memory), 2 * n * n);
  const auto bf16 = static_cast<int64_t>(In::kBf16);
  const auto f32 = static_cast<int64_t>(Out::k32Bits);
  const CublasLt::Shape shape = {n, n, n, n, n, n, bf16, 256, 256, f32};
  bool fine = true;
  const double seconds = best_seconds(context, [&] {
    fine = fine && multiply(*context->cublas, context->stream, shape, memory, memory + 2 * square,
                            reinterpret_cast<float*>(memory + 4 * square));
  });
  cudaFree(memory);
  return fine ? seconds : 0;
}

}  // namespace cuda
}  // namespace nibble::kernels
