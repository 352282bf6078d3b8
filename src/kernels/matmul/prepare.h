// x in the form that a kernel wants: multiplied by input_factor, rotated, quantized as the
// checkpoint says, gathered by `order`, then laid out. Private to matmul/.
#pragma once

#include "kernels/matmul/kernel.h"

namespace nibble::kernels {

// What a weight and its kernel ask of x. Two equal requests share one preparation.
struct Request {
  const PackedWeight* weight;
  const Layout* layout;
  const Kernel* kernel;
};
bool same_preparation(const Request& a, const Request& b);

// Uses scratch slots [slot, slot + kPrepareSlots) of the stream; the result lives there.
constexpr int kPrepareSlots = 2;
Activations prepare(device::Stream& stream, int slot, const Request& request, const float* x,
                    int64_t ldx, int64_t m);

}  // namespace nibble::kernels
