// A card and its stream, as the .cu files see them. Not for the program.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "device/cuda_abi.h"

namespace nibble::kernels {
class CublasLt;  // matmul/cuda_gemm.cu
struct CublasLtDeleter {
  void operator()(CublasLt* handle) const;
};
}  // namespace nibble::kernels

struct NibbleCudaStaging;

struct NibbleCudaContext {
  NibbleCudaContext() { ++live; }
  ~NibbleCudaContext() { --live; }
  NibbleCudaContext(const NibbleCudaContext&) = delete;
  NibbleCudaContext& operator=(const NibbleCudaContext&) = delete;

  static inline std::atomic<int> live = 0;  // in this program
  int index = 0;
  int major = 0;
  int multiprocessors = 1;
  cudaStream_t stream = nullptr;
  NibbleCudaStaging* staging = nullptr;  // device/cuda_device.cu; made when it is first asked for
  void* tile_work = nullptr;             // matmul/cuda_tiles.cu: of products in tiles; on Hopper
  // For blocks that count who is last; whoever is puts its counter back to 0.
  static constexpr int64_t kCounters = 4096;
  // Behind them, what the blocks of sample() have found so far: 0 between two of its kernels.
  static constexpr int64_t kBestBytes = 16;
  unsigned* counters = nullptr;
  cudaEvent_t marked = nullptr;
  bool failed = false;
  bool failed_before_recording = false;
  char error[512] = {};
  std::unique_ptr<nibble::kernels::CublasLt, nibble::kernels::CublasLtDeleter> cublas;

  // The stream, with its card made current.
  cudaStream_t enter() {
    cudaSetDevice(index);
    return stream;
  }
  // Keeps the first error.
  void note(const char* what, const char* text);
  void note(const char* what, cudaError_t code) {
    if (code != cudaSuccess) note(what, cudaGetErrorString(code));
  }
  // After a kernel launch.
  void launched(const char* kernel) { note(kernel, cudaGetLastError()); }
};
