// Rows of numbers on their way from one operation to the next: f32, or bf16 on a card
//   - to products every one of which would round them to bf16 before anything else. What makes the
//     rows then rounds them, and nobody goes over them once more;
//   - from products of inputs in bf16 to the activation between them, which is half the bytes.
// matmul/rows.h tells where. A pointer to floats is rows of f32.
#pragma once

#include <cstddef>
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
  Rows from(int64_t element) const {
    const int64_t size = held == Held::kBf16 ? 2 : 4;
    return {static_cast<std::byte*>(data) + element * size, held};
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
