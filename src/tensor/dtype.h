// What a stored tensor's bytes are: the element types of safetensors and the block types of GGUF.
//
// A block type packs `block_elements` consecutive elements of a row into `block_bytes` bytes; a
// plain type has blocks of one element, but for kE2M1 (two to a byte) and the 6-bit floats (four to
// three).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace nibble::tensor {

enum class DType : uint8_t {
#define NIBBLE_DTYPE(id, name, elements, bytes) id,
#include "tensor/dtypes.inc"
#undef NIBBLE_DTYPE
};

struct DTypeInfo {
  std::string_view name;  // nibble's word for it: "f16", "s8", "q4_1"
  int block_elements;
  int block_bytes;
};

const DTypeInfo& info(DType dtype);
inline std::string_view name(DType dtype) { return info(dtype).name; }

// f16, bf16, f32, f64: a float that needs no scale.
bool is_plain_float(DType dtype);
// A GGUF block type: q4_0 ... tq2_0.
bool is_gguf_block(DType dtype);

}  // namespace nibble::tensor
