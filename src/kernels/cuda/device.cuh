// What the .cu files share: sums and maxima over a block, and how many blocks a loop gets.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "device/cuda_context.h"
#include "kernels/cuda/abi.h"

namespace nibble::kernels::cuda {

constexpr int kWarp = 32;
constexpr int kThreads = 256;  // of a block, where nothing asks for another number

// Blocks for `count` elements, one a thread, at most so many that each is worth its start: loops
// go on by gridDim * blockDim.
inline int blocks_for(int64_t count) {
  const int64_t blocks = (count + kThreads - 1) / kThreads;
  constexpr int64_t kMost = 132 * 16;
  return static_cast<int>(blocks < 1 ? 1 : blocks > kMost ? kMost : blocks);
}

// Block indices are 31 bits in x, but 16 in y.
constexpr int64_t kMostRows = 65535;

// A kernel may be started while the one before it still runs (programmatic dependent launch). It
// first does what needs nothing of that one, then calls wait_for_previous(), before which it writes
// nothing; and it says with let_next_start() that the next may come to that point. That it says at
// once: the next then has the multiprocessors that the one before leaves (and weights come while
// this kernel, which is small, waits). Every kernel that start() starts must wait.
__device__ inline void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ inline void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" :::);
#endif
}

// Starts a kernel that calls wait_for_previous(); `early`: while the one before it still runs.
template <class... P, class... A>
cudaError_t launch(cudaStream_t stream, bool early, void (*kernel)(P...), dim3 grid, int threads,
                   size_t shared, const A&... args) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = early ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, static_cast<P>(args)...);
}

// The same for a context, which keeps the error. Only the code for Hopper starts early.
template <class... P, class... A>
void start(NibbleCudaContext* context, const char* name, void (*kernel)(P...), dim3 grid,
           int threads, size_t shared, const A&... args) {
  cudaStream_t stream = context->enter();
  context->note(name,
                launch(stream, context->major == 9, kernel, grid, threads, shared, args...));
}

// Numbers to rows of f32 or bf16.
__device__ inline void put(float v, float* to) { *to = v; }
__device__ inline void put(float v, __nv_bfloat16* to) { *to = __float2bfloat16_rn(v); }
__device__ inline uint32_t bf16_pair(float a, float b) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
__device__ inline void put_2(float2 v, float* to) { *reinterpret_cast<float2*>(to) = v; }
__device__ inline void put_2(float2 v, __nv_bfloat16* to) {
  *reinterpret_cast<uint32_t*>(to) = bf16_pair(v.x, v.y);
}
__device__ inline void put_4(float4 v, float* to) { *reinterpret_cast<float4*>(to) = v; }
__device__ inline void put_4(float4 v, __nv_bfloat16* to) {
  *reinterpret_cast<uint2*>(to) = {bf16_pair(v.x, v.y), bf16_pair(v.z, v.w)};
}
// call(to) with y as what it points to.
template <class Call>
void with_held(void* y, int is_bf16, const Call& call) {
  if (is_bf16 != 0) return call(static_cast<__nv_bfloat16*>(y));
  call(static_cast<float*>(y));
}

struct Sum {
  template <class T>
  static __device__ T join(T a, T b) {
    return a + b;
  }
};
struct Max {
  template <class T>
  static __device__ T join(T a, T b) {
    return a < b ? b : a;
  }
};
struct Min {
  template <class T>
  static __device__ T join(T a, T b) {
    return b < a ? b : a;
  }
};

template <class Op, class T>
__device__ T over_warp(T v) {
  for (int step = kWarp / 2; step > 0; step /= 2) {
    v = Op::join(v, __shfl_xor_sync(0xffffffffu, v, step));
  }
  return v;
}

// All threads of the block get the result; the order of the operations is fixed.
template <class Op, class T>
__device__ T over_block(T v) {
  __shared__ T part[kWarp];
  v = over_warp<Op>(v);
  const int warp = threadIdx.x / kWarp;
  __syncthreads();  // of an earlier call's readers
  if (threadIdx.x % kWarp == 0) part[warp] = v;
  __syncthreads();
  const int warps = (blockDim.x + kWarp - 1) / kWarp;
  T all = part[0];
  for (int i = 1; i < warps; ++i) all = Op::join(all, part[i]);
  return all;
}

}  // namespace nibble::kernels::cuda
