// Rows of numbers on their way from one operation to the next: f32, or bf16 on a card
//   - to products every one of which would round them to bf16 before anything else. What makes the
//     rows then rounds them, and nobody goes over them once more;
//   - from products of inputs in bf16 to the activation between them, which is half the bytes;
//   - half normalized, from one product of few rows to the next (HalfNormed).
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

// RMSNorm in two parts (norm/norm.h), between products of few rows on a card: the one that makes
// the rows x also writes x * weight and sums of squares; those that read this multiply their
// results by 1 / sqrt(mean(x^2) + eps).
struct HalfNormed {
  const float* weight = nullptr;  // (n); null: there is none
  float eps = 0;
  void* rows = nullptr;      // (m, n) bf16: x * weight
  float* squares = nullptr;  // (m, n / 8): of x, eight by eight
};

struct ConstRows {
  const void* data = nullptr;
  Held held = Held::kF32;
  const float* squares = nullptr;  // of rows that are half normalized; their eps
  float eps = 0;

  ConstRows(const float* f32) : data(f32) {}  // NOLINT(google-explicit-constructor)
  ConstRows(const Rows& rows)                 // NOLINT(google-explicit-constructor)
      : data(rows.data), held(rows.held) {}
  explicit ConstRows(const HalfNormed& x)
      : data(x.rows), held(Held::kBf16), squares(x.squares), eps(x.eps) {}

  const float* f32() const {
    NIBBLE_CHECK(held == Held::kF32);
    return static_cast<const float*>(data);
  }
};

}  // namespace nibble::kernels
