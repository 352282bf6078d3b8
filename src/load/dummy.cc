#include "load/dummy.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "base/number.h"

namespace nibble::load {
namespace {

using tensor::Element;

// A code of `element`, and its value's spread over all codes drawn.
uint32_t draw_code(Element element, float spread, std::mt19937_64& random) {
  if (tensor::is_unscaled_float(element)) {
    const float v = std::normal_distribution<float>(0.0f, spread)(random);
    if (element == Element::kF32) return base::bits_from_f32(v);
    return element == Element::kF16 ? base::f16_from_f32(v) : base::bf16_from_f32(v);
  }
  const int bits = tensor::bits(element);
  const uint32_t code = static_cast<uint32_t>(random()) & ((1u << bits) - 1);
  if (tensor::is_signed(element)) {
    return static_cast<uint8_t>(static_cast<int32_t>(code) - (1 << (bits - 1)));
  }
  // 8-bit floats: leave out the largest exponents, which hold inf and nan.
  return tensor::is_integer(element) || bits < 8 ? code : code & 0xb7u;
}

// The root mean square of the values that draw_code makes.
float typical_value(Element element) {
  std::mt19937_64 random(1);
  double square = 0;
  constexpr int kSamples = 4096;
  for (int i = 0; i < kSamples; ++i) {
    const float v = tensor::value_of(element, draw_code(element, 1.0f, random));
    square += static_cast<double>(v) * v;
  }
  return static_cast<float>(std::sqrt(square / kSamples));
}

}  // namespace

Result<tensor::QuantizedWeight> dummy_weight(const tensor::WeightFormat& format, int64_t n,
                                             int64_t k, uint64_t seed) {
  tensor::QuantizedWeight w;
  w.format = format;
  w.n = n;
  w.k = k;
  const int unit = tensor::code_bytes(format.element);
  NIBBLE_ASSIGN(w.code_owner, tensor::Buffer::allocate(static_cast<size_t>(n * k * unit)));
  std::mt19937_64 random(seed);
  const float wanted = 1.0f / std::sqrt(static_cast<float>(k));
  for (int64_t i = 0; i < n * k; ++i) {
    const uint32_t code = draw_code(format.element, wanted, random);
    std::memcpy(w.code_owner.data() + i * unit, &code, static_cast<size_t>(unit));
  }
  w.code = {tensor::DType::kU8, {n, k}, w.code_owner.data(), static_cast<uint64_t>(n * k * unit)};
  const auto groups = static_cast<size_t>(w.groups());
  if (format.scaled) {
    const int64_t rows = format.group_n == 0 ? 1 : (n + format.group_n - 1) / format.group_n;
    // A power of two: exact in every scale type.
    const float scale = std::exp2(std::round(std::log2(wanted / typical_value(format.element))));
    w.scale.assign(static_cast<size_t>(rows) * groups, scale);
  }
  if (format.zero == tensor::ZeroKind::kInteger) {
    const auto middle = static_cast<float>(1 << (tensor::bits(format.element) - 1));
    w.zero.assign(static_cast<size_t>(n) * groups, middle);
  }
  if (format.zero == tensor::ZeroKind::kOffset) {
    w.offset.assign(static_cast<size_t>(n) * groups, 0.0f);
  }
  if (format.act_order) {
    w.order.resize(static_cast<size_t>(k));
    std::iota(w.order.begin(), w.order.end(), 0);
    std::shuffle(w.order.begin(), w.order.end(), random);
  }
  return w;
}

}  // namespace nibble::load
