#include "kernels/matmul/ceilings.h"

#include <immintrin.h>

#include <algorithm>
#include <chrono>

namespace nibble::kernels {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Every byte is used, else the compiler would read none.
__attribute__((target("avx2"))) void read_all(const std::byte* p, int64_t bytes) {
  __m256i a = _mm256_setzero_si256();
  __m256i b = a, c = a, d = a;
  const auto load = [&](int64_t at) __attribute__((target("avx2"))) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + at));
  };
  for (int64_t i = 0; i + 128 <= bytes; i += 128) {
    a = _mm256_xor_si256(a, load(i));
    b = _mm256_xor_si256(b, load(i + 32));
    c = _mm256_xor_si256(c, load(i + 64));
    d = _mm256_xor_si256(d, load(i + 96));
  }
  a = _mm256_xor_si256(_mm256_xor_si256(a, b), _mm256_xor_si256(c, d));
  asm volatile("" ::"x"(a));
}

constexpr int64_t kRounds = 1000000;

// Twelve independent chains of one instruction.
#define NIBBLE_CHAINS(type, first, constraint, step)                                               \
  type a0 = first, a1 = first, a2 = first, a3 = first, a4 = first, a5 = first, a6 = first,         \
       a7 = first, a8 = first, a9 = first, a10 = first, a11 = first;                               \
  for (int64_t i = 0; i < kRounds; ++i) {                                                          \
    step(a0) step(a1) step(a2) step(a3) step(a4) step(a5) step(a6) step(a7) step(a8) step(a9)      \
        step(a10)                                                                                  \
            step(a11) asm volatile(""                                                              \
                                   : "+" constraint(a0), "+" constraint(a1), "+" constraint(a2),   \
                                     "+" constraint(a3), "+" constraint(a4), "+" constraint(a5));  \
    asm volatile(""                                                                                \
                 : "+" constraint(a6), "+" constraint(a7), "+" constraint(a8), "+" constraint(a9), \
                   "+" constraint(a10), "+" constraint(a11));                                      \
  }

__attribute__((target("avx2,fma"))) void fma256() {
  const __m256 x = _mm256_set1_ps(0.999f);
#define STEP(a) a = _mm256_fmadd_ps(a, x, x);
  NIBBLE_CHAINS(__m256, x, "x", STEP)
#undef STEP
}
__attribute__((target("avx2"))) void madd256() {
  const __m256i x = _mm256_set1_epi16(3);
#define STEP(a) a = _mm256_add_epi32(a, _mm256_madd_epi16(a, x));
  NIBBLE_CHAINS(__m256i, x, "x", STEP)
#undef STEP
}
__attribute__((target("avx512f"))) void fma512() {
  const __m512 x = _mm512_set1_ps(0.999f);
#define STEP(a) a = _mm512_fmadd_ps(a, x, x);
  NIBBLE_CHAINS(__m512, x, "v", STEP)
#undef STEP
}
__attribute__((target("avx512f,avx512vnni"))) void dpwssd512() {
  const __m512i x = _mm512_set1_epi32(0x00030005);
#define STEP(a) a = _mm512_dpwssd_epi32(a, x, x);
  NIBBLE_CHAINS(__m512i, x, "v", STEP)
#undef STEP
}
__attribute__((target("avx512f,avx512vnni"))) void dpbusd512() {
  const __m512i x = _mm512_set1_epi32(0x01030205);
#define STEP(a) a = _mm512_dpbusd_epi32(a, x, x);
  NIBBLE_CHAINS(__m512i, x, "v", STEP)
#undef STEP
}
__attribute__((target("avx512f,avx512bf16"))) void bf16_dot512() {
  const auto x = reinterpret_cast<__m512bh>(_mm512_set1_epi32(0x3f803f80));
  const __m512 one = _mm512_set1_ps(1);
#define STEP(a) a = _mm512_dpbf16_ps(a, x, x);
  NIBBLE_CHAINS(__m512, one, "v", STEP)
#undef STEP
}

struct Work {
  void (*run)();
  double lanes;  // multiply-adds an instruction
};
Work work_of(Unit unit) {
  switch (unit) {
    case Unit::kFma256:
      return {fma256, 8};
    case Unit::kMadd256:
      return {madd256, 16};
    case Unit::kFma512:
      return {fma512, 16};
    case Unit::kDpwssd512:
      return {dpwssd512, 32};
    case Unit::kDpbusd512:
      return {dpbusd512, 64};
    case Unit::kBf16Dot512:
      return {bf16_dot512, 32};
  }
  return {};
}

}  // namespace

double read_bandwidth(device::Stream& stream, const std::byte* data, int64_t bytes) {
  double best = 0;
  for (int round = 0; round < 3; ++round) {
    const double start = now();
    stream.pool().parallel_for(bytes, int64_t{1} << 20, [&](int64_t begin, int64_t end, int) {
      read_all(data + begin, end - begin);
    });
    best = std::max(best, static_cast<double>(bytes) / (now() - start));
  }
  return best;
}

double peak(device::Stream& stream, Unit unit) {
  const Work work = work_of(unit);
  double best = 0;
  for (int round = 0; round < 5; ++round) {
    const double start = now();
    stream.pool().parallel_for(stream.threads(), 1, [&](int64_t, int64_t, int) { work.run(); });
    const double all = work.lanes * 12 * static_cast<double>(kRounds * stream.threads());
    best = std::max(best, all / (now() - start));
  }
  return best;
}

}  // namespace nibble::kernels
