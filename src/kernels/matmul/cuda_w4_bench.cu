// Checks and times the W4A16 products of cuda_w4_wgmma.cu on a card, as a program of its own:
//
//   cuda_w4_bench check            every tile, split and group against f64 on the host
//   cuda_w4_bench time 4 32,64     microseconds a call in a CUDA graph, weights rotated over 200 MB
//   cuda_w4_bench sweep 4 32 FILE  of all tiles and splits
//   (4z, 8z: of weights with zeros)
//
// The CMake option NIBBLE_BENCH builds it; no test needs it.
#include <cublas_v2.h>
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "kernels/matmul/cuda_w4_bench.cuh"

namespace nibble::kernels::cuda {
namespace {

__global__ void fill_random(uint32_t* to, int64_t count, uint32_t seed, uint32_t keep,
                            uint32_t set) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    uint32_t h = static_cast<uint32_t>(i) * 2654435761u + seed;
    h ^= h >> 15, h *= 2246822519u, h ^= h >> 13, h *= 3266489917u, h ^= h >> 16;
    to[i] = (h & keep) | set;
  }
}
// Normal numbers, two bf16 a word.
__global__ void fill_normal(__nv_bfloat16* to, int64_t count, uint32_t seed, float size) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    float sum = 0;
    uint32_t h = static_cast<uint32_t>(i) * 2654435761u + seed;
    for (int j = 0; j < 4; ++j) {
      h ^= h >> 15, h *= 2246822519u, h ^= h >> 13, h *= 3266489917u, h ^= h >> 16;
      sum += static_cast<float>(h) / 4294967296.0f - 0.5f;
    }
    to[i] = __float2bfloat16(sum * 1.732f * size);
  }
}
__global__ void read_all(const uint4* from, int64_t count, uint32_t* out) {
  uint32_t all = 0;
#pragma unroll 4
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    const uint4 v = from[i];
    all ^= v.x ^ v.y ^ v.z ^ v.w;
  }
  if (all == 0x9e3779b9u) *out = all;
}

cudaStream_t stream;

// Microseconds a call, of `calls` in a graph, the median of replays.
double graph_us(int calls, const std::function<bool(int)>& call) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  FINE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  bool fine = true;
  for (int i = 0; i < calls; ++i) fine = call(i) && fine;
  FINE(cudaStreamEndCapture(stream, &graph));
  if (!fine) {
    cudaGetLastError();
    cudaGraphDestroy(graph);
    return -1;
  }
  FINE(cudaGraphInstantiate(&exec, graph, 0));
  cudaEvent_t a, b;
  FINE(cudaEventCreate(&a));
  FINE(cudaEventCreate(&b));
  std::vector<double> all;
  double total = 0;
  for (int i = 0; i < 12 && (i < 5 || total < 40); ++i) {
    FINE(cudaEventRecord(a, stream));
    FINE(cudaGraphLaunch(exec, stream));
    FINE(cudaEventRecord(b, stream));
    FINE(cudaStreamSynchronize(stream));
    float ms = 0;
    FINE(cudaEventElapsedTime(&ms, a, b));
    total += ms;
    if (i >= 2) all.push_back(ms * 1000.0 / calls);
  }
  cudaEventDestroy(a);
  cudaEventDestroy(b);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}

