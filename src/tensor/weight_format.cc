#include "tensor/weight_format.h"

#include <fmt/format.h>

#include <cstring>

#include "base/check.h"
#include "base/number.h"

namespace nibble::tensor {
namespace {

struct ElementInfo {
  std::string_view name;
  int bits;
};

constexpr ElementInfo kElements[] = {
    {"f32", 32},     {"f16", 16}, {"bf16", 16}, {"e4m3", 8}, {"e4m3fnuz", 8}, {"e5m2", 8},
    {"e5m2fnuz", 8}, {"e2m1", 4}, {"nf4", 4},   {"fp4", 4},  {"s8", 8},       {"s7", 7},
    {"s6", 6},       {"s5", 5},   {"s4", 4},    {"s3", 3},   {"s2", 2},       {"u8", 8},
    {"u7", 7},       {"u6", 6},   {"u5", 5},    {"u4", 4},   {"u3", 3},       {"u2", 2},
};

// NormalFloat4: the quantiles of a normal distribution that QLoRA (Dettmers et al. 2023, appendix
// E) defines; bitsandbytes' table.
constexpr float kNF4[16] = {-1.0f,
                            -0.6961928009986877f,
                            -0.5250730514526367f,
                            -0.39491748809814453f,
                            -0.28444138169288635f,
                            -0.18477343022823334f,
                            -0.09105003625154495f,
                            0.0f,
                            0.07958029955625534f,
                            0.16093020141124725f,
                            0.24611230194568634f,
                            0.33791524171829224f,
                            0.44070982933044434f,
                            0.5626170039176941f,
                            0.7229568362236023f,
                            1.0f};
// bitsandbytes' FP4: 0, 1/16, 8, 12, 4, 6, 2, 3 divided by 12, and their negatives; its second zero
// has no sign.
constexpr float kFP4[16] = {
    0.0f, 0.0052083333f,  0.66666667f,  1.0f,  0.33333333f,  0.5f,  0.16666667f,  0.25f,
    0.0f, -0.0052083333f, -0.66666667f, -1.0f, -0.33333333f, -0.5f, -0.16666667f, -0.25f};

}  // namespace

std::string_view name(Element element) { return kElements[static_cast<int>(element)].name; }
int bits(Element element) { return kElements[static_cast<int>(element)].bits; }
bool is_integer(Element element) { return element >= Element::kS8; }
bool is_signed(Element element) { return is_integer(element) && element <= Element::kS2; }
bool is_unscaled_float(Element element) { return element <= Element::kBF16; }

int code_bytes(Element element) {
  const int b = bits(element);
  return b <= 8 ? 1 : b / 8;
}

float value_of(Element element, uint32_t code) {
  switch (element) {
    case Element::kF32:
      return base::f32_from_bits(code);
    case Element::kF16:
      return base::f32_from_f16(static_cast<uint16_t>(code));
    case Element::kBF16:
      return base::f32_from_bf16(static_cast<uint16_t>(code));
    case Element::kE4M3:
      return base::f32_from_e4m3(static_cast<uint8_t>(code));
    case Element::kE4M3FNUZ:
      return base::f32_from_e4m3fnuz(static_cast<uint8_t>(code));
    case Element::kE5M2:
      return base::f32_from_e5m2(static_cast<uint8_t>(code));
    case Element::kE5M2FNUZ:
      return base::f32_from_e5m2fnuz(static_cast<uint8_t>(code));
    case Element::kE2M1:
      return base::f32_from_e2m1(static_cast<uint8_t>(code));
    case Element::kNF4:
      return kNF4[code & 15];
    case Element::kFP4:
      return kFP4[code & 15];
    case Element::kS8:
    case Element::kS7:
    case Element::kS6:
    case Element::kS5:
    case Element::kS4:
    case Element::kS3:
    case Element::kS2:
      return static_cast<float>(static_cast<int8_t>(code));  // sign-extended to the byte
    case Element::kU8:
    case Element::kU7:
    case Element::kU6:
    case Element::kU5:
    case Element::kU4:
    case Element::kU3:
    case Element::kU2:
      return static_cast<float>(code & 0xff);
  }
  NIBBLE_CHECK(false && "unknown element");
}

std::string to_string(const WeightFormat& format) {
  if (!format.stored_as.empty()) return std::string(format.stored_as);
  std::string out(name(format.element));
  if (format.scaled) {
    if (format.group_n == 0) {
      out += format.group_k == 0 ? "t" : fmt::format("b*x{}", format.group_k);
    } else if (format.group_n > 1) {
      out += fmt::format("b{}x{}", format.group_n, format.group_k);
    } else if (format.group_k == 0) {
      out += "c";
    } else {
      out += fmt::format("g{}", format.group_k);
    }
  }
  if (format.zero == ZeroKind::kInteger) out += "+zp";
  if (format.zero == ZeroKind::kOffset) out += "+min";
  if (format.act_order) out += "+act";
  return out;
}

std::string to_string(const ActivationFormat& format) {
  if (format.type == ActivationFormat::Type::kFloat) return "float";
  constexpr std::string_view kFloats[] = {"e4m3", "e2m1", "e2m3", "e3m2"};
  std::string out = format.type == ActivationFormat::Type::kS8
                        ? fmt::format("s{}", format.bits)
                        : std::string(kFloats[static_cast<size_t>(format.type) -
                                              static_cast<size_t>(ActivationFormat::Type::kE4M3)]);
  switch (format.granularity) {
    case ActivationFormat::Granularity::kTensor:
      out += " tensor";
      break;
    case ActivationFormat::Granularity::kToken:
      out += " token";
      break;
    case ActivationFormat::Granularity::kGroup:
      out += fmt::format(" g{}", format.group);
      break;
  }
  if (format.scale_rule == ActivationFormat::ScaleRule::kE4M3) {
    out += " x e4m3";
  } else if (format.scale_rule != ActivationFormat::ScaleRule::kFloat) {
    out += " x e8m0";
  }
  if (format.is_static) out += " static";
  if (format.asymmetric) out += " asym";
  if (format.outlier > 0) out += fmt::format(" outliers>={}", format.outlier);
  return out;
}

void dequantize_row(const QuantizedWeight& w, int64_t n, float* out) {
  const WeightFormat& f = w.format;
  const int unit = code_bytes(f.element);
  const std::byte* row = w.code.data + n * w.k * unit;
  const int64_t groups = w.groups();
  const int64_t group_k = f.group_k == 0 ? w.k : f.group_k;
  const float* scale =
      f.scaled ? w.scale.data() + (f.group_n == 0 ? 0 : n / f.group_n) * groups : nullptr;
  const float* zero = f.zero == ZeroKind::kInteger ? w.zero.data() + n * groups : nullptr;
  const float* offset = f.zero == ZeroKind::kOffset ? w.offset.data() + n * groups : nullptr;
  for (int64_t k = 0; k < w.k; ++k) {
    uint32_t code = 0;
    std::memcpy(&code, row + k * unit, static_cast<size_t>(unit));
    float v = value_of(f.element, code);
    const int64_t g = k / group_k;
    if (zero != nullptr) v -= zero[g];
    if (scale != nullptr) v *= scale[g];
    if (offset != nullptr) v += offset[g];
    out[f.act_order ? w.order[static_cast<size_t>(k)] : k] = v;
  }
}

}  // namespace nibble::tensor
