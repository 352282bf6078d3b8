// Weights in tiles, for the files whose functions read other weights too.
#pragma once

#include "kernels/cuda/device.cuh"

namespace nibble::kernels::cuda {

// Rows as f32 in the order of the inputs, as look_up.
void look_up_tiles(NibbleCudaContext* context, const CudaWeight& weight, const int32_t* ids,
                   int64_t m, float* out);
// Rows [first, first + rows), first a multiple of 64, as bf16 in the order of the codes.
void panel_of_tiles(NibbleCudaContext* context, const CudaWeight& weight, int64_t first,
                    int64_t rows, __nv_bfloat16* panel, int64_t ldp);

}  // namespace nibble::kernels::cuda
