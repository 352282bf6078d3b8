// ggml's tensor type numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "tensor/dtype.h"

namespace nibble::checkpoint {

struct GgmlType {
  uint32_t id;
  std::string_view name;
  std::optional<tensor::DType> dtype;  // nothing: nibble does not read it
  std::string_view why;                // then: "has been removed from the format"
};

const GgmlType* find_ggml_type(uint32_t id);          // nullptr: no such number is known
const GgmlType* find_ggml_type(tensor::DType dtype);  // nullptr: GGUF has no such type

}  // namespace nibble::checkpoint
