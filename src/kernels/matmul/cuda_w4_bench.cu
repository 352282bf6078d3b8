// Checks and times the W4A16 products of cuda_w4_wgmma.cu on a card, as a program of its own:
//
//   cuda_w4_bench check            every tile, split and group against f64 on the host
//   cuda_w4_bench time 4 32,64     microseconds a call in a CUDA graph, weights rotated over 200 MB
//   cuda_w4_bench sweep 4 32 FILE  of all tiles and splits
//
// Built by hand (nvcc -std=c++20 -gencode arch=compute_90a,code=sm_90a -Isrc, with
// cuda_w4_wgmma.cu and cuda_w4_panel.cu); no test needs it.
#include <cublas_v2.h>
#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "kernels/matmul/cuda_w4_wgmma.cuh"

namespace nibble::kernels::cuda {
namespace {

#define FINE(call)                                                              \
  do {                                                                          \
    if (const cudaError_t e = (call); e != cudaSuccess) {                       \
      std::printf("line %d: %s: %s\n", __LINE__, #call, cudaGetErrorString(e)); \
      std::fflush(stdout);                                                      \
      std::exit(1);                                                             \
    }                                                                           \
  } while (false)

int up(int a, int b) { return (a + b - 1) / b * b; }

template <class T>
T* to_card(const std::vector<T>& v) {
  void* p = nullptr;
  FINE(cudaMalloc(&p, v.size() * sizeof(T) + 256));
  FINE(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
  return static_cast<T*>(p);
}

int processors() {
  int count = 0;
  FINE(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, 0));
  return count;
}

// ---- check
// -----------------------------------------------------------------------------------------------------------

struct Weight {
  int n, k, group, bits;
  bool bf16;
  bool zeros;
  std::vector<uint8_t> code;  // (n, k), with 8 or 128 where zeros are not given
  std::vector<float> scale;   // (n, groups)
  std::vector<int> zero;
  int groups() const { return (k + group - 1) / group; }
  double value(int r, int c) const {
    const int g = r * groups() + c / group;
    return (static_cast<int>(code[static_cast<size_t>(r) * k + c]) - zero[g]) * double{scale[g]};
  }
};

uint16_t half_bits(float v, bool bf16) {
  if (bf16) return __bfloat16_as_ushort(__float2bfloat16(v));
  return __half_as_ushort(__float2half(v));
}

Weight random_weight(std::mt19937& random, int n, int k, int group, int bits, bool bf16,
                     bool zeros) {
  Weight w{n, k, group, bits, bf16, zeros, {}, {}, {}};
  const int most = bits == 4 ? 16 : 256;
  w.code.resize(static_cast<size_t>(n) * k);
  for (auto& c : w.code) c = static_cast<uint8_t>(random() % most);
  w.scale.resize(static_cast<size_t>(n) * w.groups());
  w.zero.resize(w.scale.size());
  for (auto& s : w.scale) {
    const float v = 0.001f + 0.02f * static_cast<float>(random() % 4096) / 4096;
    s = bf16 ? __bfloat162float(__float2bfloat16(v)) : __half2float(__float2half(v));
  }
  for (auto& z : w.zero) z = zeros ? static_cast<int>(random() % most) : most / 2;
  return w;
}

struct OnCard {
  uint8_t* codes = nullptr;
  uint16_t* scales = nullptr;
  uint8_t* zeros = nullptr;
  void free() {
    cudaFree(codes);
    cudaFree(scales);
    cudaFree(zeros);
  }
};

OnCard pack(const Weight& w) {
  const int strips = up(w.n, 64) / 64, blocks = up(w.k, 64) / 64, groups = w.groups();
  const int word_count = w.bits == 4 ? 4 : 8;
  std::vector<uint8_t> codes(static_cast<size_t>(strips) * blocks * 512 * w.bits);
  auto* words = reinterpret_cast<uint32_t*>(codes.data());
  for (int s = 0; s < strips; ++s)
    for (int b = 0; b < blocks; ++b)
      for (int tile = 0; tile < 4; ++tile)
        for (int lane = 0; lane < 32; ++lane)
          for (int j = 0; j < 4; ++j) {
            uint32_t* to =
                words +
                (((static_cast<size_t>(s) * blocks + b) * 4 + tile) * 32 + lane) * word_count +
                j * word_count / 4;
            for (int i = 0; i < 4; ++i)
              for (int h = 0; h < 2; ++h) {
                const int row = s * 64 + tile * 16 + lane / 4 + i % 2 * 8;
                const int col = b * 64 + j * 16 + lane % 4 * 2 + i / 2 * 8 + h;
                uint32_t q = w.bits == 4 ? 8 : 128;
                if (row < w.n && col < w.k) q = w.code[static_cast<size_t>(row) * w.k + col];
                if (w.bits == 4) {
                  to[0] |= q << (4 * i + 16 * h);
                } else {
                  to[i / 2] |= ((q - 128) & 255) << (8 * (i % 2) + 16 * h);
                }
              }
          }
  std::vector<uint16_t> scales(static_cast<size_t>(strips) * groups * 64);
  std::vector<uint8_t> zeros(scales.size());
  for (int r = 0; r < strips * 64; ++r)
    for (int g = 0; g < groups; ++g) {
      const int in = r % 64, tile = in / 16, half = in / 8 % 2;
      const size_t at =
          (static_cast<size_t>(r / 64) * groups + g) * 64 + in % 8 * 8 + tile * 2 + half;
      if (r >= w.n) continue;
      scales[at] = half_bits(w.scale[static_cast<size_t>(r) * groups + g], w.bf16);
      const int z = w.zero[static_cast<size_t>(r) * groups + g];
      zeros[at] = static_cast<uint8_t>(w.bits == 4 ? z : z - 128);
    }
  return {to_card(codes), to_card(scales), w.zeros ? to_card(zeros) : nullptr};
}

constexpr int kGuard = 3;

std::string name(const W4Choice& c) {
  char text[64];
  const int size =
      std::snprintf(text, sizeof text, "%dx%d%s/%d%s%s%s", c.rows, c.tokens, c.on_sums ? "s" : "w",
                    c.split, c.wide > 1 ? "p" : "", c.slices > 1 ? "k" : "", c.pair ? "x" : "");
  if (c.stages != 0) std::snprintf(text + size, sizeof text - size, "r%d", c.stages);
  return text;
}

int failures = 0;

// One product, three times; every output must be written, none beside them, and all three the same.
void check_product(std::mt19937& random, const Weight& w, const OnCard& card, int m,
                   const W4Choice& choice, bool y_bf16, void* workspace) {
  const int kp = up(w.k, 64);
  std::vector<__nv_bfloat16> x(static_cast<size_t>(m) * kp);
  static const std::vector<__nv_bfloat16> kNormal = [] {
    std::mt19937 own(3);
    std::normal_distribution<float> normal;
    std::vector<__nv_bfloat16> v(1 << 18);
    for (auto& e : v) e = __float2bfloat16(normal(own));
    return v;
  }();
  for (int t = 0; t < m; ++t) {
    const size_t at = random() % (kNormal.size() - w.k);
    std::copy_n(kNormal.begin() + at, w.k, x.begin() + static_cast<size_t>(t) * kp);
  }
  const int64_t ldy = w.n + (random() % 2 != 0 ? kGuard : 4);
  const size_t bytes = static_cast<size_t>(m + 1) * ldy * (y_bf16 ? 2 : 4);
  W4Args a;
  a.codes = card.codes, a.scales = card.scales, a.zeros = card.zeros;
  a.bits = w.bits, a.n = w.n, a.k = w.k, a.group = w.group, a.scales_are_bf16 = w.bf16;
  auto* dx = to_card(x);
  a.x = dx, a.ldx = kp, a.m = m, a.ldy = ldy, a.y_is_bf16 = y_bf16, a.workspace = workspace;
  if (!w4_can(a, choice)) {
    cudaFree(dx);
    return;
  }
  std::vector<std::vector<uint8_t>> got(3, std::vector<uint8_t>(bytes));
  FINE(cudaMalloc(&a.y, bytes));
  for (auto& y : got) {
    FINE(cudaMemset(a.y, 0xff, bytes));
    FINE(launch_w4_wgmma(a, choice));
    FINE(cudaDeviceSynchronize());
    FINE(cudaMemcpy(y.data(), a.y, bytes, cudaMemcpyDeviceToHost));
  }
  cudaFree(a.y);
  cudaFree(dx);
  const auto at = [&](int64_t i) {
    if (y_bf16) return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(got[0].data())[i]);
    return reinterpret_cast<const float*>(got[0].data())[i];
  };
  int64_t unwritten = 0, beside = 0;
  for (int64_t i = 0; i < (m + 1) * ldy; ++i) {
    const bool inside = i / ldy < m && i % ldy < w.n;
    if (inside && std::isnan(at(i))) ++unwritten;
    if (!inside && !std::isnan(at(i))) ++beside;
  }
  double worst = 0;  // error over what rounding explains
  for (int i = 0; i < 200; ++i) {
    const int t = i < 40 ? m - 1 - i % std::min(m, 9) : static_cast<int>(random() % m);
    const int r = i % 40 < 20 ? w.n - 1 - i % std::min(w.n, 17) : static_cast<int>(random() % w.n);
    double sum = 0, square = 0, all = 0, of_group = 0, of_groups = 0;
    for (int c = 0; c < w.k; ++c) {
      const double p = w.value(r, c) * __bfloat162float(x[static_cast<size_t>(t) * kp + c]);
      sum += p, square += p * p, all += std::abs(p), of_group += p;
      if ((c + 1) % w.group == 0 || c + 1 == w.k) of_groups += std::abs(of_group), of_group = 0;
    }
    const bool rounded = !choice.on_sums && w.groups() > 1;
    double allowed = all * 4e-6;
    if (rounded) allowed += std::sqrt(square) * 0.006 + all * 2e-4;
    // An f16 scale becomes a bf16: all of a group is off by the same 2^-8 at most.
    if (rounded && !w.bf16) allowed += of_groups * 0.00391;
    if (y_bf16) allowed += std::abs(sum) * 0.004;
    worst = std::max(worst, std::abs(at(t * ldy + r) - sum) / (allowed + 1e-30));
  }
  const bool same = got[0] == got[1] && got[0] == got[2];
  if (unwritten != 0 || beside != 0 || !same || !(worst < 1)) {
    ++failures;
    if (failures < 40) {
      std::printf(
          "BAD %s n %d k %d m %d group %d bits %d zeros %d bf16 %d y_bf16 %d: unwritten %ld beside "
          "%ld same %d "
          "worst %.3g\n",
          name(choice).c_str(), w.n, w.k, m, w.group, w.bits, w.zeros, w.bf16, y_bf16,
          long(unwritten), long(beside), same, worst);
      std::fflush(stdout);
    }
  }
}

std::vector<W4Choice> tiles() {
  std::vector<W4Choice> out;
  for (const int rows : {128, 256})
    for (const int tokens : {32, 48, 64, 96, 128, 256})
      for (const bool sums : {true, false})
        for (const int wide : {1, 2})
          for (const int slices : {1, 2})
            for (const bool pair : {false, true})
              out.push_back({rows, tokens, sums, 0, wide, slices, pair});
  return out;
}

void check_panel(const Weight& w, const OnCard& card) {
  W4Args a;
  a.codes = card.codes, a.scales = card.scales, a.zeros = card.zeros;
  a.bits = w.bits, a.n = w.n, a.k = w.k, a.group = w.group, a.scales_are_bf16 = w.bf16;
  const int64_t ldp = up(w.k, 64) + 8;
  const int first = w.n > 128 ? 64 : 0;
  const int rows = w.n - first;
  std::vector<__nv_bfloat16> got(static_cast<size_t>(rows) * ldp);
  void* panel = nullptr;
  FINE(cudaMalloc(&panel, got.size() * 2));
  FINE(cudaMemset(panel, 0xff, got.size() * 2));
  FINE(launch_w4_panel(a, first, rows, static_cast<__nv_bfloat16*>(panel), ldp));
  FINE(cudaDeviceSynchronize());
  FINE(cudaMemcpy(got.data(), panel, got.size() * 2, cudaMemcpyDeviceToHost));
  cudaFree(panel);
  int64_t bad = 0;
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < w.k; ++c) {
      const double v = w.value(first + r, c);
      const double there = __bfloat162float(got[static_cast<size_t>(r) * ldp + c]);
      if (!(std::abs(v - there) <= std::abs(v) * (w.bf16 ? 0.00391 : 0.0079))) ++bad;
    }
  if (bad != 0) {
    ++failures;
    std::printf("BAD panel n %d k %d group %d bits %d: %ld\n", w.n, w.k, w.group, w.bits,
                long(bad));
  }
}

// Whatever the size, what is chosen can run.
void check_choices(int bits) {
  for (const int n : {1, 64, 576, 4096, 8192, 14336, 16896, 28672, 57344, 200000}) {
    for (const int k : {32, 64, 576, 4096, 6144, 8192, 14336, 53248}) {
      for (const int group : {32, 64, 128, 192, 256, k}) {
        for (const int m : {1, 16, 17, 32, 33, 64, 65, 128, 129, 256, 257, 1024, 4096, 20000}) {
          W4Args a;
          a.bits = bits, a.n = n, a.k = k, a.group = group, a.m = m;
          const W4Choice c = choose_w4(a, 132);
          if (w4_can(a, c)) continue;
          ++failures;
          std::printf("BAD choice %s: n %d k %d group %d m %d\n", name(c).c_str(), n, k, group, m);
        }
      }
    }
  }
}

int check(int bits) {
  check_choices(bits);
  std::mt19937 random(7);
  void* workspace = nullptr;
  FINE(cudaMalloc(&workspace, w4_workspace(processors())));
  FINE(cudaMemset(workspace, 0, w4_workspace(processors())));
  const int ms[] = {17, 31, 33, 48, 65, 96, 127, 129, 256, 1000};
  int count = 0;
  for (const int k_of : {4096, 1000, 320, 96, 2112}) {
    for (const int group : {128, 64, 32, 192, 1 << 20}) {
      const int n = k_of == 4096   ? 4096
                    : k_of == 1000 ? 1000
                    : k_of == 320  ? 77
                    : k_of == 96   ? 200
                                   : 3333;
      const bool zeros = random() % 2 != 0;
      const bool bf16 = random() % 4 != 0;
      const Weight w = random_weight(random, n, k_of, std::min(group, k_of), bits, bf16, zeros);
      const OnCard card = pack(w);
      OnCard mutable_card = card;
      check_panel(w, card);
      for (const int m : ms) {
        W4Args a;
        a.bits = bits, a.n = w.n, a.k = w.k, a.group = w.group, a.m = m;
        if (m > 256 && n > 1000) continue;
        check_product(random, w, card, m, choose_w4(a, processors()), random() % 2 != 0, workspace);
        ++count;
      }
      for (W4Choice c : tiles()) {
        for (const int split : {0, 1, 2, 4, 8}) {
          c.split = split;
          c.stages = random() % 3 == 0 ? 2 : 0;
          for (int i = 0; i < 2; ++i) {
            const int m = ms[random() % 10];
            if (m > 256 && n > 1000) continue;
            check_product(random, w, card, m, c, random() % 2 != 0, workspace);
            ++count;
          }
        }
      }
      mutable_card.free();
      std::printf("n %d k %d group %d bits %d: failures so far %d of %d\n", n, k_of, group, bits,
                  failures, count);
      std::fflush(stdout);
    }
  }
  cudaFree(workspace);
  return failures;
}

// ---- time
// ------------------------------------------------------------------------------------------------------------

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
  if (c.tokens < 128 && m > 2 * c.tokens) return false;
  if (c.tokens >= 2 * m && c.tokens > 64) return false;
  if ((c.tokens == 48 || c.tokens == 96) && (m <= c.tokens / 3 * 2 || m > c.tokens)) return false;
  const int count = up(n, c.rows) / c.rows * (up(m, c.tokens) / c.tokens);
  if (c.split > 1 && count * c.split > 132 * 2) return false;
  return c.split != 1 || count >= 66;
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
int time_all(int bits, const std::vector<int>& ms, bool sweep, bool library, const char* path) {
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
  const int shapes[][2] = {{4096, 4096}, {28672, 4096}, {4096, 14336}, {57344, 8192}};
  for (const auto& [n, k] : shapes) {
    const int64_t code_bytes = int64_t{n} * k * bits / 8;
    const int64_t scale_bytes = int64_t{n} * (k / 128) * 2;
    const int64_t one = code_bytes + scale_bytes;
    const int copies = std::max<int>(2, static_cast<int>(200000000 / one) + 1);
    fill_random<<<2048, 256>>>(reinterpret_cast<uint32_t*>(pool), copies * one / 4, 5, ~0u, 0);
    for (int i = 0; i < copies; ++i) {
      fill_random<<<256, 256>>>(reinterpret_cast<uint32_t*>(pool + i * one + code_bytes),
                                scale_bytes / 4, 9, 0x007f007f, 0x3c003c00);
    }
    FINE(cudaDeviceSynchronize());
    auto* out = reinterpret_cast<uint32_t*>(workspace);
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
    };
    for (const int m : ms) {
      a.m = m;
      const int calls = m >= 1024 ? std::max(copies / 4, 4) : std::max(copies, 24);
      const auto time = [&](const W4Choice& c) {
        of_copy(0);
        return graph_us(calls, [&](int i) {
          of_copy(i);
          return launch_w4_wgmma(a, c) == cudaSuccess;
        });
      };
      std::vector<std::pair<double, std::string>> found;
      for (W4Choice c : tiles()) {
        for (const int split : {0, 1, 2, 4, 8}) {
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
    return time_all(std::atoi(argv[2]), ms, what == "sweep", std::getenv("LIBRARY") != nullptr,
                    argc > 4 ? argv[4] : nullptr);
  }
  if (what == "once" && argc == 11) {
    const auto arg = [&](int i) { return std::atoi(argv[i]); };
    return once(arg(2), arg(3), arg(4), {arg(5), arg(6), arg(7) != 0, arg(8), arg(9), arg(10)});
  }
  std::printf(
      "usage: cuda_w4_bench check [BITS] | time or sweep BITS M,M,... [FILE] | once N K M ROWS "
      "TOKENS SUMS SPLIT WIDE SLICES\n");
  return 2;
}
