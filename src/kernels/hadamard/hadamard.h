// Rotation of activations by a Hadamard matrix, which some checkpoints ask for before a layer.
#pragma once

#include <cstdint>

namespace nibble::kernels {

// Each block of `size` of the k elements of x becomes x H / sqrt(size), with Sylvester's matrix:
// H[i, j] is -1 where i and j have an odd number of bits in common, else 1. Preconditions: size is
// a power of two and divides k.
void hadamard(float* x, int64_t k, int64_t size);

}  // namespace nibble::kernels
