// `cuda_w4_bench check`: products of cuda_w4_wgmma.cu and panels against float64 on the host.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <random>
#include <utility>

#include "kernels/matmul/cuda_w4_bench.cuh"

namespace nibble::kernels::cuda {
namespace {

struct Weight {
  int n, k, group, bits;
  bool bf16;
  bool zeros;
  std::vector<uint8_t> code;  // (n, k), with 8 or 128 where zeros are not given
  std::vector<float> scale;   // (n, groups)
  std::vector<int> zero;
  int groups() const { return (k + group - 1) / group; }
  // `rounded`: as kernels hold it whose scales are in bf16 weights.
  double value(int r, int c, bool rounded) const {
    const int g = r * groups() + c / group;
    const int number = static_cast<int>(code[static_cast<size_t>(r) * k + c]) - zero[g];
    if (!rounded) return number * double{scale[g]};
    const float of_scale = __bfloat162float(__float2bfloat16(scale[g]));
    return __bfloat162float(__float2bfloat16(static_cast<float>(number) * of_scale));
  }
};

uint16_t half_bits(float v, bool bf16) {
  if (bf16) return __bfloat16_as_ushort(__float2bfloat16(v));
  return __half_as_ushort(__float2half(v));
}

// Scales as weights of models have them, of both signs and some 0, or as small or large as fold
// (CudaTiles).
enum class Scales { kUsual, kSigned, kSmall, kLarge };

Weight random_weight(std::mt19937& random, int n, int k, int group, int bits, bool bf16, bool zeros,
                     Scales scales) {
  Weight w{n, k, group, bits, bf16, zeros, {}, {}, {}};
  const int most = bits == 4 ? 16 : 256;
  w.code.resize(static_cast<size_t>(n) * k);
  for (auto& c : w.code) c = static_cast<uint8_t>(random() % most);
  w.scale.resize(static_cast<size_t>(n) * w.groups());
  w.zero.resize(w.scale.size());
  const float size = scales == Scales::kSmall   ? (bf16 ? 0x1p-50f : 0x1p-14f)
                     : scales == Scales::kLarge ? (bf16 ? 0x1p24f : 0x1p21f)
                                                : 1.0f;
  for (auto& s : w.scale) {
    float v = size * (0.001f + 0.02f * static_cast<float>(random() % 4096) / 4096);
    if (scales == Scales::kSigned && random() % 2 != 0) v = random() % 8 == 0 ? 0 : -v;
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

int failures = 0;

// One product, three times; every output must be written, none beside them, and all three the same.
// False where it cannot be cut so.
bool check_product(std::mt19937& random, const Weight& w, const OnCard& card, int m,
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
    return false;
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
  double worst = 0;  // error over what the order of sums, and y as bf16, explain
  const bool rounded = !choice.on_sums && w.groups() > 1;
  for (int i = 0; i < 200; ++i) {
    const int t = i < 40 ? m - 1 - i % std::min(m, 9) : static_cast<int>(random() % m);
    const int r = i % 40 < 20 ? w.n - 1 - i % std::min(w.n, 17) : static_cast<int>(random() % w.n);
    double sum = 0, all = 0;
    for (int c = 0; c < w.k; ++c) {
      const double p =
          w.value(r, c, rounded) * __bfloat162float(x[static_cast<size_t>(t) * kp + c]);
      sum += p, all += std::abs(p);
    }
    double allowed = all * 4e-6;
    if (y_bf16) allowed += std::abs(sum) * 0.004;
    worst = std::max(worst, std::abs(at(t * ldy + r) - sum) / (allowed + 1e-60));
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
  return true;
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
      const double v = w.value(first + r, c, true);
      const double there = __bfloat162float(got[static_cast<size_t>(r) * ldp + c]);
      if (v != there) ++bad;
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

}  // namespace

int check(int bits) {
  check_choices(bits);
  std::mt19937 random(7);
  void* workspace = nullptr;
  FINE(cudaMalloc(&workspace, w4_workspace(processors())));
  FINE(cudaMemset(workspace, 0, w4_workspace(processors())));
  const int ms[] = {17, 31, 33, 48, 65, 81, 96, 97, 113, 127, 129, 161, 193, 256, 257, 1000};
  struct Kind {
    int group;
    bool bf16, zeros;
    Scales scales;
  };
  constexpr int kWhole = 1 << 20;
  std::vector<Kind> kinds;
  for (const bool bf16 : {false, true}) {
    for (const int group : {128, 256, kWhole}) {
      for (const Scales scales :
           {Scales::kUsual, Scales::kSigned, Scales::kSmall, Scales::kLarge}) {
        kinds.push_back({group, bf16, false, scales});
      }
    }
    for (const int group : {32, 64, 192}) kinds.push_back({group, bf16, false, Scales::kSigned});
    for (const int group : {32, 64, 128, 192, kWhole}) {
      kinds.push_back({group, bf16, true, Scales::kUsual});
    }
  }
  const std::pair<int, int> sizes[] = {
      {1536, 4096}, {1000, 1000}, {77, 320}, {200, 96}, {3333, 2112}};
  int count = 0;
  for (const auto& [n, k] : sizes) {
    for (const Kind& kind : kinds) {
      const Weight w = random_weight(random, n, k, std::min(kind.group, k), bits, kind.bf16,
                                     kind.zeros, kind.scales);
      OnCard card = pack(w);
      check_panel(w, card);
      const auto one = [&](int m, const W4Choice& c) {
        if (m > 256 && n > 1000) return;
        if (check_product(random, w, card, m, c, random() % 2 != 0, workspace)) ++count;
      };
      W4Args a;
      a.bits = bits, a.n = w.n, a.k = w.k, a.group = w.group;
      a.zeros = card.zeros;
      for (const int m : ms) {
        a.m = m;
        if (random() % 3 == 0) one(m, choose_w4(a, processors()));
      }
      for (W4Choice c : tiles()) {
        for (const int split : {0, 1, 2, 3, 4, 5, 8}) {
          c.split = split;
          c.stages = random() % 3 == 0 ? 2 : 0;
          if (random() % 3 == 0) one(ms[random() % std::size(ms)], c);
        }
      }
      card.free();
    }
    std::printf("n %d k %d bits %d: failures so far %d of %d\n", n, k, bits, failures, count);
    std::fflush(stdout);
  }
  // Where nothing waits to be added there are zeros.
  std::vector<uint32_t> left(w4_workspace(processors()) / sizeof(uint32_t));
  FINE(cudaMemcpy(left.data(), workspace, left.size() * sizeof(uint32_t), cudaMemcpyDeviceToHost));
  const auto rest = std::count_if(left.begin(), left.end(), [](uint32_t v) { return v != 0; });
  if (rest != 0) {
    ++failures;
    std::printf("BAD workspace: %ld words are left\n", long(rest));
  }
  cudaFree(workspace);
  return failures;
}

}  // namespace nibble::kernels::cuda
