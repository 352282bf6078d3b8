#define NIBBLE_SIMD_HEADER "kernels/simd/avx2.h"
#include "kernels/norm/norm_simd.h"

namespace nibble::kernels {

const NormOps kNormAvx2 = {avx2::rms_norm_row, avx2::add_rms_norm_row, avx2::layer_norm_row};

}  // namespace nibble::kernels
