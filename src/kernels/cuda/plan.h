// What a plan for a card needs to know of its kernels.
#pragma once

#include <cstdint>

#include "kernels/attention/kv_cache.h"

namespace nibble::kernels {

// Bytes of a card that products take beside the weights, at most: a panel, and cuBLASLt's.
int64_t cuda_workspace_bytes();

// Whether cards have kernels for keys and values of this type.
inline bool cuda_holds(KvType type) { return !is_quantized(type); }

}  // namespace nibble::kernels
