// Attention of many tokens with products of warpgroups, on Hopper. Private to attention/.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/abi.h"

namespace nibble::kernels::cuda {

// Of what fits_tensor_cores: heads of 64 and 128.
bool fits_warpgroups(const CudaStep& step);

// Any number of tokens, which are turned and kept first.
cudaError_t launch_warpgroups(const CudaStep& step, cudaStream_t stream);

}  // namespace nibble::kernels::cuda