struct Blas {
  using Gemm = cublasStatus_t (*)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int,
                                  int, const void*, const void*, cudaDataType, int, const void*,
                                  cudaDataType, int, const void*, void*, cudaDataType, int,
                                  cublasComputeType_t, cublasGemmAlgo_t);
  cublasHandle_t handle = nullptr;
  Gemm gemm = nullptr;
  void* space = nullptr;
  Blas() {
    void* library = dlopen("libcublas.so.13", RTLD_NOW);
    if (library == nullptr) library = dlopen("/usr/local/cuda/lib64/libcublas.so.13", RTLD_NOW);
    if (library == nullptr) return;
    const auto create =
        reinterpret_cast<decltype(&cublasCreate_v2)>(dlsym(library, "cublasCreate_v2"));
    const auto set =
        reinterpret_cast<decltype(&cublasSetStream_v2)>(dlsym(library, "cublasSetStream_v2"));
    const auto workspace =
        reinterpret_cast<decltype(&cublasSetWorkspace_v2)>(dlsym(library, "cublasSetWorkspace_v2"));
    if (create == nullptr || create(&handle) != CUBLAS_STATUS_SUCCESS) return;
    set(handle, stream);
    FINE(cudaMalloc(&space, 64 << 20));
    workspace(handle, space, 64 << 20);
    gemm = reinterpret_cast<Gemm>(dlsym(library, "cublasGemmEx"));
  }
  bool product(const __nv_bfloat16* panel, const __nv_bfloat16* x, __nv_bfloat16* y, int n, int k,
               int m) const {
    const float one = 1, none = 0;
    return gemm != nullptr &&
           gemm(handle, CUBLAS_OP_T, CUBLAS_OP_N, n, m, k, &one, panel, CUDA_R_16BF, k, x,
                CUDA_R_16BF, k, &none, y, CUDA_R_16BF, n, CUBLAS_COMPUTE_32F,
                CUBLAS_GEMM_DEFAULT) == CUBLAS_STATUS_SUCCESS;
  }
};

// One product twice, for a profiler.
int once(int n, int k, int m, const W4Choice& choice) {
  W4Args a;
  a.n = n, a.k = k, a.m = m, a.ldx = k, a.ldy = n, a.y_is_bf16 = true;
  const auto fill = [](int64_t bytes, uint32_t keep, uint32_t set) {
    void* p = nullptr;
    FINE(cudaMalloc(&p, bytes));
    fill_random<<<1024, 256>>>(static_cast<uint32_t*>(p), bytes / 4, 5, keep, set);
    return p;
  };
  a.codes = fill(int64_t{n} * k / 2, ~0u, 0);
  a.scales = fill(int64_t{n} * k / 64, 0x007f007f, 0x3c003c00);
  a.x = static_cast<__nv_bfloat16*>(fill(int64_t{m} * k * 2, 0x807f807f, 0x3f003f00));
  a.y = fill(int64_t{m} * n * 2, ~0u, 0);
  a.workspace = fill(static_cast<int64_t>(w4_workspace(processors())), 0, 0);
  for (int i = 0; i < 2; ++i) FINE(launch_w4_wgmma(a, choice));
  FINE(cudaDeviceSynchronize());
  return 0;
}

// What may be worth a look for m tokens.
bool is_plausible(const W4Choice& c, int n, int m) {
  if (c.tokens <= 64 && m > 2 * c.tokens) return false;
  // A tile that a smaller one could hold as well.
  const int token_tiles = up(m, c.tokens) / c.tokens;
  const int held = up(m, token_tiles) / token_tiles;
  if (c.tokens > 32 && held + (c.tokens > 64 ? 32 : 16) <= c.tokens) return false;
  const int count = up(n, c.rows) / c.rows * token_tiles;
  constexpr int kPlaces = 132;
  if (c.split > 1 && (count * c.split > kPlaces || count * c.split * 2 < kPlaces)) return false;
  return c.split != 1 || count >= 48;
}

