// From which compute capability on a card's tensor cores multiply numbers of a kind as they are.
// Below it, they are widened first: a checkpoint's FP8 becomes "weight-only" there, with its inputs
// rounded to FP8 all the same.
#pragma once

#include <string_view>

#include "device/gpu.h"
#include "tensor/weight_format.h"

namespace nibble::kernels {

struct NativeProduct {
  std::string_view name;
  int major, minor;
};

// Of layers whose inputs are held so. Floats are multiplied as bf16.
inline NativeProduct native_product(const tensor::ActivationFormat& inputs) {
  using Type = tensor::ActivationFormat::Type;
  switch (inputs.type) {
    case Type::kE4M3:
      return {"FP8", 8, 9};
    case Type::kE2M1:
      return {"FP4", 10, 0};
    case Type::kE2M3:
    case Type::kE3M2:
      return {"FP6", 10, 0};
    case Type::kS8:
      return {"int8", 7, 5};
    case Type::kFloat:
      break;
  }
  return {"bf16", 8, 0};
}

// What inputs are multiplied as on a card that has no product of their own.
inline std::string_view widened_to(const device::Gpu& gpu) {
  return gpu.at_least(8, 0) ? "bf16" : "float32";
}

}  // namespace nibble::kernels
