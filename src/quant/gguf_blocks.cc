#include "quant/gguf_blocks.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/number.h"
#include "quant/gguf_decode.h"

namespace nibble::quant {
namespace {

using tensor::DType;
using tensor::Element;
using tensor::ZeroKind;

// f16 d; 16 bytes: low nibbles are elements 0..15, high nibbles 16..31.      w = d (q - 8)
void decode_q4_0(const uint8_t* block, uint8_t* code, float* scale, float*) {
  scale[0] = read_f16(block);
  for (int i = 0; i < 16; ++i) {
    code[i] = static_cast<uint8_t>((block[2 + i] & 15) - 8);
    code[i + 16] = static_cast<uint8_t>((block[2 + i] >> 4) - 8);
  }
}

// f16 d, f16 m; nibbles as above.                                             w = d q + m
void decode_q4_1(const uint8_t* block, uint8_t* code, float* scale, float* offset) {
  scale[0] = read_f16(block);
  offset[0] = read_f16(block + 2);
  for (int i = 0; i < 16; ++i) {
    code[i] = block[4 + i] & 15;
    code[i + 16] = block[4 + i] >> 4;
  }
}

// f16 d; 32 bytes s8.                                                         w = d q
void decode_q8_0(const uint8_t* block, uint8_t* code, float* scale, float*) {
  scale[0] = read_f16(block);
  std::memcpy(code, block + 2, 32);
}

// The fifth bit of element i is bit i of the u32 `high`.
void expand_5_bits(const uint8_t* low, uint32_t high, int minus, uint8_t* code) {
  for (int i = 0; i < 16; ++i) {
    code[i] = static_cast<uint8_t>(((low[i] & 15) | (high >> i & 1) << 4) - minus);
    code[i + 16] = static_cast<uint8_t>((low[i] >> 4 | (high >> (i + 16) & 1) << 4) - minus);
  }
}

// f16 d; u32 fifth bits; nibbles as Q4_0.                                     w = d (q - 16)
void decode_q5_0(const uint8_t* block, uint8_t* code, float* scale, float*) {
  scale[0] = read_f16(block);
  expand_5_bits(block + 6, read_u32(block + 2), 16, code);
}

// f16 d, f16 m; u32 fifth bits; nibbles as Q4_0.                              w = d q + m
void decode_q5_1(const uint8_t* block, uint8_t* code, float* scale, float* offset) {
  scale[0] = read_f16(block);
  offset[0] = read_f16(block + 2);
  expand_5_bits(block + 8, read_u32(block + 4), 0, code);
}

// 64 bytes of 2-bit fields -> 256: byte l of each half holds elements l, l + 32, l + 64, l + 96 of
// that half, lowest bits first.
void expand_2_bits(const uint8_t* from, uint8_t* to) {
  for (int half = 0; half < 2; ++half) {
    for (int run = 0; run < 4; ++run) {
      for (int l = 0; l < 32; ++l) {
        to[128 * half + 32 * run + l] = from[32 * half + l] >> 2 * run & 3;
      }
    }
  }
}

// 128 bytes of 4-bit fields -> 256: of each `run` bytes, the low nibbles, then the high ones.
void expand_4_bits(const uint8_t* from, int run, uint8_t* to) {
  for (int first = 0; first < 128; first += run) {
    for (int l = 0; l < run; ++l) {
      to[2 * first + l] = from[first + l] & 15;
      to[2 * first + run + l] = from[first + l] >> 4;
    }
  }
}

// scales[16]: low nibble s, high nibble m; qs[64]; f16 d, f16 dmin.           w = d s q - dmin m
void decode_q2_k(const uint8_t* block, uint8_t* code, float* scale, float* offset) {
  const float d = read_f16(block + 80), dmin = read_f16(block + 82);
  for (int sub = 0; sub < 16; ++sub) {
    scale[sub] = d * static_cast<float>(block[sub] & 15);
    offset[sub] = -(dmin * static_cast<float>(block[sub] >> 4));
  }
  expand_2_bits(block + 16, code);
}

// hmask[32]; qs[64] as Q2_K; 16 scales of 6 bits in 12 bytes; f16 d.          w = d (s - 32) q
// q is two bits of qs, less 4 where the bit of hmask is 0. Of scale j, the low 4 bits are nibble
// j / 8 of byte j % 8, the high 2 are pair j / 4 of byte 8 + j % 4.
void decode_q3_k(const uint8_t* block, uint8_t* code, float* scale, float*) {
  const uint8_t* packed = block + 96;
  const float d = read_f16(block + 108);
  for (int sub = 0; sub < 16; ++sub) {
    const int s =
        (packed[sub % 8] >> 4 * (sub / 8) & 15) | (packed[8 + sub % 4] >> 2 * (sub / 4) & 3) << 4;
    scale[sub] = d * static_cast<float>(s - 32);
  }
  expand_2_bits(block + 32, code);
  for (int run = 0; run < 8; ++run) {
    for (int l = 0; l < 32; ++l) {
      const int high = block[l] >> run & 1;
      code[32 * run + l] = static_cast<uint8_t>(code[32 * run + l] + 4 * high - 4);
    }
  }
}

// f16 d, f16 dmin; 8 scales and 8 minima of 6 bits in 12 bytes.               d s, -dmin m
//   byte 0..3   s 0..3, and on top the high 2 bits of s 4..7
//   byte 4..7   m 0..3, and on top the high 2 bits of m 4..7
//   byte 8..11  the low 4 bits of s 4..7 and of m 4..7
void decode_k_scales(const uint8_t* block, float* scale, float* offset) {
  const float d = read_f16(block), dmin = read_f16(block + 2);
  const uint8_t* packed = block + 4;
  for (int sub = 0; sub < 8; ++sub) {
    int s = packed[sub % 4] & 63, m = packed[4 + sub % 4] & 63;
    if (sub >= 4) {
      s = (packed[4 + sub] & 15) | packed[sub - 4] >> 6 << 4;
      m = packed[4 + sub] >> 4 | packed[sub] >> 6 << 4;
    }
    scale[sub] = d * static_cast<float>(s);
    offset[sub] = -(dmin * static_cast<float>(m));
  }
}

// d, dmin, scales; qs[128]: 32 bytes hold 64 elements, low nibbles first.     w = d s q - dmin m
void decode_q4_k(const uint8_t* block, uint8_t* code, float* scale, float* offset) {
  decode_k_scales(block, scale, offset);
  expand_4_bits(block + 16, 32, code);
}

// d, dmin, scales; qh[32]: bit j of byte l is the fifth bit of element 32 j + l; qs as Q4_K.
void decode_q5_k(const uint8_t* block, uint8_t* code, float* scale, float* offset) {
  decode_k_scales(block, scale, offset);
  expand_4_bits(block + 48, 32, code);
  for (int run = 0; run < 8; ++run) {
    for (int l = 0; l < 32; ++l) {
      code[32 * run + l] |= static_cast<uint8_t>((block[16 + l] >> run & 1) << 4);
    }
  }
}

// ql[128]: 64 bytes hold 128 elements, low nibbles first; qh[64]: 2 bits each, as qs of Q2_K; s8
// scales[16]; f16 d.                                                           w = d s (q - 32)
void decode_q6_k(const uint8_t* block, uint8_t* code, float* scale, float*) {
  const float d = read_f16(block + 208);
  for (int sub = 0; sub < 16; ++sub) {
    scale[sub] = d * static_cast<float>(static_cast<int8_t>(block[192 + sub]));
  }
  uint8_t high[256];
  expand_4_bits(block, 64, code);
  expand_2_bits(block + 128, high);
  for (int i = 0; i < 256; ++i) code[i] = static_cast<uint8_t>((code[i] | high[i] << 4) - 32);
}

// f32 d; 256 bytes s8; 16 sums that kernels use, not read here.               w = d q
void decode_q8_k(const uint8_t* block, uint8_t* code, float* scale, float*) {
  scale[0] = base::f32_from_bits(read_u32(block));
  std::memcpy(code, block + 4, 256);
}

// ggml's table of e2m1 values has no negative zero.
uint8_t e2m1_code(int nibble) { return nibble == 8 ? 0 : static_cast<uint8_t>(nibble); }

// e8m0 scale; nibbles as Q4_0, each an e2m1 number.
void decode_mxfp4(const uint8_t* block, uint8_t* code, float* scale, float*) {
  scale[0] = base::f32_from_e8m0(block[0]);
  for (int i = 0; i < 16; ++i) {
    code[i] = e2m1_code(block[1 + i] & 15);
    code[i + 16] = e2m1_code(block[1 + i] >> 4);
  }
}

// Four unsigned e4m3 scales, one per 16 elements; per 16, eight bytes of e2m1 numbers: low nibbles,
// then high ones. ggml reads the scale 0x7f (nan in e4m3) as 0.
void decode_nvfp4(const uint8_t* block, uint8_t* code, float* scale, float*) {
  for (int sub = 0; sub < 4; ++sub) {
    const uint8_t s = block[sub];
    scale[sub] = s == 0x7f ? 0.0f : s > 0x7f ? NAN : base::f32_from_e4m3(s);
    for (int i = 0; i < 8; ++i) {
      code[16 * sub + i] = e2m1_code(block[4 + 8 * sub + i] & 15);
      code[16 * sub + 8 + i] = e2m1_code(block[4 + 8 * sub + i] >> 4);
    }
  }
}

// A byte holds five ternary digits as a fraction of 256: digit m is the integer part of 3 times the
// fraction left after m steps.
uint8_t ternary_digit(uint8_t byte, int m) {
  constexpr int kPower[5] = {1, 3, 9, 27, 81};
  const auto fraction = static_cast<uint8_t>(byte * kPower[m]);
  return static_cast<uint8_t>((fraction * 3 >> 8) - 1);
}

// 48 bytes of five digits (32, then 16 bytes side by side), 4 bytes of four; f16 d.   w = d digit
void decode_tq1_0(const uint8_t* block, uint8_t* code, float* scale, float*) {
  scale[0] = read_f16(block + 52);
  for (int i = 0; i < 160; ++i) code[i] = ternary_digit(block[i % 32], i / 32);
  for (int i = 0; i < 80; ++i) code[160 + i] = ternary_digit(block[32 + i % 16], i / 16);
  for (int i = 0; i < 16; ++i) code[240 + i] = ternary_digit(block[48 + i % 4], i / 4);
}

// qs[64] as Q2_K; f16 d.                                                      w = d (q - 1)
void decode_tq2_0(const uint8_t* block, uint8_t* code, float* scale, float*) {
  scale[0] = read_f16(block + 64);
  expand_2_bits(block, code);
}

struct BlockType {
  DType dtype;
  Element element;
  int group;
  ZeroKind zero;  // kInteger: the zero point is 1 everywhere
  DType scale_type;
  GgufDecode decode;
};

constexpr BlockType kTypes[] = {
    {DType::kQ4_0, Element::kS4, 32, ZeroKind::kNone, DType::kF16, decode_q4_0},
    {DType::kQ4_1, Element::kU4, 32, ZeroKind::kOffset, DType::kF16, decode_q4_1},
    {DType::kQ5_0, Element::kS5, 32, ZeroKind::kNone, DType::kF16, decode_q5_0},
    {DType::kQ5_1, Element::kU5, 32, ZeroKind::kOffset, DType::kF16, decode_q5_1},
    {DType::kQ8_0, Element::kS8, 32, ZeroKind::kNone, DType::kF16, decode_q8_0},
    {DType::kQ2_K, Element::kU2, 16, ZeroKind::kOffset, DType::kF32, decode_q2_k},
    {DType::kQ3_K, Element::kS3, 16, ZeroKind::kNone, DType::kF32, decode_q3_k},
    {DType::kQ4_K, Element::kU4, 32, ZeroKind::kOffset, DType::kF32, decode_q4_k},
    {DType::kQ5_K, Element::kU5, 32, ZeroKind::kOffset, DType::kF32, decode_q5_k},
    {DType::kQ6_K, Element::kS6, 16, ZeroKind::kNone, DType::kF32, decode_q6_k},
    {DType::kQ8_K, Element::kS8, 256, ZeroKind::kNone, DType::kF32, decode_q8_k},
    {DType::kIQ1_S, Element::kS8, 32, ZeroKind::kNone, DType::kF32, decode_iq1_s},
    {DType::kIQ1_M, Element::kS8, 16, ZeroKind::kNone, DType::kF32, decode_iq1_m},
    {DType::kIQ2_XXS, Element::kS8, 32, ZeroKind::kNone, DType::kF32, decode_iq2_xxs},
    {DType::kIQ2_XS, Element::kS8, 16, ZeroKind::kNone, DType::kF32, decode_iq2_xs},
    {DType::kIQ2_S, Element::kS8, 16, ZeroKind::kNone, DType::kF32, decode_iq2_s},
    {DType::kIQ3_XXS, Element::kS8, 32, ZeroKind::kNone, DType::kF32, decode_iq3_xxs},
    {DType::kIQ3_S, Element::kS8, 32, ZeroKind::kNone, DType::kF32, decode_iq3_s},
    {DType::kIQ4_NL, Element::kS8, 32, ZeroKind::kNone, DType::kF16, decode_iq4_nl},
    {DType::kIQ4_XS, Element::kS8, 32, ZeroKind::kNone, DType::kF32, decode_iq4_xs},
    {DType::kMXFP4, Element::kE2M1, 32, ZeroKind::kNone, DType::kE8M0, decode_mxfp4},
    {DType::kNVFP4, Element::kE2M1, 16, ZeroKind::kNone, DType::kE4M3, decode_nvfp4},
    {DType::kTQ1_0, Element::kS2, 256, ZeroKind::kNone, DType::kF16, decode_tq1_0},
    {DType::kTQ2_0, Element::kU2, 256, ZeroKind::kInteger, DType::kF16, decode_tq2_0},
};

const BlockType* find_type(DType dtype) {
  for (const BlockType& type : kTypes) {
    if (type.dtype == dtype) return &type;
  }
  return nullptr;
}

Element plain_element(DType dtype) {
  return dtype == DType::kF16    ? Element::kF16
         : dtype == DType::kBF16 ? Element::kBF16
                                 : Element::kF32;
}

bool is_plain(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

}  // namespace

bool gguf_readable(DType dtype) { return is_plain(dtype) || find_type(dtype) != nullptr; }

tensor::WeightFormat gguf_format(DType dtype, int64_t) {
  tensor::WeightFormat format;
  if (is_plain(dtype)) {
    format.element = plain_element(dtype);
    return format;
  }
  const BlockType* type = find_type(dtype);
  NIBBLE_CHECK(type != nullptr);
  format.element = type->element;
  format.scaled = true;
  format.group_k = type->group;
  format.scale_type = type->scale_type;
  format.zero = type->zero;
  format.stored_as = tensor::name(dtype);
  // Their scales are an f16 of the block times small integers.
  const bool k_type = dtype >= DType::kQ2_K && dtype <= DType::kQ6_K;
  if (k_type || dtype == DType::kIQ4_XS) format.super_k = tensor::info(dtype).block_elements;
  return format;
}

Result<tensor::QuantizedWeight> gguf_to_canonical(DType dtype, int64_t n, int64_t k,
                                                  const tensor::TensorView& stored) {
  if (!gguf_readable(dtype)) {
    return fail(
        ErrorCode::kUnsupported,
        fmt::format("the type {} is not one that weights are read from", tensor::name(dtype)));
  }
  const tensor::DTypeInfo& block = tensor::info(dtype);
  const std::optional<uint64_t> bytes = tensor::byte_count(dtype, {n, k});
  if (stored.dtype != dtype || !bytes || stored.bytes != *bytes) {
    return fail(
        ErrorCode::kCorrupt,
        fmt::format("expected {} ({}, {}) in blocks of {} elements, found {} {} of {} bytes",
                    tensor::name(dtype), n, k, block.block_elements, tensor::name(stored.dtype),
                    tensor::to_string(stored.shape), stored.bytes));
  }
  tensor::QuantizedWeight out;
  out.format = gguf_format(dtype, k);
  out.n = n;
  out.k = k;
  if (is_plain(dtype)) {
    out.code = stored;
    return out;
  }
  const BlockType& type = *find_type(dtype);
  const int per_block = block.block_elements / type.group;
  const int64_t blocks = *tensor::element_count({n, k}) / block.block_elements;
  NIBBLE_ASSIGN(out.code_owner,
                tensor::Buffer::allocate(static_cast<size_t>(blocks * block.block_elements)));
  out.scale.resize(static_cast<size_t>(blocks * per_block));
  if (type.zero == ZeroKind::kOffset) out.offset.resize(out.scale.size());
  if (type.zero == ZeroKind::kInteger) out.zero.assign(out.scale.size(), 1.0f);
  const auto* from = reinterpret_cast<const uint8_t*>(stored.data);
  auto* code = reinterpret_cast<uint8_t*>(out.code_owner.data());
  for (int64_t b = 0; b < blocks; ++b) {
    type.decode(from + b * block.block_bytes, code + b * block.block_elements,
                out.scale.data() + b * per_block,
                out.offset.empty() ? nullptr : out.offset.data() + b * per_block);
  }
  for (size_t i = 0; i < out.scale.size(); ++i) {
    const float bad =
        !out.offset.empty() && std::isfinite(out.scale[i]) ? out.offset[i] : out.scale[i];
    if (std::isfinite(bad)) continue;
    const int64_t per_row = k / type.group;
    const auto at = static_cast<int64_t>(i);
    return fail(
        ErrorCode::kCorrupt,
        fmt::format("the scale of row {}, inputs {} to {} is {}; the file is damaged", at / per_row,
                    at % per_row * type.group, (at % per_row + 1) * type.group - 1, bad));
  }
  out.code = {DType::kU8, {n, k}, out.code_owner.data(), out.code_owner.size()};
  return out;
}

}  // namespace nibble::quant
