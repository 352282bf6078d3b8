// Attention on the tensor cores of Hopper: 16-bit products, sums and softmax in f32. Heads of some
// sizes, keys and values of 8 and 16 bits. Private to attention/.
#pragma once

#include "device/cuda_context.h"
#include "kernels/cuda/abi.h"

namespace nibble::kernels::cuda {

bool fits_tensor_cores(const NibbleCudaContext& context, const CudaStep& step);

// One token: q and k are turned and the token kept in the same kernel. The context is split over
// blocks; the last block of a KV head joins their results in a fixed order.
void decode(NibbleCudaContext* context, const CudaStep& step);

// Any number of tokens that were turned and kept.
void prefill(NibbleCudaContext* context, const CudaStep& step);

}  // namespace nibble::kernels::cuda
