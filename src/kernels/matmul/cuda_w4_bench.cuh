// What cuda_w4_bench.cu and cuda_w4_check.cu share.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "kernels/matmul/cuda_w4_wgmma.cuh"

namespace nibble::kernels::cuda {

#define FINE(call)                                                              \
  do {                                                                          \
    if (const cudaError_t e = (call); e != cudaSuccess) {                       \
      std::printf("line %d: %s: %s\n", __LINE__, #call, cudaGetErrorString(e)); \
      std::fflush(stdout);                                                      \
      std::exit(1);                                                             \
    }                                                                           \
  } while (false)

inline int up(int a, int b) { return (a + b - 1) / b * b; }

template <class T>
T* to_card(const std::vector<T>& v) {
  void* p = nullptr;
  FINE(cudaMalloc(&p, v.size() * sizeof(T) + 256));
  FINE(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
  return static_cast<T*>(p);
}

inline int processors() {
  int count = 0;
  FINE(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, 0));
  return count;
}

inline std::string name(const W4Choice& c) {
  char text[64];
  const int size =
      std::snprintf(text, sizeof text, "%dx%d%s/%d%s%s", c.rows, c.tokens, c.on_sums ? "s" : "w",
                    c.split, c.wide > 1 ? "p" : "", c.slices > 1 ? "k" : "");
  if (c.stages != 0) std::snprintf(text + size, sizeof text - size, "r%d", c.stages);
  return text;
}

// Every tile that may be compiled; w4_can tells.
inline std::vector<W4Choice> tiles() {
  std::vector<W4Choice> out;
  for (const int rows : {64, 128, 256})
    for (const int tokens : {32, 48, 64, 80, 96, 112, 120, 128, 144, 160, 192})
      for (const bool sums : {true, false})
        for (const int wide : {1, 2})
          for (const int slices : {1, 2}) out.push_back({rows, tokens, sums, 0, wide, slices});
  return out;
}

// Compares products of all kinds with float64 on the host and prints those that are wrong: how
// many.
int check(int bits);

}  // namespace nibble::kernels::cuda
