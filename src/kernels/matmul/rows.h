// matmul() between operations that hold rows in other ways than f32.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/matmul/matmul.h"
#include "kernels/rows.h"

namespace nibble::kernels {

// How m rows are best held that these weights, and nobody else, are multiplied with: not f32 where
// all of the products begin with rounding them. Always f32 on a CPU.
Held held_for(const device::Stream& stream, std::span<const PackedWeight* const> weights,
              int64_t m);

// How m rows are best held that these products write: not f32 where all of them round their inputs
// to bf16 and their kernels can write it, which those for few rows cannot. For an operation that
// reads these rows, and nobody else does, and whose own results are rounded. Always f32 on a CPU.
Held held_by(const device::Stream& stream, std::span<const PackedWeight* const> weights, int64_t m);

// Whether this product of m rows can add to rows of f32 instead of writing them, so that no pass
// adds them after it: where cuBLASLt multiplies a panel. Never on a CPU.
bool can_add(const device::Stream& stream, const PackedWeight& weight, int64_t m);

// y = x W^T, held as f32 or as held_by says for all of the weights; or, where can_add, y += x W^T.
struct RowsTarget {
  const PackedWeight* weight;
  Rows y;
  int64_t ldy;
  bool add = false;
};

// matmul.h's; x is held as held_for says for all of the weights, or f32.
void matmul(device::Stream& stream, std::span<const RowsTarget> targets, ConstRows x, int64_t ldx,
            int64_t m);

}  // namespace nibble::kernels
