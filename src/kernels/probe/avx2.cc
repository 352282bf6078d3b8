// Built with -mavx2 -mfma. Enough independent chains to hide the latency of the unit.
#include <immintrin.h>

#include "kernels/probe/probe.h"

namespace nibble::kernels {
namespace {

uint64_t read_avx2(const std::byte* data, int64_t bytes) noexcept {
  __m256i a = _mm256_setzero_si256();
  __m256i b = a;
  __m256i c = a;
  __m256i d = a;
  const auto* at = reinterpret_cast<const __m256i*>(data);
  for (int64_t i = 0; i + 128 <= bytes; i += 128, at += 4) {
    a = _mm256_add_epi64(a, _mm256_load_si256(at));
    b = _mm256_add_epi64(b, _mm256_load_si256(at + 1));
    c = _mm256_add_epi64(c, _mm256_load_si256(at + 2));
    d = _mm256_add_epi64(d, _mm256_load_si256(at + 3));
  }
  a = _mm256_add_epi64(_mm256_add_epi64(a, b), _mm256_add_epi64(c, d));
  return static_cast<uint64_t>(_mm256_extract_epi64(a, 0)) +
         static_cast<uint64_t>(_mm256_extract_epi64(a, 1)) +
         static_cast<uint64_t>(_mm256_extract_epi64(a, 2)) +
         static_cast<uint64_t>(_mm256_extract_epi64(a, 3));
}

int64_t f32_avx2(int64_t rounds, float* sink) noexcept {
  const __m256 x = _mm256_set1_ps(0.999f);
  const __m256 y = _mm256_set1_ps(0.5f);
  __m256 a = y, b = y, c = y, d = y, e = y, f = y, g = y, h = y, i = y, j = y;
  for (int64_t r = 0; r < rounds; ++r) {
    a = _mm256_fmadd_ps(a, x, y);
    b = _mm256_fmadd_ps(b, x, y);
    c = _mm256_fmadd_ps(c, x, y);
    d = _mm256_fmadd_ps(d, x, y);
    e = _mm256_fmadd_ps(e, x, y);
    f = _mm256_fmadd_ps(f, x, y);
    g = _mm256_fmadd_ps(g, x, y);
    h = _mm256_fmadd_ps(h, x, y);
    i = _mm256_fmadd_ps(i, x, y);
    j = _mm256_fmadd_ps(j, x, y);
  }
  a = _mm256_add_ps(_mm256_add_ps(_mm256_add_ps(a, b), _mm256_add_ps(c, d)),
                    _mm256_add_ps(_mm256_add_ps(e, f), _mm256_add_ps(g, h)));
  a = _mm256_add_ps(a, _mm256_add_ps(i, j));
  *sink += _mm256_cvtss_f32(a);
  return rounds * 10 * 8 * 2;
}

// u8 x s8 without VNNI: maddubs, then madd with ones, then add; the three count as 32 products.
int64_t s8_avx2(int64_t rounds, float* sink) noexcept {
  const __m256i x = _mm256_set1_epi8(3);
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a, e = a, f = a;
  __m256i y = _mm256_set1_epi8(5);
  for (int64_t r = 0; r < rounds; ++r) {
    asm volatile("" : "+x"(y));  // or the products are computed once
    a = _mm256_add_epi32(a, _mm256_madd_epi16(_mm256_maddubs_epi16(x, y), ones));
    asm volatile("" : "+x"(y));
    b = _mm256_add_epi32(b, _mm256_madd_epi16(_mm256_maddubs_epi16(x, y), ones));
    asm volatile("" : "+x"(y));
    c = _mm256_add_epi32(c, _mm256_madd_epi16(_mm256_maddubs_epi16(x, y), ones));
    asm volatile("" : "+x"(y));
    d = _mm256_add_epi32(d, _mm256_madd_epi16(_mm256_maddubs_epi16(x, y), ones));
    asm volatile("" : "+x"(y));
    e = _mm256_add_epi32(e, _mm256_madd_epi16(_mm256_maddubs_epi16(x, y), ones));
    asm volatile("" : "+x"(y));
    f = _mm256_add_epi32(f, _mm256_madd_epi16(_mm256_maddubs_epi16(x, y), ones));
  }
  a = _mm256_add_epi32(_mm256_add_epi32(a, b),
                       _mm256_add_epi32(_mm256_add_epi32(c, d), _mm256_add_epi32(e, f)));
  *sink += static_cast<float>(_mm256_extract_epi32(a, 0));
  return rounds * 6 * 32 * 2;
}

}  // namespace

const ProbeOps kProbeAvx2 = {&read_avx2, &f32_avx2, &s8_avx2, nullptr};

}  // namespace nibble::kernels
