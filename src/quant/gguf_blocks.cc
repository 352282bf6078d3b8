#include "quant/gguf_blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/number.h"

namespace nibble::quant {
namespace {

using tensor::DType;
using tensor::Element;
using tensor::ZeroKind;

float read_f16(const uint8_t* p) {
  return base::f32_from_f16(static_cast<uint16_t>(p[0] | p[1] << 8));
}

// Decodes one block: its codes, one byte each, and its scales and offsets, one per group.
using Decode = void (*)(const uint8_t* block, uint8_t* code, float* scale, float* offset);

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

struct BlockType {
  DType dtype;
  Element element;
  int group;
  ZeroKind zero;
  DType scale_type;
  Decode decode;
};

constexpr BlockType kTypes[] = {
    {DType::kQ4_0, Element::kS4, 32, ZeroKind::kNone, DType::kF16, decode_q4_0},
    {DType::kQ4_1, Element::kU4, 32, ZeroKind::kOffset, DType::kF16, decode_q4_1},
    {DType::kQ8_0, Element::kS8, 32, ZeroKind::kNone, DType::kF16, decode_q8_0},
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
  out.code = {DType::kU8, {n, k}, out.code_owner.data(), out.code_owner.size()};
  return out;
}

}  // namespace nibble::quant