// The library on bf16 weights, and on a panel that is made first. Destroys the pool.
void time_library(const Blas& blas, W4Args a, uint8_t* pool, int64_t pool_bytes) {
  const int64_t panel_bytes = int64_t{a.n} * a.k * 2;
  const int panels = static_cast<int>(std::max<int64_t>(
      1, std::min<int64_t>(pool_bytes / panel_bytes, 200000000 / panel_bytes + 1)));
  __nv_bfloat16* panel = nullptr;
  FINE(cudaMalloc(&panel, panel_bytes));
  auto* y = static_cast<__nv_bfloat16*>(a.y);
  const double made =
      graph_us(8, [&](int) { return launch_w4_panel(a, 0, a.n, panel, a.k) == cudaSuccess; });
  std::printf("%dx%d panel %.1f us; panel and library:", a.n, a.k, made);
  for (const int m : {256, 512, 1024, 2048, 4096}) {
    const double both = graph_us(4, [&](int) {
      return launch_w4_panel(a, 0, a.n, panel, a.k) == cudaSuccess &&
             blas.product(panel, a.x, y, a.n, a.k, m);
    });
    std::printf(" m %d %.1f", m, both);
  }
  cudaFree(panel);
  fill_normal<<<2048, 256>>>(reinterpret_cast<__nv_bfloat16*>(pool), panels * panel_bytes / 2, 3,
                             0.02f);
  FINE(cudaDeviceSynchronize());
  std::printf("\n%dx%d library:", a.n, a.k);
  for (const int m : {32, 128, 256, 1024, 4096}) {
    const double us = graph_us(m >= 1024 ? 4 : std::max(panels, 8), [&](int i) {
      return blas.product(reinterpret_cast<__nv_bfloat16*>(pool + i % panels * panel_bytes), a.x, y,
                          a.n, a.k, m);
    });
    std::printf(" m %d %.1f", m, us);
  }
  std::printf("\n");
}

