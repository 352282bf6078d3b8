// What a plan for a card needs to know of its kernels.
#pragma once

#include <cstdint>

namespace nibble::kernels {

// Bytes of a card that products take beside the weights, at most: a panel, and cuBLASLt's.
int64_t cuda_workspace_bytes();

}  // namespace nibble::kernels
