// Built with the flags of avx512.cc and -mavx512bf16.
#include <immintrin.h>

#include "kernels/probe/probe.h"

namespace nibble::kernels {

uint64_t probe_read_avx512(const std::byte* data, int64_t bytes) noexcept;
int64_t probe_f32_avx512(int64_t rounds, float* sink) noexcept;
int64_t probe_s8_avx512(int64_t rounds, float* sink) noexcept;

namespace {

int64_t bf16_avx512(int64_t rounds, float* sink) noexcept {
  const auto x = (__m512bh)_mm512_set1_epi16(0x3f00);  // 0.5
  __m512 a = _mm512_set1_ps(1), b = a, c = a, d = a, e = a, f = a, g = a, h = a, i = a, j = a;
  for (int64_t r = 0; r < rounds; ++r) {
    a = _mm512_dpbf16_ps(a, x, x);
    b = _mm512_dpbf16_ps(b, x, x);
    c = _mm512_dpbf16_ps(c, x, x);
    d = _mm512_dpbf16_ps(d, x, x);
    e = _mm512_dpbf16_ps(e, x, x);
    f = _mm512_dpbf16_ps(f, x, x);
    g = _mm512_dpbf16_ps(g, x, x);
    h = _mm512_dpbf16_ps(h, x, x);
    i = _mm512_dpbf16_ps(i, x, x);
    j = _mm512_dpbf16_ps(j, x, x);
  }
  a = _mm512_add_ps(_mm512_add_ps(_mm512_add_ps(a, b), _mm512_add_ps(c, d)),
                    _mm512_add_ps(_mm512_add_ps(e, f), _mm512_add_ps(g, h)));
  *sink += _mm512_reduce_add_ps(_mm512_add_ps(a, _mm512_add_ps(i, j)));
  return rounds * 10 * 32 * 2;
}

}  // namespace

const ProbeOps kProbeAvx512Bf16 = {&probe_read_avx512, &probe_f32_avx512, &probe_s8_avx512,
                                   &bf16_avx512};

}  // namespace nibble::kernels
