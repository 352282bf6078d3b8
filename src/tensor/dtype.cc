#include "tensor/dtype.h"

namespace nibble::tensor {
namespace {

constexpr DTypeInfo kInfo[] = {
#define NIBBLE_DTYPE(id, name, elements, bytes) {name, elements, bytes},
#include "tensor/dtypes.inc"
#undef NIBBLE_DTYPE
};

}  // namespace

const DTypeInfo& info(DType dtype) { return kInfo[static_cast<int>(dtype)]; }

bool is_plain_float(DType dtype) {
  return dtype == DType::kF16 || dtype == DType::kBF16 || dtype == DType::kF32 ||
         dtype == DType::kF64;
}

bool is_gguf_block(DType dtype) { return dtype >= DType::kQ4_0 && dtype <= DType::kTQ2_0; }

}  // namespace nibble::tensor
