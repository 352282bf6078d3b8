// A linear layer after loading, and `apply`, the third verb.
#pragma once

#include <cstdint>
#include <initializer_list>
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
  float* y;  // (m, N), row stride ldy
  int64_t ldy;
};

// How the rows are best held that these layers, and nobody else, read: what the operation before
// them is asked to write. Layers that are empty do not count.
kernels::Held held_for(const device::Stream& stream, std::initializer_list<const Linear*> readers,
                       int64_t m);

// y = x W^T + bias for each output. Layers that read the same x go together: q, k and v keep their
// own formats and scales and still share one parallel loop.
void apply(device::Stream& stream, std::span<const LinearOutput> outputs, kernels::ConstRows x,
           int64_t ldx, int64_t m);

}  // namespace nibble::layers
