// matmul() between operations that hold rows in other ways than f32.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/activation/activation.h"
#include "kernels/matmul/matmul.h"
#include "kernels/rows.h"

namespace nibble::kernels {

// How m rows are best held that these weights, and nobody else, are multiplied with: not f32 where
// all of the products begin with rounding them. Always f32 on a CPU.
Held held_for(const device::Stream& stream, std::span<const PackedWeight* const> weights,
              int64_t m);

// How m rows are best held that these products write: not f32 where all of them round their inputs
// to bf16 and their kernels can write it, which those for few rows cannot without an activation
// (matmul_gated). For an operation that reads these rows, and nobody else does, and whose own
// results are rounded. Always f32 on a CPU.
Held held_by(const device::Stream& stream, std::span<const PackedWeight* const> weights, int64_t m);

// Whether this product of m rows can add to rows of f32 instead of writing them, so that no pass
// adds them after it: where cuBLASLt multiplies a panel, and of up to four rows in tiles. Never on
// a CPU.
bool can_add(const device::Stream& stream, const PackedWeight& weight, int64_t m);

// Whether the norm between them can be left to these products of m rows (HalfNormed), so that no
// pass normalizes: one that adds to rows of f32, and those that read these rows. All have to be of
// up to four rows in tiles, and nothing but rounding is done to what is normalized. Never on a CPU.
bool can_split_norm(const device::Stream& stream, const PackedWeight& adds,
                    std::span<const PackedWeight* const> readers, int64_t m);

// Whether these two products of m rows can end with an activation (matmul_gated): where they are
// one launch of few rows. Never on a CPU.
bool can_gate(const device::Stream& stream, const PackedWeight& gate, const PackedWeight& up,
              int64_t m);

// y = x W^T, held as f32 or as held_by says for all of the weights; or, where can_add, y += x W^T,
// after which y is half normalized, too, where can_split_norm.
struct RowsTarget {
  const PackedWeight* weight;
  Rows y;
  int64_t ldy;
  bool add = false;
  HalfNormed next = {};
};

// matmul.h's; x is held as held_for says for all of the weights, or f32, and where
// can_split_norm half normalized.
void matmul(device::Stream& stream, std::span<const RowsTarget> targets, ConstRows x, int64_t ldx,
            int64_t m);

// y = f(x G^T) * (x U^T), where can_gate; x is as for both in matmul(). The products may be
// written to gate and up (m, n) on the way; y may be gate, if it is f32.
struct GatedTarget {
  const PackedWeight* gate_weight;
  const PackedWeight* up_weight;
  Activation function;
  float* gate;
  float* up;
  int64_t ld;  // of both
  Rows y;
  int64_t ldy;
};
void matmul_gated(device::Stream& stream, const GatedTarget& target, ConstRows x, int64_t ldx,
                  int64_t m);

}  // namespace nibble::kernels
