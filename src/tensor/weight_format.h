// The vocabulary of quantized weights: what a weight is, whoever wrote it. It lives below the
// kernels; the schemes, which know where a weight comes from, live above.
//
// Every linear weight nibble knows, once unpacked, obeys one formula. With W of shape (N, K):
//
//   w[n, k] = (value(code[n, k]) - zero[n, g]) * scale[s(n), g] + offset[n, g]      in float32
//
//   g    = k / group_k            (the last group may be short)
//   s(n) = n / group_n
//
// `value` is the integer itself for s*/u* types and the decoded number for float types. `zero` is
// an integer zero point, `offset` a float minimum (GGUF's Q4_1, Q4_K ...); a format has at most one
// of the two. Unscaled floats have neither scale, zero nor offset.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/dtype.h"
#include "tensor/tensor.h"

namespace nibble::tensor {

enum class Element : uint8_t {
  kF32,
  kF16,
  kBF16,  // stored as such
  kE4M3,
  kE4M3FNUZ,
  kE5M2,
  kE5M2FNUZ,  // one byte
  kE2M1,
  kNF4,
  kFP4,  // 4-bit code books
  kS8,
  kS7,
  kS6,
  kS5,
  kS4,
  kS3,
  kS2,  // two's complement
  kU8,
  kU7,
  kU6,
  kU5,
  kU4,
  kU3,
  kU2,
};
std::string_view name(Element element);  // "u4", "e4m3"
int bits(Element element);
bool is_integer(Element element);
bool is_signed(Element element);          // s8 to s2
bool is_unscaled_float(Element element);  // f32, f16, bf16: needs no scale
// The exact value of a code as float32. f16 and bf16 codes are 16 bits, f32 are the float's bits.
float value_of(Element element, uint32_t code);

enum class ZeroKind : uint8_t { kNone, kInteger, kOffset };

// Scales on two levels: each is an e4m3 number times (or over) one float of the whole weight.
enum class SecondScale : uint8_t { kNone, kMultiplies, kDivides };

struct WeightFormat {
  Element element = Element::kBF16;
  // Shape of the area that shares a scale. 0 means the whole dimension: per tensor is (0, 0), per
  // output channel (1, 0), groups of 128 along K (1, 128), blocks (128, 128).
  bool scaled = false;
  int64_t group_n = 1;
  int64_t group_k = 0;
  // The narrowest type that holds every scale (and offset) of this weight exactly.
  DType scale_type = DType::kF32;
  // > 0: within each super_k inputs of a row the scales are multiples by an integer (-128..127) of
  // one f16, and so are the offsets. A hint that halves what scales take; GGUF's K types.
  int64_t super_k = 0;
  SecondScale second_scale = SecondScale::kNone;  // likewise: a scale takes a byte
  ZeroKind zero = ZeroKind::kNone;
  bool act_order = false;  // the k of a group are not neighbours: see QuantizedWeight::order
  // For display: a GGUF type keeps its own name ("q4_1") instead of the composed one.
  std::string_view stored_as = {};

  friend bool operator==(const WeightFormat&, const WeightFormat&) = default;
};

// "bf16", "u4g128+zp", "s4g32+act", "e4m3b128x128", "s8c", "e4m3t", "q4_1"; "e4m3b*x1"
// has a scale for every input.
std::string to_string(const WeightFormat& format);

// How a checkpoint wants the inputs of a layer held. kFloat: it leaves them alone.
struct ActivationFormat {
  enum class Type : uint8_t { kFloat, kS8, kE4M3, kE2M1, kE2M3, kE3M2 };
  enum class Granularity : uint8_t { kTensor, kToken, kGroup };
  // What a dynamic scale is rounded to. The e8m0 rules are the tools' own ways to a power of two:
  // E = 2^floor(log2(absmax)) / 2^floor(log2(largest number of the type)) is kE8M0Floor; kE8M0Even
  // takes twice that from 1.75 E up (of absmax), kE8M0Nearest from where absmax, rounded to one bit
  // of mantissa more than the type has, is 2 E; kE8M0Ceil is 2^ceil(log2(absmax / largest)),
  // kE8M0Above 2^ceil(log2(absmax)) / 2^floor(log2(largest)).
  // kE4M3 (NVFP4): e4m3(absmax / 6 / input_scale) * input_scale, input_scale from the checkpoint.
  enum class ScaleRule : uint8_t {
    kFloat,
    kE8M0Floor,
    kE8M0Even,
    kE8M0Nearest,
    kE8M0Ceil,
    kE8M0Above,
    kE4M3
  };
  Type type = Type::kFloat;
  Granularity granularity = Granularity::kToken;
  int64_t group = 0;        // kGroup: how many k share a scale
  bool is_static = false;   // kTensor: the scale is stored in the checkpoint
  bool asymmetric = false;  // s8 with a zero point
  int bits = 8;             // kS8: of the integers, which may be fewer than their byte has
  // kS8, symmetric and dynamic: the scale is absmax / ((2^bits - 1) / 2), as compressed-tensors has
  // it, and not absmax / (2^(bits-1) - 1).
  bool half_range = false;
  bool reciprocal = false;  // kS8: x times 1 / scale, as TorchAO has it, and not x / scale
  // kE4M3: no scale of a group is below e4m3's smallest normal number, 2^-6, as TorchAO has it;
  // else one that rounds to 0 becomes 1/8, as compressed-tensors has it.
  bool normal_scales = false;
  float upper_bound = 0;  // > 0: dynamic scales are computed from min(absmax, upper_bound)
  ScaleRule scale_rule = ScaleRule::kFloat;  // kGroup
  float outlier = 0;                         // > 0: inputs of this magnitude or more stay floats

  friend bool operator==(const ActivationFormat&, const ActivationFormat&) = default;
};
std::string to_string(const ActivationFormat& format);  // "float", "s8 token", "e2m1 g16 x e4m3"

// A weight in canonical form: one code per unit, row-major, nothing packed. The form every scheme
// produces and every kernel's pack function reads.
//
//   code   (N, K)    unit of code_bytes(element): 1 for <= 8 bits, 2 for f16/bf16, 4 for f32
//   scale  (ceil(N/group_n), ceil(K/group_k))  f32
//   zero   (N, ceil(K/group_k))                f32 holding integers     when zero == kInteger
//   offset (N, ceil(K/group_k))                f32                      when zero == kOffset
//   order  (K) s32   when act_order: column k of `code` belongs to input order[k]
struct QuantizedWeight {
  WeightFormat format;
  ActivationFormat activation;
  int64_t n = 0;
  int64_t k = 0;
  TensorView code;  // points into `code_owner`, or straight into the checkpoint
  Buffer code_owner;
  std::vector<float> scale;
  float second_scale = 1.0f;  // where the format has one; multiplied into `scale` already
  std::vector<float> zero;
  std::vector<float> offset;
  std::vector<int32_t> order;
  float input_scale = 1.0f;  // kTensor static activations; what e4m3 scales are multiplied by
  float input_zero = 0.0f;   // asymmetric static activations
  std::vector<float>
      input_factor;  // (K) or empty: x[k] is multiplied by it before use (AWQ's pre_quant_scale)
  // > 0: then each block of so many inputs is rotated, see kernels/hadamard
  int64_t input_hadamard = 0;

  int64_t groups() const {  // along K
    return format.group_k == 0 ? 1 : (k + format.group_k - 1) / format.group_k;
  }
};

int code_bytes(Element element);

// Row n as float32 in the order of the inputs (act-order undone); `out` has k elements.
void dequantize_row(const QuantizedWeight& w, int64_t n, float* out);

}  // namespace nibble::tensor
