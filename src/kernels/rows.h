// Rows of numbers on their way from an operation to the products that read them: f32, or bf16
// where every one of these products would round them to bf16 before anything else (which only
// products of a card do, and which matmul/rows.h tells). What makes the rows then rounds them, and
// nobody goes over them once more. A pointer to floats is rows of f32.
#pragma once

#include <cstdint>

#include "base/check.h"

namespace nibble::kernels {

enum class Held : uint8_t { kF32, kBf16 };

struct Rows {
  void* data = nullptr;
  Held held = Held::kF32;

  Rows(float* f32) : data(f32) {}  // NOLINT(google-explicit-constructor): see above
  Rows(void* bytes, Held how) : data(bytes), held(how) {}

  float* f32() const {  // a CPU's operations know nothing else
    NIBBLE_CHECK(held == Held::kF32);
    return static_cast<float*>(data);
  }
};

struct ConstRows {
  const void* data = nullptr;
  Held held = Held::kF32;

  ConstRows(const float* f32) : data(f32) {}  // NOLINT(google-explicit-constructor)
  ConstRows(const Rows& rows)                 // NOLINT(google-explicit-constructor)
      : data(rows.data), held(rows.held) {}

  const float* f32() const {
    NIBBLE_CHECK(held == Held::kF32);
    return static_cast<const float*>(data);
  }
};

}  // namespace nibble::kernels
