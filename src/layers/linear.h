// A linear layer after loading, and `apply`, the third verb.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "device/memory.h"
#include "device/stream.h"
#include "kernels/matmul/matmul.h"
#include "kernels/matmul/rows.h"

namespace nibble::layers {

struct Linear {
  std::string name;  // the module's name in the checkpoint
  kernels::PackedWeight weight;
  device::Floats bias;  // (N) or empty

  int64_t n() const { return weight.problem.n; }
  int64_t k() const { return weight.problem.k; }
};

struct LinearOutput {
  const Linear* linear;
  kernels::Rows y;  // (m, N), row stride ldy; held as held_by says for all that go together, or f32
  int64_t ldy;
  bool add = false;               // y += instead, where can_add says so
  kernels::HalfNormed next = {};  // of y then, where can_split_norm says so
};

// Layers that read the same rows, or write what one operation reads; null and empty ones do not
// count.
using Together = std::array<const Linear*, 4>;

// How the rows are best held that these layers, and nobody else, read: what the operation before
// them is asked to write.
kernels::Held held_for(const device::Stream& stream, const Together& readers, int64_t m);

// How the rows are best held that these layers write, for an operation that reads all of them and
// whose own results are rounded. f32 where one has a bias.
kernels::Held held_by(const device::Stream& stream, const Together& writers, int64_t m);

// Whether `apply` can add this layer's outputs to rows of f32 that there are; its bias is added,
// too.
bool can_add(const device::Stream& stream, const Linear& linear, int64_t m);

// Whether the norm between `adds`, whose outputs are added to rows of f32, and the readers of these
// rows can be done by `apply` of both.
bool can_split_norm(const device::Stream& stream, const Linear& adds, const Together& readers,
                    int64_t m);

// Whether apply_gated can run these layers.
bool can_gate(const device::Stream& stream, const Linear& gate, const Linear& up, int64_t m);

// y = x W^T + bias, or y += with `add`, for each output. Layers that read the same x go together:
// q, k and v keep their own formats and scales and still share one parallel loop.
void apply(device::Stream& stream, std::span<const LinearOutput> outputs, kernels::ConstRows x,
           int64_t ldx, int64_t m);

// y = f(gate(x)) * up(x): see kernels::GatedTarget, whose weights are the layers'.
struct GatedOutput {
  const Linear* gate_layer;
  const Linear* up_layer;
  kernels::Activation function;
  float* gate;
  float* up;
  int64_t ld;
  kernels::Rows y;
  int64_t ldy;
};
void apply_gated(device::Stream& stream, const GatedOutput& output, kernels::ConstRows x,
                 int64_t ldx, int64_t m);

}  // namespace nibble::layers
