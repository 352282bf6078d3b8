// The kernels of the card that is not there: they compute nothing, but what they are given must lie
// in its memory, aligned and as large as kernels/cuda/abi.h says.
#pragma once

#include <cstdint>

#include "kernels/cuda/abi.h"

namespace nibble::fake {

// Whether [p, p + bytes) lies in one piece of memory that somebody holds.
bool is_held(const void* p, int64_t bytes);
// Keeps the first sentence, for NibbleCudaDevice::error.
void note(const char* text);

// How often something was done by products themselves, and how often by a pass of its own.
struct Work {
  int64_t by_products = 0;
  int64_t by_passes = 0;
};
struct Done {
  Work added;       // rows to others; a norm that does so is a pass
  Work normalized;  // with RMSNorm
  Work gated;       // activations of a gate, with what they are multiplied by
};
Done done();

// Of the setting nan=N: weights of N rows and more multiply to nan in gemm.
int64_t rows_of_nan();

// Puts the kernels that look at their arguments in the place of those that do nothing.
void look_at_arguments(kernels::CudaKernels* table);

}  // namespace nibble::fake
