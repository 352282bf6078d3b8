// Built with -mavx512f,bw,vl,dq,vnni. Enough independent chains to hide the latency of the unit.
#include <immintrin.h>

#include "kernels/probe/probe.h"

namespace nibble::kernels {

// Shared with avx512_bf16.cc, which adds the third unit.
uint64_t probe_read_avx512(const std::byte* data, int64_t bytes) noexcept {
  __m512i a = _mm512_setzero_si512();
  __m512i b = a;
  __m512i c = a;
  __m512i d = a;
  const auto* at = reinterpret_cast<const __m512i*>(data);
  for (int64_t i = 0; i + 256 <= bytes; i += 256, at += 4) {
    a = _mm512_add_epi64(a, _mm512_load_si512(at));
    b = _mm512_add_epi64(b, _mm512_load_si512(at + 1));
    c = _mm512_add_epi64(c, _mm512_load_si512(at + 2));
    d = _mm512_add_epi64(d, _mm512_load_si512(at + 3));
  }
  a = _mm512_add_epi64(_mm512_add_epi64(a, b), _mm512_add_epi64(c, d));
  return static_cast<uint64_t>(_mm512_reduce_add_epi64(a));
}

int64_t probe_f32_avx512(int64_t rounds, float* sink) noexcept {
  const __m512 x = _mm512_set1_ps(0.999f);
  const __m512 y = _mm512_set1_ps(0.5f);
  __m512 a = y, b = y, c = y, d = y, e = y, f = y, g = y, h = y, i = y, j = y;
  for (int64_t r = 0; r < rounds; ++r) {
    a = _mm512_fmadd_ps(a, x, y);
    b = _mm512_fmadd_ps(b, x, y);
    c = _mm512_fmadd_ps(c, x, y);
    d = _mm512_fmadd_ps(d, x, y);
    e = _mm512_fmadd_ps(e, x, y);
    f = _mm512_fmadd_ps(f, x, y);
    g = _mm512_fmadd_ps(g, x, y);
    h = _mm512_fmadd_ps(h, x, y);
    i = _mm512_fmadd_ps(i, x, y);
    j = _mm512_fmadd_ps(j, x, y);
  }
  a = _mm512_add_ps(_mm512_add_ps(_mm512_add_ps(a, b), _mm512_add_ps(c, d)),
                    _mm512_add_ps(_mm512_add_ps(e, f), _mm512_add_ps(g, h)));
  *sink += _mm512_reduce_add_ps(_mm512_add_ps(a, _mm512_add_ps(i, j)));
  return rounds * 10 * 16 * 2;
}

int64_t probe_s8_avx512(int64_t rounds, float* sink) noexcept {
  const __m512i x = _mm512_set1_epi8(3);
  const __m512i y = _mm512_set1_epi8(5);
  __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a, e = a, f = a, g = a, h = a, i = a, j = a;
  for (int64_t r = 0; r < rounds; ++r) {
    a = _mm512_dpbusd_epi32(a, x, y);
    b = _mm512_dpbusd_epi32(b, x, y);
    c = _mm512_dpbusd_epi32(c, x, y);
    d = _mm512_dpbusd_epi32(d, x, y);
    e = _mm512_dpbusd_epi32(e, x, y);
    f = _mm512_dpbusd_epi32(f, x, y);
    g = _mm512_dpbusd_epi32(g, x, y);
    h = _mm512_dpbusd_epi32(h, x, y);
    i = _mm512_dpbusd_epi32(i, x, y);
    j = _mm512_dpbusd_epi32(j, x, y);
  }
  a = _mm512_add_epi32(_mm512_add_epi32(_mm512_add_epi32(a, b), _mm512_add_epi32(c, d)),
                       _mm512_add_epi32(_mm512_add_epi32(e, f), _mm512_add_epi32(g, h)));
  *sink += static_cast<float>(_mm512_reduce_add_epi32(_mm512_add_epi32(a, _mm512_add_epi32(i, j))));
  return rounds * 10 * 64 * 2;
}

const ProbeOps kProbeAvx512 = {&probe_read_avx512, &probe_f32_avx512, &probe_s8_avx512, nullptr};

}  // namespace nibble::kernels
