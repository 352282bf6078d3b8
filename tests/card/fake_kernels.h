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

// How often rows were added to others: by gemm itself; by a norm, or add_to.
struct Added {
  int64_t by_products = 0;
  int64_t by_passes = 0;
};
Added added();

// Of the setting nan=N: weights of N rows and more multiply to nan in gemm.
int64_t rows_of_nan();

// Puts the kernels that look at their arguments in the place of those that do nothing.
void look_at_arguments(kernels::CudaKernels* table);

}  // namespace nibble::fake
