#define NIBBLE_SIMD_HEADER "kernels/simd/avx512.h"
#include "kernels/norm/norm_simd.h"

namespace nibble::kernels {

const NormOps kNormAvx512 = {avx512::rms_norm_row, avx512::add_rms_norm_row,
                             avx512::layer_norm_row};

}  // namespace nibble::kernels