// For each shape and m: what is chosen; with `sweep` all that can be, to `path`, the best on the
// screen.
int time_all(int bits, bool zeros, const std::vector<int>& ms, bool sweep, bool library,
             const char* path) {
  FILE* file = path != nullptr ? std::fopen(path, "a") : nullptr;
  FINE(cudaStreamCreate(&stream));
  const Blas blas;
  uint8_t* pool = nullptr;  // packed weights and panels
  const int64_t pool_bytes = int64_t{2} << 30;
  FINE(cudaMalloc(&pool, pool_bytes));
  uint8_t* workspace = nullptr;
  FINE(cudaMalloc(&workspace, w4_workspace(processors())));
  FINE(cudaMemset(workspace, 0, w4_workspace(processors())));
  __nv_bfloat16 *x = nullptr, *y = nullptr;
  FINE(cudaMalloc(&x, int64_t{4096} * 14336 * 2));
  FINE(cudaMalloc(&y, int64_t{4096} * 57344 * 2));
  fill_normal<<<1024, 256>>>(x, int64_t{4096} * 14336, 99, 1.0f);
  const int shapes[][2] = {{4096, 4096},  {28672, 4096}, {4096, 14336},
                           {57344, 8192}, {1024, 4096},  {8192, 8192}};
  for (const auto& [n, k] : shapes) {
    const int64_t code_bytes = int64_t{n} * k * bits / 8;
    const int64_t scale_bytes = int64_t{n} * (k / 128) * 2;
    const int64_t zero_bytes = zeros ? scale_bytes / 2 : 0;
    const int64_t one = code_bytes + scale_bytes + zero_bytes;
    const int copies = std::max<int>(2, static_cast<int>(200000000 / one) + 1);
    fill_random<<<2048, 256>>>(reinterpret_cast<uint32_t*>(pool), copies * one / 4, 5, ~0u, 0);
    for (int i = 0; i < copies; ++i) {
      fill_random<<<256, 256>>>(reinterpret_cast<uint32_t*>(pool + i * one + code_bytes),
                                scale_bytes / 4, 9, 0x007f007f, 0x3c003c00);
      fill_random<<<256, 256>>>(
          reinterpret_cast<uint32_t*>(pool + i * one + code_bytes + scale_bytes), zero_bytes / 4, 7,
          0x0f0f0f0f, 0);
    }
    FINE(cudaDeviceSynchronize());
    auto* out = reinterpret_cast<uint32_t*>(y);
    const double read = graph_us(std::max(copies, 24), [&](int i) {
      read_all<<<132 * 8, 512, 0, stream>>>(reinterpret_cast<uint4*>(pool + i % copies * one),
                                            one / 16, out);
      return true;
    });
    std::printf("%dx%d read %.1f\n", n, k, read);
    W4Args a;
    a.bits = bits, a.n = n, a.k = k, a.group = 128, a.x = x, a.ldx = k, a.y = y, a.ldy = n,
    a.y_is_bf16 = true;
    a.workspace = workspace, a.stream = stream;
    const auto of_copy = [&](int i) {
      a.codes = pool + i % copies * one;
      a.scales = pool + i % copies * one + code_bytes;
      if (zeros) a.zeros = pool + i % copies * one + code_bytes + scale_bytes;
    };
    for (const int m : ms) {
      a.m = m;
      const int calls = m >= 1024 ? std::max(copies / 4, 4) : std::max(copies, 24);
      const auto time = [&](const W4Choice& c) {
        of_copy(0);
        usleep(8000);  // the card is at its power limit: some rest before each
        return graph_us(calls, [&](int i) {
          of_copy(i);
          return launch_w4_wgmma(a, c) == cudaSuccess;
        });
      };
      std::vector<std::pair<double, std::string>> found;
      for (W4Choice c : tiles()) {
        for (const int split : {0, 1, 2, 3, 4, 8}) {
          c.split = split;
          if (!sweep || !is_plausible(c, n, m) || !w4_can(a, c)) continue;
          const double us = time(c);
          if (us < 0) continue;
          found.emplace_back(us, name(c));
          if (file != nullptr)
            std::fprintf(file, "%d %d %d %s %.2f\n", n, k, m, name(c).c_str(), us);
        }
      }
      std::sort(found.begin(), found.end());
      const W4Choice chosen = choose_w4(a, processors());
      const double mine = time(chosen);
      if (file != nullptr)
        std::fprintf(file, "%d %d %d chosen:%s %.2f\n", n, k, m, name(chosen).c_str(), mine);
      std::printf("%d %s %.1f", m, name(chosen).c_str(), mine);
      for (size_t i = 0; i < std::min<size_t>(found.size(), 3); ++i) {
        std::printf(" | %s %.1f", found[i].second.c_str(), found[i].first);
      }
      std::printf(sweep ? "\n" : "; ");
      std::fflush(stdout);
      if (file != nullptr) std::fflush(file);
    }
    std::printf("\n");
    if (library) time_library(blas, a, pool, pool_bytes);
    std::fflush(stdout);
  }
  if (file != nullptr) std::fclose(file);
  return 0;
}

}  // namespace
}  // namespace nibble::kernels::cuda

int main(int argc, char** argv) {
  using namespace nibble::kernels::cuda;
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "check") return check(argc > 2 ? std::atoi(argv[2]) : 4) != 0;
  if ((what == "time" || what == "sweep") && argc > 3) {
    std::vector<int> ms;
    for (const char* at = argv[3]; at != nullptr; at = std::strchr(at, ',')) {
      if (*at == ',') ++at;
      ms.push_back(std::atoi(at));
    }
    return time_all(std::atoi(argv[2]), std::strchr(argv[2], 'z') != nullptr, ms, what == "sweep",
                    std::getenv("LIBRARY") != nullptr, argc > 4 ? argv[4] : nullptr);
  }
  if (what == "once" && argc == 11) {
    const auto arg = [&](int i) { return std::atoi(argv[i]); };
    return once(arg(2), arg(3), arg(4), {arg(5), arg(6), arg(7) != 0, arg(8), arg(9), arg(10)});
  }
  std::printf(
      "usage: cuda_w4_bench check [BITS] | time or sweep BITS[z] M,M,... [FILE] | once N K M ROWS "
      "TOKENS SUMS SPLIT WIDE SLICES\n");
  return 2;
}
