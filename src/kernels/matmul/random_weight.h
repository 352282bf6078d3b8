// Random canonical weights for tests and benchmarks.
#pragma once

#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/number.h"
#include "kernels/matmul/matmul.h"

namespace nibble::kernels {

using Random = std::mt19937;

// As the format's scale_type holds it, so that packing is exact.
inline float as_scale(tensor::DType type, float v) {
  switch (type) {
    case tensor::DType::kF16:
      return base::f32_from_f16(base::f16_from_f32(v));
    case tensor::DType::kBF16:
      return base::f32_from_bf16(base::bf16_from_f32(v));
    case tensor::DType::kE8M0:
      return std::exp2(std::floor(std::log2(std::fabs(v))));
    case tensor::DType::kE4M3:
      return base::f32_from_e4m3(base::e4m3_from_f32(v * 64));
    default:
      return v;
  }
}

inline uint32_t random_code(tensor::Element element, Random& random) {
  using tensor::Element;
  std::normal_distribution<float> normal(0, 0.05f);
  switch (element) {
    case Element::kF32:
      return base::bits_from_f32(normal(random));
    case Element::kF16:
      return base::f16_from_f32(normal(random));
    case Element::kBF16:
      return base::bf16_from_f32(normal(random));
    default:
      break;
  }
  const int bits = tensor::bits(element);
  for (;;) {
    uint32_t code = random() >> (32 - bits);
    if (tensor::is_signed(element) && (code >> (bits - 1)) != 0) {
      code |= 0xffu << bits;  // sign-extended to the byte
    }
    code &= 0xff;
    if (std::isfinite(tensor::value_of(element, code))) return code;
  }
}

// Scales and offsets that are multiples by -128..127 of one f16 for each super_k inputs of a row.
inline void make_super(tensor::QuantizedWeight& w, Random& random) {
  const int64_t groups = w.groups();
  const int64_t together = w.format.super_k / w.format.group_k;
  for (std::vector<float>* numbers : {&w.scale, &w.offset}) {
    float unit = 0;
    for (size_t i = 0; i < numbers->size(); ++i) {
      if (static_cast<int64_t>(i) % groups % together == 0) {
        unit = as_scale(tensor::DType::kF16, 0.0001f + 1e-7f * static_cast<float>(random() % 1000));
      }
      (*numbers)[i] = unit * static_cast<float>(static_cast<int>(random() % 256) - 128);
    }
  }
}

inline tensor::QuantizedWeight random_weight(const tensor::WeightFormat& format, int64_t n,
                                             int64_t k, uint32_t seed) {
  Random random(seed);
  tensor::QuantizedWeight w;
  w.format = format;
  w.n = n;
  w.k = k;
  const int unit = tensor::code_bytes(format.element);
  w.code_owner = *tensor::Buffer::allocate(static_cast<size_t>(n * k * unit));
  for (int64_t i = 0; i < n * k; ++i) {
    const uint32_t code = random_code(format.element, random);
    std::memcpy(w.code_owner.data() + i * unit, &code, static_cast<size_t>(unit));
  }
  w.code = {tensor::DType::kU8, {n, k}, w.code_owner.data(), w.code_owner.size()};
  const int64_t groups = w.groups();
  const int64_t scale_rows = format.group_n == 0 ? 1 : (n + format.group_n - 1) / format.group_n;
  std::uniform_real_distribution<float> scale(0.001f, 0.02f);
  if (format.scaled) {
    for (int64_t i = 0; i < scale_rows * groups; ++i) {
      w.scale.push_back(as_scale(format.scale_type, scale(random)));
    }
  }
  const int bits = tensor::bits(format.element);
  for (int64_t i = 0; i < n * groups; ++i) {
    if (format.zero == tensor::ZeroKind::kInteger) {
      const bool is_signed = tensor::is_signed(format.element);
      const int zero =
          static_cast<int>(random() >> (32 - bits)) - (is_signed ? 1 << (bits - 1) : 0);
      w.zero.push_back(static_cast<float>(zero));
    } else if (format.zero == tensor::ZeroKind::kOffset) {
      w.offset.push_back(-as_scale(format.scale_type, 4 * scale(random)));
    }
  }
  if (format.super_k > 0) make_super(w, random);
  if (format.second_scale != tensor::SecondScale::kNone) {
    w.second_scale = format.second_scale == tensor::SecondScale::kMultiplies ? 0.0037f : 2688.5f;
    for (float& s : w.scale) {
      const float number = base::f32_from_e4m3(static_cast<uint8_t>(random() % 127));  // not nan
      s = format.second_scale == tensor::SecondScale::kMultiplies ? number * w.second_scale
                                                                  : number / w.second_scale;
    }
  }
  if (format.act_order) {
    w.order.resize(static_cast<size_t>(k));
    std::iota(w.order.begin(), w.order.end(), 0);
    std::shuffle(w.order.begin(), w.order.end(), random);
  }
  return w;
}

// Normal numbers, and now and then one far outside, as real activations have.
inline std::vector<float> random_activations(int64_t count, uint32_t seed) {
  Random random(seed);
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> x(static_cast<size_t>(count));
  for (float& v : x) {
    v = normal(random);
    if (random() % 97 == 0) v *= 30;
  }
  return x;
}

}  // namespace nibble::kernels
